"""The page that shows two samples next to each other, with what differs between their facts and texts."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from energon_dali.shards.documents.content import show_bytes
from energon_dali.view.catalog import CatalogEntry
from energon_dali.view.content import AV_TYPES, ShownPart, show_part
from energon_dali.view.pages import entry_of, measures_of, show, site_of
from energon_dali.view.site import Site
from energon_dali.view.viewed_sample import ViewedPart, ViewedSample

_PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,16})")
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_COMPARED_WORDS = 6000
"""Words of a text in which differences are marked: looking for them takes longer than in proportion."""
_OFFERED = 50


@dataclass(frozen=True, slots=True)
class ComparedSample:
    """One of the two samples."""

    entry: CatalogEntry
    """Its dataset."""
    sample: ViewedSample
    """The sample."""
    tags: list[str]
    """Its tags."""

    @property
    def place(self) -> str:
        """How the address of the page names it."""
        return f"{self.entry.number}.{self.sample.index}"

    @property
    def address(self) -> str:
        """Address of its page."""
        return f"/data/{self.entry.number}/sample/{self.sample.index}"


@dataclass(frozen=True, slots=True)
class ComparedFact:
    """A fact of both samples."""

    name: str
    """Name of the fact."""
    values: tuple[str, str]
    """Its values, "" where a sample has none."""

    @property
    def differs(self) -> bool:
        """Whether the values differ."""
        return self.values[0] != self.values[1]


Run = tuple[Literal["same", "only"], str]
"""(whether the other text has it too, the text)."""


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """A part of both samples, or of one of them."""

    name: str
    """Name of the part; both names if they differ, such as jpg and png."""
    shown: tuple[ShownPart | None, ShownPart | None]
    """The parts; None where a sample has none."""
    runs: tuple[list[Run], list[Run]] | None
    """Their texts, with what differs; None if they are not compared."""


def compare(request: Request) -> Response:
    """Answers `/compare?a=N.I&b=N.J`: two samples next to each other."""
    site = site_of(request)
    first = _sample_at(site, request.query_params.get("a", ""), 0)
    entry = first.entry
    second = _sample_at(site, request.query_params.get("b", ""), entry.number)
    chosen = site.chosen(entry).numbers[:_OFFERED].tolist()
    return show(
        request,
        "compare",
        entry=entry,
        pair=(first, second),
        facts=compare_facts(site, first, second),
        parts=compare_parts(first, second),
        playable=AV_TYPES,
        offered=[entry.opened.sample(index) for index in chosen],
    )


def compare_chosen(request: Request) -> Response:
    """Answers `/data/N/compare`: leads to the comparison of the first two chosen samples."""
    site, entry = site_of(request), entry_of(request)
    chosen = site.chosen(entry).numbers[:2].tolist()
    if len(chosen) < 2:
        raise HTTPException(404, "Choose two samples to compare them.")
    return RedirectResponse(f"/compare?a={entry.number}.{chosen[0]}&b={entry.number}.{chosen[1]}", 303)


def _sample_at(site: Site, text: str, dataset: int) -> ComparedSample:
    """Returns the sample that a field of the address names, by dataset and number, or by number in a dataset.

    Raises:
        HTTPException: There is none.
    """
    match = _PLACE.fullmatch(text if "." in text else f"{dataset}.{text}")
    entry = None if match is None else site.catalog.entry(int(match[1]))
    if match is None or entry is None or not int(match[2]) < entry.opened.num_samples:
        raise HTTPException(404, "Two samples are compared by their numbers, such as /compare?a=0.12&b=0.15.")
    sample = entry.opened.sample(int(match[2]))
    return ComparedSample(entry, sample, site.tags(entry).of(sample.index))


def compare_facts(site: Site, *pair: ComparedSample) -> list[ComparedFact]:
    """Returns the facts of two samples, those of either.

    Args:
        site: The site.
        *pair: The samples.
    """
    found: list[dict[str, str]] = []
    for one in pair:
        sample = one.sample
        facts = {
            "dataset": one.entry.name,
            "key": sample.key,
            "shard": sample.shard,
            "split": ", ".join(one.entry.opened.parts_of(sample.index)),
            "size": show_bytes(sample.size),
            "tags": ", ".join(one.tags),
        }
        for part in sample.parts:
            facts[f"size of {part.name}"] = f"{part.size:,} bytes"
            if part.width:
                facts[f"pixels of {part.name}"] = f"{part.width:,} by {part.height:,}"
        for encoder, values in measures_of(one.entry.opened, sample.index):
            for name, value in values.items():
                facts[f"{name} by {encoder}"] = f"{value:,}" if value >= 0 else "not measured"
        found.append(facts)
    names = list(dict.fromkeys(name for facts in found for name in facts))
    rows = [ComparedFact(name, (found[0].get(name, ""), found[1].get(name, ""))) for name in names]
    return [row for row in rows if any(row.values)]


def compare_parts(first: ComparedSample, second: ComparedSample) -> list[ComparedPart]:
    """Returns the parts of two samples, side by side: by name, and media without a partner by their kind.

    Args:
        first: One sample.
        second: The other one.
    """
    left = list(first.sample.parts)
    right = list(second.sample.parts)
    pairs: list[tuple[ViewedPart | None, ViewedPart | None]] = []
    for part in left:
        same = next((other for other in right if other.name == part.name), None)
        if same is None and part.kind in ("image", "av"):
            taken = {one.name for one in left}
            same = next((other for other in right if other.kind == part.kind and other.name not in taken), None)
        if same is not None:
            right.remove(same)
        pairs.append((part, same))
    pairs += [(None, other) for other in right]
    pairs.sort(key=lambda pair: next(part for part in pair if part is not None).kind not in ("image", "av"))
    found = []
    for one, other in pairs:
        a = None if one is None else show_part(first.entry.opened, first.sample, one)
        b = None if other is None else show_part(second.entry.opened, second.sample, other)
        names = dict.fromkeys(part.name for part in (one, other) if part is not None)
        texts = None
        if a is not None and b is not None and {a.kind, b.kind} <= {"text", "json"}:
            texts = compare_texts(a.text, b.text)
        found.append(ComparedPart(" and ".join(names), (a, b), texts))
    return found


def compare_texts(first: str, second: str) -> tuple[list[Run], list[Run]] | None:
    """Returns two texts in runs that the other one has too, or does not; None if they are too long to be compared.

    Args:
        first: One text.
        second: The other one.
    """
    words: list[list[str]] = [_WORDS.findall(text) for text in (first, second)]
    if max(map(len, words)) > _MOST_COMPARED_WORDS:
        return None
    runs: tuple[list[Run], list[Run]] = ([], [])
    for kind, start, stop, begin, end in difflib.SequenceMatcher(None, words[0], words[1], False).get_opcodes():
        for side, one, low, high in ((0, words[0], start, stop), (1, words[1], begin, end)):
            if high > low:
                runs[side].append(("same" if kind == "equal" else "only", "".join(one[low:high])))
    return runs
