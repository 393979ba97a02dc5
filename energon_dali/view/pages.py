"""The pages; each function answers one address.

They are about datasets and their samples, what the user's task encoder makes of them, and what a scan found.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from energon_dali.errors import DatasetError, EnergonDaliError, StorageError
from energon_dali.shards.measures.places import measures_of_sample
from energon_dali.view.blended import Place
from energon_dali.view.catalog import CatalogEntry
from energon_dali.view.content import AV_TYPES, more_of_part, show_part, snippets
from energon_dali.view.encoded import EncodedViews
from energon_dali.view.grid_choice import check_query, grid_choice
from energon_dali.view.guard import DATA_POLICY
from energon_dali.view.json_fields import field_table, find_facets
from energon_dali.view.query import PAGE_SIZES, GridQuery, describe, read_query
from energon_dali.view.site import Site
from energon_dali.view.statistics import collect_statistics, group_failures
from energon_dali.view.viewed_sample import ViewedPart, ViewedSample

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
    if entry.dataset is None:
        raise HTTPException(404, f"{entry.name} cannot be opened: {entry.error}")
    return entry


def sample_of(request: Request) -> tuple[CatalogEntry, ViewedSample]:
    """Returns (dataset, sample) that an address names.

    Raises:
        HTTPException: There is none.
        DatasetError: The index is damaged.
    """
    entry = entry_of(request)
    index = request.path_params["index"]
    if not 0 <= index < entry.opened.num_samples:
        raise HTTPException(404, f"{entry.name} has {entry.opened.num_samples:,} samples, and none numbered {index}.")
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
    query, unknown = check_query(site, entry, query)
    wrong += unknown
    selection = site.select(entry, query)
    page = selection.page(query.start, query.start + query.page_size)
    last_page = max(1, -(-page.found // query.page_size))
    if page.searched >= 1 and query.page > last_page:
        query = query.on_page(last_page)
        page = selection.page(query.start, query.start + query.page_size)
    samples = [dataset.sample(index) for index in page.indices.tolist()]
    progress = site.scan.progress(site.scan_number(entry)) if selection.waits_for_scan else None
    return show(
        request,
        "grid",
        entry=entry,
        query=query,
        fields=query.fields(),
        conditions=list(describe(query)),
        wrong=wrong,
        found=page,
        list_version=site.list_version(selection, page),
        shown=list(zip(samples, snippets(dataset, samples) if not query.view else [""] * len(samples), strict=True)),
        table=field_table(dataset, samples) if query.view == "table" else None,
        last_page=last_page,
        page_sizes=PAGE_SIZES,
        progress=progress,
        choice=grid_choice(site, entry, query, samples),
        is_incomplete=page.searched < 1 and len(samples) < query.page_size and not page.error,
    )


def facets(request: Request) -> Response:
    """Answers `/data/N/facets`: the fields of JSON parts, and how many samples of a grid have each value, as JSON."""
    site, entry = site_of(request), entry_of(request)
    query, _ = read_query(request.query_params)
    query, _ = check_query(site, entry, query)
    if query.split not in entry.opened.split_parts:
        query = replace(query, split="")
    ranges = site.rows(entry, query).ranges if query.split or query.shard or query.tag or query.chosen else None
    number = site.scan_number(entry)
    found = [
        {
            **asdict(facet),
            "values": [
                {
                    "value": str(value),
                    "count": count,
                    "href": f"/data/{entry.number}{query.with_field(facet.name, value).address()}",
                }
                for value, count in facet.values
            ],
        }
        for facet in find_facets(site.scan, query.wanted, source=number, ranges=ranges)
    ]
    return JSONResponse({"facets": found, "share": site.scan.progress(number).share})


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
    position, neighbours, back = site.blended.place(request.query_params) or _place_in_grid(
        request, site, entry, shown.index
    )
    media_first = sorted(shown.parts, key=lambda part: part.kind not in ("image", "av"))
    return show(
        request,
        "sample",
        entry=entry,
        sample=shown,
        parts=[show_part(dataset, shown, part) for part in media_first],
        splits=dataset.parts_of(shown.index),
        measures=measures_of(dataset, shown.index),
        command=dataset.restore_command(shown),
        playable=AV_TYPES,
        position=position,
        neighbours=neighbours,
        choice=grid_choice(site, entry, GridQuery(), [shown]),
        back=back,
    )


def _place_in_grid(request: Request, site: Site, entry: CatalogEntry, index: int) -> Place:
    """Returns where a sample is among those of the grid that it was reached from."""
    query, _ = check_query(site, entry, read_query(request.query_params)[0])
    position = _position_of(request, site, entry, query, index)
    neighbours: dict[str, str | None] = {"previous": None, "next": None}
    if position is not None:
        selection = site.select(entry, query)
        for name, other in (("previous", position - 1), ("next", position + 1)):
            found = selection.page(other, other + 1).indices.tolist() if other >= 0 else []
            if found:
                address = query.address(page=None, **{_POSITION: other})
                neighbours[name] = f"/data/{entry.number}/sample/{found[0]}{address}"
    grid_page = 1 if position is None else position // query.page_size + 1
    return position, neighbours, f"/data/{entry.number}{query.on_page(grid_page).address()}"


def measures_of(dataset: Any, index: int) -> list[tuple[str, dict[str, int]]]:
    """Returns (task encoder, values by name) of a sample, for each that has measured the dataset.

    Args:
        dataset: The dataset.
        index: Number of the sample.
    """
    data = getattr(dataset, "folder", None) or getattr(dataset, "file", None)
    try:
        return [] if data is None else measures_of_sample(data, index)
    except (DatasetError, StorageError):  # the sample is shown without them
        return []


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
    parts = [{**asdict(part), "digest": "" if part.digest is None else part.digest.hex()} for part in found.parts]
    return JSONResponse({"stage": found.stage, "reason": found.reason, "parts": parts})


def pixel(request: Request) -> Response:
    """Answers `.../part/P/pixel?x=X&y=Y`: what an image stores at a place, 0 to 1 from its edges, as JSON."""
    entry, shown, part = part_of(request)
    try:
        x, y = (float(request.query_params.get(name, "0")) for name in ("x", "y"))
        if not (math.isfinite(x) and math.isfinite(y)):
            raise ValueError("not a place")
        found = site_of(request).pixels.at(entry.opened, (shown, part), x, y)
    except (EnergonDaliError, OSError, ValueError) as error:
        return JSONResponse({"error": str(error)[:500]}, 422)
    return JSONResponse(found)


def more_text(request: Request) -> Response:
    """Answers `.../part/P/text?start=BYTE`: what follows on the page, and where the rest begins, as JSON."""
    entry, shown, part = part_of(request)
    given = request.query_params.get("start", "")
    start = int(given) if given.isdecimal() and len(given) < 17 else 0
    text, rest = more_of_part(entry.opened, shown, part, min(start, part.size))
    return JSONResponse({"text": text, "rest": rest}, headers={"content-security-policy": DATA_POLICY})


def _encoded(request: Request) -> EncodedViews:
    found = site_of(request).encoded
    if found is None:
        raise HTTPException(404, "No task encoder was given. Start the command with --encoder MODULE:CLASS.")
    return found


def encoded_batch(request: Request) -> Response:
    """Answers `/encoder`: the first batch of training."""
    view = _encoded(request).batch()
    return show(request, "encoder", entry=None, view=view, sample=None)


def encoded_sample(request: Request) -> Response:
    """Answers `/data/N/sample/I/encoded`: what the encoder makes of a sample."""
    encoded = _encoded(request)
    entry, found = sample_of(request)
    view = encoded.sample(entry.path, found.index, _split_of(entry, found.index))
    return show(request, "encoder", entry=entry, view=view, sample=found)


def _split_of(entry: CatalogEntry, index: int) -> str:
    """Returns the split, of the metadataset if there is one, in which a sample is; "train" if it is in none."""
    known = entry.opened.split_parts
    parts = entry.opened.parts_of(index)
    if entry.uses:
        return next((use.split for use in entry.uses if use.split_part in parts or not known), entry.uses[0].split)
    return next(iter(parts), "train")


def encoded_image(request: Request) -> Response:
    """Answers `/encoder/image/VIEW/NUMBER`: an image of a view."""
    found = _encoded(request).image(request.path_params["view"], request.path_params["number"])
    if found is None:
        raise HTTPException(404, "This image is no longer kept. Open its page again.")
    return Response(found, 200, {"content-security-policy": DATA_POLICY}, "image/png")


def reload_encoder(request: Request) -> Response:
    """Answers POST `/encoder/reload`: loads the encoder again, after a change of its code."""
    _encoded(request).reload()
    return RedirectResponse(way_back(request), 303)


_MOST_FAILURES = 1000


def statistics(request: Request) -> Response:
    """Answers `/data/N/statistics`: figures and charts of what was scanned, of all samples or of a split."""
    site, entry = site_of(request), entry_of(request)
    dataset = entry.opened
    split = request.query_params.get("split", "")
    split = split if split in dataset.split_parts else ""
    rows = dataset.rows(split or None)
    number = site.scan_number(entry)
    return show(
        request,
        "statistics",
        entry=entry,
        split=split,
        num_rows=len(rows),
        progress=site.scan.progress(number),
        found=collect_statistics(site.scan, source=number, ranges=rows.ranges),
    )


def failures(request: Request) -> Response:
    """Answers `/data/N/failures`: the samples of which a scan found that they fail, with the reason."""
    site, entry = site_of(request), entry_of(request)
    number = site.scan_number(entry)
    return show(
        request,
        "failures",
        entry=entry,
        progress=site.scan.progress(number),
        groups=group_failures(site.scan, source=number),
        failures=site.scan.failures(source=number, limit=_MOST_FAILURES),
        most=_MOST_FAILURES,
        note=site.scan.note(number),
    )


def scan_progress(request: Request) -> Response:
    """Answers `/scan`: how far the scan of all datasets is, as JSON."""
    found = site_of(request).scan.progress()
    return JSONResponse({**asdict(found), "share": found.share, "complete": found.is_complete})


def start_scan(request: Request) -> Response:
    """Answers POST `/scan/start`."""
    site_of(request).scan.start()
    return RedirectResponse(way_back(request), 303)


def cancel_scan(request: Request) -> Response:
    """Answers POST `/scan/cancel`."""
    site_of(request).scan.cancel()
    return RedirectResponse(way_back(request), 303)


def way_back(request: Request) -> str:
    """Returns the path to go back to: one of this site, never another host."""
    path = request.query_params.get("back", "/")
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"
