"""The web application: which address is answered by what."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from energon_dali.errors import DecodeError, EnergonDaliError
from energon_dali.view import pages
from energon_dali.view.dataset import ViewedDataset, ViewedPart, ViewedSample
from energon_dali.view.guard import DATA_POLICY, Guard
from energon_dali.view.part_response import send_part
from energon_dali.view.site import STATIC, Site
from energon_dali.view.thumbnail import convert_image, make_strip, make_thumbnail

_SAMPLE = "/data/{dataset:int}/sample/{index:int}"
_PART = _SAMPLE + "/part/{part:int}"
_PICTURE_HEADERS = {"cache-control": "private, max-age=3600", "content-security-policy": DATA_POLICY}


def create_app(site: Site, token: str) -> Guard:
    """Returns the application: pages of a site, behind a guard.

    Args:
        site: What is shown. It is closed when the application ends.
        token: The secret that a browser needs.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(site.close)

    checks, encodings, pictures, queries = Lane(1), Lane(1), Lane(max(2, os.cpu_count() or 1)), Lane(4)
    routes = [
        Route("/", pages.home),
        Route("/data/{dataset:int}", pages.grid),
        Route("/data/{dataset:int}/find", pages.find),
        Route("/data/{dataset:int}/failures", queries(pages.failures)),
        Route("/data/{dataset:int}/statistics", queries(pages.statistics)),
        Route("/mixture", queries(pages.mixture)),
        Route(f"{_SAMPLE}/encoded", encodings(pages.encoded_sample)),
        Route("/encoder", encodings(pages.encoded_batch)),
        Route("/encoder/reload", pages.reload_encoder, methods=["POST"]),
        Route("/encoder/image/{view}/{number:int}", pages.encoded_image),
        Route(_SAMPLE, pages.sample),
        Route(f"{_SAMPLE}/facts", checks(pages.facts)),
        Route(_PART, part),
        Route(f"{_PART}/thumbnail", pictures(thumbnail)),
        Route(f"{_PART}/image", pictures(image)),
        Route(f"{_PART}/strip", pictures(strip)),
        Route("/scan", pages.scan_progress),
        Route("/scan/start", pages.start_scan, methods=["POST"]),
        Route("/scan/cancel", pages.cancel_scan, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        HTTPException: _show_http_error,
        EnergonDaliError: _show_error,
        OSError: _show_error,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.state.site = site
    return Guard(app, token)


class Lane:
    """Lets a limited number of requests work at the same time, each in a thread; the others wait without one.

    Args:
        width: How many.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._limiter: anyio.CapacityLimiter | None = None

    def __call__(self, answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Returns a function that answers in this lane.

        Args:
            answer: Answers a request; it may block.
        """

        async def wait(request: Request) -> Response:
            if self._limiter is None:  # it belongs to the event loop of the server
                self._limiter = anyio.CapacityLimiter(self._width)
            return await anyio.to_thread.run_sync(answer, request, limiter=self._limiter)

        return wait


def part(request: Request) -> Response:
    """Answers `.../part/P`: the bytes of a part."""
    entry, sample, found = pages.part_of(request)
    return send_part(request, entry.opened, sample, found)


def thumbnail(request: Request) -> Response:
    """Answers `.../part/P/thumbnail`: a small picture of a media part."""
    return _picture(request, make_thumbnail)


def image(request: Request) -> Response:
    """Answers `.../part/P/image`: an image in a format that every browser shows."""
    return _picture(request, convert_image)


def strip(request: Request) -> Response:
    """Answers `.../part/P/strip`: frames of a video, side by side."""
    return _picture(request, make_strip)


def _picture(
    request: Request, make: Callable[[ViewedDataset, ViewedSample, ViewedPart], tuple[bytes, str]]
) -> Response:
    entry, sample, found = pages.part_of(request)
    try:
        content, kind = make(entry.opened, sample, found)
    except (EnergonDaliError, OSError, ValueError):  # a browser shows it in place of the image
        headers = {"content-security-policy": DATA_POLICY}
        return FileResponse(STATIC / "broken.svg", 422, headers, "image/svg+xml")
    return Response(content, 200, _PICTURE_HEADERS, kind)


def _show_http_error(request: Request, error: HTTPException) -> Response:
    return _error_page(request, error.status_code, error.detail)


def _show_error(request: Request, error: Exception) -> Response:
    return _error_page(request, 422 if isinstance(error, DecodeError) else 500, str(error))


def _error_page(request: Request, status: int, message: str) -> Response:
    return pages.show(request, "error", status=status, entry=None, message=message)
