"""The pages about datasets and their samples; each function answers one address."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from energon_dali.view.catalog import CatalogEntry
from energon_dali.view.content import show_part, snippets
from energon_dali.view.dataset import ViewedPart, ViewedSample
from energon_dali.view.part_response import AV_TYPES
from energon_dali.view.query import FILTER_FIELDS, PAGE_SIZES, GridQuery, describe, read_query
from energon_dali.view.site import Site
from energon_dali.view.thumbnail import find_thumbnail_part

_POSITION = "position"


def site_of(request: Request) -> Site:
    """Returns the site that a request is for."""
    found: Site = request.app.state.site
    return found


def show(request: Request, page: str, *, status: int = 200, **values: Any) -> Response:
    """Returns a page as a response.

    Args:
        request: The request.
        page: Name of the page and of its template.
        status: Status of the response.
        **values: Values of the template.
    """
    return HTMLResponse(site_of(request).render(f"{page}.html", page=page, **values), status)


def entry_of(request: Request) -> CatalogEntry:
    """Returns the dataset that an address names.

    Raises:
        HTTPException: There is none.
    """
    entry = site_of(request).catalog.entry(request.path_params["dataset"])
    if entry is None:
        raise HTTPException(404, "There is no such dataset.")
    return entry


def sample_of(request: Request) -> tuple[CatalogEntry, ViewedSample]:
    """Returns (dataset, sample) that an address names.

    Raises:
        HTTPException: There is none.
        DatasetError: The index is damaged.
    """
    entry = entry_of(request)
    index = request.path_params["index"]
    if entry.dataset is not None and not 0 <= index < entry.dataset.num_samples:
        raise HTTPException(404, f"{entry.name} has {entry.dataset.num_samples:,} samples, and none numbered {index}.")
    return entry, entry.opened.sample(index)


def part_of(request: Request) -> tuple[CatalogEntry, ViewedSample, ViewedPart]:
    """Returns (dataset, sample, part) that an address names; parts are named by their number alone.

    Raises:
        HTTPException: There is none.
        DatasetError: The index is damaged.
    """
    entry, sample = sample_of(request)
    number = request.path_params["part"]
    if number >= len(sample.parts):
        raise HTTPException(404, f"The sample has {len(sample.parts)} parts, and none numbered {number}.")
    return entry, sample, sample.parts[number]


def home(request: Request) -> Response:
    """Answers `/`: the datasets of a metadataset, or the samples of the only dataset."""
    site = site_of(request)
    if not site.catalog.is_metadataset:
        return RedirectResponse("/data/0", 303)
    return show(request, "overview", entry=None)


def grid(request: Request) -> Response:
    """Answers `/data/N`: the samples that meet the conditions, a page at a time."""
    site, entry = site_of(request), entry_of(request)
    query, wrong = read_query(request.query_params)
    dataset = entry.opened
    if query.split and query.split not in dataset.split_parts:
        wrong.append(f"There is no split {query.split!r}.")
        query = read_query({**request.query_params, "split": ""})[0]
    selection = site.select(entry, query)
    page = selection.page(query.start, query.start + query.page_size)
    last_page = max(1, -(-page.found // query.page_size))
    if page.searched >= 1 and query.page > last_page:
        query = query.on_page(last_page)
        page = selection.page(query.start, query.start + query.page_size)
    samples = [dataset.sample(index) for index in page.indices.tolist()]
    texts = snippets(dataset, samples)
    cards = []
    for offset, (sample, text) in enumerate(zip(samples, texts, strict=True)):
        cards.append(
            {
                "sample": sample,
                "thumbnail": find_thumbnail_part(sample),
                "text": text,
                "address": f"/data/{entry.number}/sample/{sample.index}"
                + query.address(page=None, **{_POSITION: query.start + offset}),
            }
        )
    progress = site.scan.progress(site.scan_number(entry)) if selection.waits_for_scan else None
    return show(
        request,
        "grid",
        entry=entry,
        dataset=dataset,
        query=query,
        fields=query.fields(),
        names=list(FILTER_FIELDS),
        conditions=list(describe(query)),
        wrong=wrong,
        found=page,
        cards=cards,
        last_page=last_page,
        page_sizes=PAGE_SIZES,
        progress=progress,
        is_incomplete=page.searched < 1 and len(cards) < query.page_size and not page.error,
    )


def find(request: Request) -> Response:
    """Answers `/data/N/find?key=...`: leads to the sample with a number, `#123`, or to those with a key."""
    entry = entry_of(request)
    text = request.query_params.get("key", "").strip()
    if text.startswith("#") and text[1:].isdecimal() and len(text) < 20:
        return RedirectResponse(f"/data/{entry.number}/sample/{int(text[1:])}", 303)
    index = entry.opened.find_key(text) if text else None
    if index is not None:
        return RedirectResponse(f"/data/{entry.number}/sample/{index}", 303)
    query, _ = read_query({"key": text})
    return RedirectResponse(f"/data/{entry.number}{query.address()}", 303)


def sample(request: Request) -> Response:
    """Answers `/data/N/sample/I`: every part of a sample, its place, and the command that restores it."""
    site = site_of(request)
    entry, shown = sample_of(request)
    dataset = entry.opened
    query, _ = read_query(request.query_params)
    position = _position_of(request, site, entry, query, shown.index)
    neighbours: dict[str, str | None] = {"previous": None, "next": None}
    if position is not None:
        selection = site.select(entry, query)
        for name, other in (("previous", position - 1), ("next", position + 1)):
            found = selection.page(other, other + 1).indices.tolist() if other >= 0 else []
            if found:
                address = query.address(page=None, **{_POSITION: other})
                neighbours[name] = f"/data/{entry.number}/sample/{found[0]}{address}"
    grid_page = 1 if position is None else position // query.page_size + 1
    return show(
        request,
        "sample",
        entry=entry,
        dataset=dataset,
        sample=shown,
        parts=[show_part(dataset, shown, part) for part in sorted(shown.parts, key=_is_not_media)],
        splits=[part for part in dataset.split_parts if dataset.rows(part).position(shown.index) is not None],
        command=dataset.restore_command(shown),
        playable=AV_TYPES,
        position=position,
        neighbours=neighbours,
        back=f"/data/{entry.number}{query.on_page(grid_page).address()}",
    )


def _is_not_media(part: ViewedPart) -> bool:
    return part.kind not in ("image", "av")


def _position_of(request: Request, site: Site, entry: CatalogEntry, query: GridQuery, index: int) -> int | None:
    """Returns the position of a sample among those of the grid that it was reached from."""
    text = request.query_params.get(_POSITION, "")
    selection = site.select(entry, query)
    if text.isdecimal() and len(text) < 17:
        position = int(text)
        if selection.page(position, position + 1).indices.tolist() == [index]:
            return position
    return selection.position(index)


def facts(request: Request) -> Response:
    """Answers `/data/N/sample/I/facts`: what decoding the sample shows, as JSON."""
    site = site_of(request)
    entry, shown = sample_of(request)
    found = site.check.examine(site.scan_number(entry), shown.index)
    parts: list[dict[str, Any]] = []
    for part in found.parts:
        described = {name: value for name, value in asdict(part).items() if name != "digest"}
        parts.append({**described, "digest": "" if part.digest is None else part.digest.hex()})
    return JSONResponse({"stage": found.stage, "reason": found.reason, "parts": parts})
