"""The pages of a training run: its loss, and what each of its steps had."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from energon_dali.view.content import snippets
from energon_dali.view.loss import chart_of
from energon_dali.view.pages import show, site_of
from energon_dali.view.run import Run, RunBatch, RunSample

_SHOWN_SAMPLES = 256
"""Samples of a step that one page shows; with more, it shows those of one rank."""
_MOST_DIGITS = 15


@dataclass(frozen=True, slots=True)
class ShownBatch:
    """A batch with the beginnings of its samples' texts."""

    batch: RunBatch
    """The batch."""
    cards: list[tuple[RunSample, str]]
    """(sample, beginning of its text) each."""


def run(request: Request) -> Response:
    """Answers `/run`: the loss of a run over its steps, or `/run?step=N`, which leads to a step."""
    found = _run_of(request)
    given = request.query_params
    if "step" in given:
        return RedirectResponse(f"/run/step/{_number(given['step'], 0)}", 303)
    last = max(0, found.num_steps - 1)
    first_shown = min(_number(given.get("from", ""), 0), last)
    last_shown = max(first_shown, min(_number(given.get("to", ""), last), last))
    chart = None if found.loss is None else chart_of(found.loss, first_shown, last_shown)
    return show(
        request, "run", entry=None, run=found, chart=chart, first=first_shown, last=last_shown, finite=math.isfinite
    )


def step(request: Request) -> Response:
    """Answers `/run/step/N`: the samples of a step, by rank and micro-batch."""
    found = _run_of(request)
    number = request.path_params["step"]
    batches = found.step(number)
    if batches is None and not found.has_step(number):
        raise HTTPException(404, f"The run has {found.num_steps:,} steps, and nothing says what step {number} had.")
    batches = batches or []
    ranks = sorted({batch.rank for batch in batches if batch.rank is not None})
    total = sum(len(batch.samples) for batch in batches)
    rank = None
    given = request.query_params.get("rank", "")
    if given.isascii() and given.isdecimal() and len(given) < _MOST_DIGITS and int(given) in ranks:
        rank = int(given)
    elif total > _SHOWN_SAMPLES and ranks and given != "all":
        rank = ranks[0]
    chosen = [batch for batch in batches if rank is None or batch.rank == rank]
    return show(
        request,
        "step",
        entry=None,
        run=found,
        step_number=number,
        has_next=found.has_step(number + 1),
        loss=None if found.loss is None else found.loss.at(number),
        batches=_with_texts(chosen),
        ranks=ranks,
        rank=rank,
        total=total,
        counts=_counts(batches),
        numbers=_numbers(chosen),
    )


def _run_of(request: Request) -> Run:
    found = site_of(request).run
    if found is None:
        raise HTTPException(404, "No run was given. Start the command with --run and a saved state or debug logs.")
    return found


def _number(text: str, other: int) -> int:
    text = text.strip().replace(",", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS else other


def _with_texts(batches: list[RunBatch]) -> list[ShownBatch]:
    found = []
    left = _SHOWN_SAMPLES
    for batch in batches:
        cards = []
        for one in batch.samples[: max(0, left)]:
            text = "" if one.entry is None or one.sample is None else snippets(one.entry.opened, [one.sample])[0]
            cards.append((one, text))
        left -= len(cards)
        found.append(ShownBatch(batch, cards))
    return found


def _counts(batches: list[RunBatch]) -> dict[str, int]:
    """Returns how many samples had which outcome."""
    found: dict[str, int] = {}
    for batch in batches:
        for one in batch.samples:
            found[one.outcome] = found.get(one.outcome, 0) + 1
    return found


def _numbers(batches: list[RunBatch]) -> dict[int, list[int]]:
    """Returns the numbers of the samples by dataset, so that they can be chosen; only of those that are known."""
    found: dict[int, list[int]] = {}
    for batch in batches:
        for one in batch.samples:
            if one.entry is not None and one.sample is not None and not one.others:
                found.setdefault(one.entry.number, []).append(one.sample.index)
    return found
