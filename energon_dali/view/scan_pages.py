"""The pages about what a scan found, and about the mixture of a metadataset; each function answers one address."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from energon_dali.errors import DatasetError
from energon_dali.view.mixture import DEFAULT_DRAWS, MAX_DRAWS, drawn_mixture
from energon_dali.view.pages import entry_of, show, site_of
from energon_dali.view.statistics import collect_statistics, group_failures

_MOST_FAILURES = 1000


def statistics(request: Request) -> Response:
    """Answers `/data/N/statistics`: figures and charts of what was scanned, of all samples or of a split."""
    site, entry = site_of(request), entry_of(request)
    dataset = entry.opened
    split = request.query_params.get("split", "")
    split = split if split in dataset.split_parts else ""
    rows = dataset.rows(split or None)
    ranges = list(zip(rows.starts.tolist(), (rows.starts + rows.lengths).tolist(), strict=True))
    number = site.scan_number(entry)
    return show(
        request,
        "statistics",
        entry=entry,
        dataset=dataset,
        split=split,
        num_rows=len(rows),
        progress=site.scan.progress(number),
        found=collect_statistics(site.scan, source=number, ranges=ranges),
    )


def failures(request: Request) -> Response:
    """Answers `/data/N/failures`: the samples of which a scan found that they fail, with the reason."""
    site, entry = site_of(request), entry_of(request)
    if entry.dataset is None:
        raise DatasetError(entry.error)
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


def mixture(request: Request) -> Response:
    """Answers `/mixture`: the share of each dataset that is wanted, and the one that the first draws give."""
    site = site_of(request)
    splits = site.catalog.splits
    split = request.query_params.get("split", "")
    split = split if split in splits else next(iter(splits), "train")
    numbers = {name: request.query_params.get(name, "") for name in ("draws", "seed")}
    given = {name: int(text) for name, text in numbers.items() if text.isdecimal() and len(text) < 10}
    draws = min(MAX_DRAWS, max(1, given.get("draws", DEFAULT_DRAWS)))
    seed = given.get("seed", 0)
    found = drawn_mixture(
        site.catalog.path,
        split,
        num_draws=draws,
        seed_offset=seed,
        trust_dataset_code=site.options.trust_dataset_code,
    )
    return show(request, "mixture", entry=None, split=split, draws=draws, seed=seed, found=found, most=MAX_DRAWS)


def progress(request: Request) -> Response:
    """Answers `/scan`: how far the scan of all datasets is, as JSON."""
    found = site_of(request).scan.progress()
    return JSONResponse({**asdict(found), "share": found.share, "complete": found.is_complete})


def start(request: Request) -> Response:
    """Answers POST `/scan/start`."""
    site_of(request).scan.start()
    return RedirectResponse(way_back(request), 303)


def cancel(request: Request) -> Response:
    """Answers POST `/scan/cancel`."""
    site_of(request).scan.cancel()
    return RedirectResponse(way_back(request), 303)


def way_back(request: Request) -> str:
    """Returns the path to go back to: one of this site, never another host."""
    path = request.query_params.get("back", "/")
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"
