"""The pages of blends: the samples of all datasets, and the mixture as it is drawn."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from energon_dali.errors import DatasetError, StorageError
from energon_dali.view.blended import DEFAULT_SAMPLES_PER_STEP, read_blend_query
from energon_dali.view.content import snippets
from energon_dali.view.drawn_mixture import (
    DEFAULT_DRAWS,
    MAX_DRAWS,
    MAX_SAMPLES_PER_STEP,
    MAX_STEPS,
    DrawnMixture,
    drawn_mixture,
    steps_of_schedule,
)
from energon_dali.view.pages import show, site_of
from energon_dali.view.query import PAGE_SIZES


def blend(request: Request) -> Response:
    """Answers `/blend`: the samples of all datasets of a metadataset, in the order of training or by dataset."""
    site = site_of(request)
    if not site.catalog.is_metadataset:
        raise HTTPException(404, "There is one dataset. A blend is what a metadataset names.")
    query = read_blend_query(request.query_params, site.catalog, request.query_params.get("split", ""))
    found = site.blended.page(query, query.start, query.start + query.page_size)
    last_page = None if found.total is None else max(1, -(-found.total // query.page_size))
    if last_page is not None and query.page > last_page:
        query = query.on_page(last_page)
        found = site.blended.page(query, query.start, query.start + query.page_size)
    samples = [one.entry.opened.sample(one.index) for one in found.samples]
    texts: dict[int, str] = {}  # by position
    for entry in {one.entry.number: one.entry for one in found.samples}.values():
        own = [(n, sample) for n, sample in enumerate(samples) if found.samples[n].entry is entry]
        texts |= zip((n for n, _ in own), snippets(entry.opened, [sample for _, sample in own]), strict=True)
    shown = [(one, samples[n], texts[n]) for n, one in enumerate(found.samples)]
    values: dict[str, Any] = {"query": query, "found": found, "shown": shown}
    values |= {"last_page": last_page, "page_sizes": PAGE_SIZES}
    return show(request, "blend", entry=None, **values)


def mixture(request: Request) -> Response:
    """Answers `/mixture`: the share of each dataset that is wanted, and the one that the first draws give."""
    try:
        split, numbers, found = _drawn(request)
    except (DatasetError, StorageError) as error:
        return show(request, "mixture", status=422, entry=None, split="", numbers={}, found=None, problem=str(error))
    limits = {"draws": MAX_DRAWS, "steps": MAX_STEPS, "size": MAX_SAMPLES_PER_STEP}
    return show(request, "mixture", entry=None, split=split, numbers=numbers, found=found, limits=limits, problem="")


def mixture_shares(request: Request) -> Response:
    """Answers `/mixture/shares`: what `/mixture` shows, as JSON."""
    return JSONResponse(asdict(_drawn(request)[2]))


def _drawn(request: Request) -> tuple[str, dict[str, int], DrawnMixture]:
    """Returns (split, numbers of the form, mixture) that an address asks for."""
    site = site_of(request)
    splits = site.catalog.splits
    split = request.query_params.get("split", "")
    split = split if split in splits else next(iter(splits), "train")
    texts = {name: request.query_params.get(name, "") for name in ("draws", "seed", "steps", "size")}
    given = {name: int(text) for name, text in texts.items() if text.isdecimal() and len(text) < 11}
    numbers = {"seed": min(given.get("seed", 0), 999_999_999)}
    schedule, size = site.catalog.schedules.get(split), None
    if schedule is None:
        numbers["draws"] = draws = min(MAX_DRAWS, max(1, given.get("draws", DEFAULT_DRAWS)))
    else:
        numbers["size"] = size = min(MAX_SAMPLES_PER_STEP, max(1, given.get("size", DEFAULT_SAMPLES_PER_STEP)))
        steps = given.get("steps", steps_of_schedule(schedule, size))
        numbers["steps"] = min(MAX_STEPS, max(1, steps))
        draws = numbers["steps"] * size
    found = drawn_mixture(
        site.catalog.path,
        split,
        num_draws=draws,
        samples_per_step=size,
        seed_offset=numbers["seed"],
        allow_imports=site.options.allow_imports,
        allow_code=site.options.allow_code,
    )
    return split, numbers, found
