"""Answers that choose samples, tag them, and export them to files of keys or choose those of such a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from energon_dali.errors import ConfigError, EnergonDaliError
from energon_dali.plan.rng import Int64Array
from energon_dali.view.catalog import CatalogEntry
from energon_dali.view.chosen import export_lines, find_in_file
from energon_dali.view.grid_choice import check_query
from energon_dali.view.pages import entry_of, site_of, way_back
from energon_dali.view.query import GridQuery, read_query
from energon_dali.view.site import Site
from energon_dali.view.sorted_samples import all_of

MAX_OPENED_BYTES = 256 << 20
"""Largest file of keys that a browser may send."""
_MAX_FORM_BYTES = 1 << 16
_MOST_NAMED = 1000
"""Samples that an address may name one by one."""
_MOST_DIGITS = 16
_SHOWN_MISSING = 5
_TYPES = {"jsonl": "application/jsonl", "txt": "text/plain; charset=utf-8"}


async def change(request: Request) -> Response:
    """Answers POST `/data/N/chosen`: chooses samples that are named, or those of a list by position, or all of it."""
    return await run_in_threadpool(_change, request, await _fields_of(request))


def _change(request: Request, given: Mapping[str, str]) -> Response:
    site, entry = site_of(request), entry_of(request)
    numbers = _numbers_of(entry, site, given)
    try:
        site.chosen(entry).change(given.get("action", ""), numbers)
    except ConfigError as error:
        raise HTTPException(422, str(error)) from error
    return _answer(request, {"chosen": len(site.chosen(entry))})


async def _fields_of(request: Request) -> dict[str, str]:
    """Returns the fields of the address and of the form.

    Raises:
        HTTPException: The form is too large.
    """
    content = await _read_body(request, _MAX_FORM_BYTES)
    if content is None:
        raise HTTPException(413, f"A form of this page has at most {_MAX_FORM_BYTES:,} bytes.")
    return {**request.query_params, **dict(parse_qsl(content.decode("utf-8", "replace"), keep_blank_values=True))}


async def _read_body(request: Request, most: int) -> bytes | None:
    """Returns what a request holds; None if it is more than `most` bytes."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > most:
            return None
    return bytes(content)


def _numbers_of(entry: CatalogEntry, site: Site, given: Mapping[str, str]) -> Int64Array:
    """Returns the samples that some fields name.

    Positions, `from` and `to`, need `seen`: the versions of the list that the pages with them showed.

    Raises:
        HTTPException: They name none, or the list has changed.
    """
    if "samples" in given:
        texts = [text for text in given["samples"].split(",") if text]
        if len(texts) > _MOST_NAMED or not all(map(_is_number, texts)):
            raise HTTPException(422, f"Give at most {_MOST_NAMED:,} numbers of samples, with commas between them.")
        numbers = np.array([int(text) for text in texts], np.int64)
        return numbers[numbers < entry.opened.num_samples]
    if given.get("all") == "1":  # in any order
        return all_of(site.select(entry, _whole_query(entry, site, {**given, "sort": ""})))
    query = _whole_query(entry, site, given)
    texts = [given.get("from", ""), given.get("to", "")]
    if not all(map(_is_number, texts)):
        raise HTTPException(422, "Name the samples: by number, by their positions in the list, or all of it.")
    first, last = sorted(map(int, texts))
    selection = site.select(entry, query)
    found = selection.page(first, last + 1).indices
    version = site.list_version(selection, selection.page(0, 0))  # after, as a scan goes on meanwhile
    if {*given.get("seen", "").split(",")} != {version}:
        raise HTTPException(
            409,
            "The list has changed since its page was loaded. Load the page again, and click both ends of the range.",
        )
    return found


def _whole_query(entry: CatalogEntry, site: Site, given: Mapping[str, str]) -> GridQuery:
    """Returns the query of some fields; with conditions left out, it would name more samples than the page shows.

    Raises:
        HTTPException: A condition cannot be used, such as a tag that is gone.
    """
    query, wrong = read_query(given)
    query, gone = check_query(site, entry, query)
    if wrong or gone:
        raise HTTPException(422, [*wrong, *gone][0])
    return query


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def export(request: Request) -> Response:
    """Answers `/data/N/chosen.jsonl` and `.txt`: a file of keys with the chosen samples, or with those of a tag."""
    site, entry = site_of(request), entry_of(request)
    ending, tag = request.path_params["ending"], request.query_params.get("tag", "")
    if ending not in _TYPES:
        raise HTTPException(404, "Samples are exported as .jsonl or .txt.")
    try:
        numbers = site.tags(entry).samples(tag) if tag else site.chosen(entry).numbers
    except ConfigError as error:
        raise HTTPException(404, str(error)) from error
    except EnergonDaliError as error:  # the file of the tag is damaged
        raise HTTPException(422, str(error)) from error
    name = f"{entry.name}-{tag or 'chosen'}.{ending}"
    headers = {"content-disposition": f"attachment; filename*=utf-8''{quote(name)}"}
    lines: Iterable[str] = export_lines(entry.opened, numbers, as_text=ending == "txt")
    if ending == "txt":  # all of them first: plain text cannot hold every key
        try:
            lines = list(lines)
        except ConfigError as error:
            raise HTTPException(422, str(error)) from error
    return StreamingResponse((text.encode() for text in lines), 200, headers, _TYPES[ending])


async def open_file(request: Request) -> Response:
    """Answers POST `/data/N/chosen/open?name=NAME`: chooses the samples that the file in the body names, as JSON."""
    content = await _read_body(request, MAX_OPENED_BYTES)
    if content is None:
        text = f"The file has more than {MAX_OPENED_BYTES >> 20} MiB. Start the command with --choose FILE."
        return JSONResponse({"error": text}, 413)
    return await run_in_threadpool(_open, request, content)


def _open(request: Request, content: bytes) -> Response:
    site, entry = site_of(request), entry_of(request)
    try:
        name = request.query_params.get("name", "").replace("\0", "").rpartition("/")[2]
        choose_file(site, entry, content, name)
    except EnergonDaliError as error:
        return JSONResponse({"error": str(error)}, 422)
    return JSONResponse({"chosen": len(site.chosen(entry))})


def choose_file(site: Site, entry: CatalogEntry, content: bytes, name: str) -> None:
    """Chooses the samples that a file of keys names, and no others.

    Args:
        site: The site.
        entry: The dataset.
        content: Content of the file.
        name: Name of the file.

    Raises:
        ConfigError: It names samples that the dataset does not have, or its name has another ending.
        DatasetError: A line is malformed, or an index is damaged.
        StorageError: An index cannot be read.
    """
    numbers, missing = find_in_file(entry.opened, content, name)
    if missing:
        shown = ", ".join(str(one)[:100] for one in missing[:_SHOWN_MISSING])
        raise ConfigError(
            f"{name} names {len(missing):,} {'sample' if len(missing) == 1 else 'samples'} that {entry.name} does not "
            f"have: {shown}"
            f"{', ...' if len(missing) > _SHOWN_MISSING else ''}. Nothing was chosen."
        )
    site.chosen(entry).change("only", numbers)


async def tag(request: Request) -> Response:
    """Answers POST `/data/N/tags?name=NAME`: gives a tag to samples, takes it from them, or removes it."""
    return await run_in_threadpool(_tag, request, await _fields_of(request))


def _tag(request: Request, given: Mapping[str, str]) -> Response:
    site, entry = site_of(request), entry_of(request)
    name, action, tags = given.get("name", "").strip(), given.get("action", ""), site.tags(entry)
    if action not in ("add", "remove", "delete"):
        raise HTTPException(422, "A tag can be added, removed or deleted.")
    try:
        if action == "delete":
            tags.remove(name)
        else:
            named = _numbers_of(entry, site, given) if "samples" in given else site.chosen(entry).numbers
            tags.change(name, action, named)
    except EnergonDaliError as error:
        raise HTTPException(422, str(error)) from error
    return _answer(request, {"tags": tags.names()})


def _answer(request: Request, values: dict[str, Any]) -> Response:
    """Returns JSON to a script, and leads a form back to its page."""
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse(values)
    return RedirectResponse(way_back(request), 303)
