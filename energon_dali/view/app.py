"""The web application: which address is answered by what; served on loopback until it is interrupted."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from energon_dali.errors import ConfigError, DecodeError, EnergonDaliError
from energon_dali.view import blend_pages, choosing, comparison, pages, run_pages
from energon_dali.view.content import send_part
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.guard import DATA_POLICY, Guard, new_token
from energon_dali.view.site import STATIC, Site
from energon_dali.view.thumbnail import convert_image, make_strip, make_thumbnail, make_waveform
from energon_dali.view.viewed_sample import ViewedPart, ViewedSample

_SAMPLE = "/data/{dataset:int}/sample/{index:int}"
_PART = _SAMPLE + "/part/{part:int}"
_PICTURE_HEADERS = {"cache-control": "private, max-age=3600", "content-security-policy": DATA_POLICY}


def create_app(site: Site, token: str) -> Guard:
    """Returns the application: pages of a site, protected by a guard.

    Args:
        site: What is shown. It is closed when the application ends.
        token: The secret that a browser needs.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(site.close)

    runs = Lane(1)
    checks, encodings, pictures, queries = Lane(1), Lane(1), Lane(max(2, os.cpu_count() or 1)), Lane(4)
    routes = [
        Route("/", pages.home),
        Route("/data/{dataset:int}", pages.grid),
        Route("/data/{dataset:int}/find", pages.find),
        Route("/data/{dataset:int}/facets", queries(pages.facets)),
        Route("/data/{dataset:int}/chosen", choosing.change, methods=["POST"]),
        Route("/data/{dataset:int}/chosen.{ending}", queries(choosing.export)),
        Route("/data/{dataset:int}/chosen/open", choosing.open_file, methods=["POST"]),
        Route("/data/{dataset:int}/tags", choosing.tag, methods=["POST"]),
        Route("/data/{dataset:int}/compare", comparison.compare_chosen),
        Route("/compare", queries(comparison.compare)),
        Route("/data/{dataset:int}/failures", queries(pages.failures)),
        Route("/data/{dataset:int}/statistics", queries(pages.statistics)),
        Route("/blend", queries(blend_pages.blend)),
        Route("/mixture", queries(blend_pages.mixture)),
        Route("/mixture/shares", queries(blend_pages.mixture_shares)),
        Route(f"{_SAMPLE}/encoded", encodings(pages.encoded_sample)),
        Route("/run", runs(run_pages.run)),
        Route("/run/step/{step:int}", runs(run_pages.step)),
        Route("/encoder", encodings(pages.encoded_batch)),
        Route("/encoder/reload", pages.reload_encoder, methods=["POST"]),
        Route("/encoder/image/{view}/{number:int}", pages.encoded_image),
        Route(_SAMPLE, pages.sample),
        Route(f"{_SAMPLE}/facts", checks(pages.facts)),
        Route(_PART, part),
        Route(f"{_PART}/text", queries(pages.more_text)),
        Route(f"{_PART}/thumbnail", pictures(partial(picture, make_thumbnail))),
        Route(f"{_PART}/image", pictures(partial(picture, convert_image))),
        Route(f"{_PART}/strip", pictures(partial(picture, make_strip))),
        Route(f"{_PART}/waveform", pictures(partial(picture, make_waveform))),
        Route(f"{_PART}/pixel", pictures(pages.pixel)),
        Route("/scan", pages.scan_progress),
        Route("/scan/start", pages.start_scan, methods=["POST"]),
        Route("/scan/cancel", pages.cancel_scan, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, EnergonDaliError, OSError), _show_error)
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


def picture(make: Callable[[ViewedDataset, ViewedSample, ViewedPart], tuple[bytes, str]], request: Request) -> Response:
    """Answers `.../part/P/thumbnail`, `image`, `strip`, `waveform`: what a function of `thumbnail` makes of a part."""
    entry, sample, found = pages.part_of(request)
    try:
        content, kind = make(entry.opened, sample, found)
    except (EnergonDaliError, OSError, ValueError):  # a browser shows it in place of the image
        headers = {"content-security-policy": DATA_POLICY}
        return FileResponse(STATIC / "broken.svg", 422, headers, "image/svg+xml")
    return Response(content, 200 if content else 204, _PICTURE_HEADERS, kind)


def _show_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
    else:
        status, message = 422 if isinstance(error, DecodeError) else 500, str(error)
    if "application/json" in request.headers.get("accept", ""):  # a script of a page
        return JSONResponse({"error": message}, status)
    return pages.show(request, "error", status=status, entry=None, message=message)


HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 2
"""How long the end waits for browsers: one may hold a connection open on which it asks for nothing."""


def serve(site: Site, port: int, announce: Callable[[str], None]) -> None:
    """Serves a site until Ctrl-C or SIGTERM.

    Args:
        site: What is shown; it is closed at the end.
        port: Port on 127.0.0.1; 0 takes a free one.
        announce: Called with the address, which has the token, when the browser may open it.

    Raises:
        ConfigError: The port is in use, or may not be used.
    """
    token = new_token()
    with listen(port) as listener:
        announce(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
        with suppress(KeyboardInterrupt):  # which the server raises again when it has ended
            make_server(site, token).run(sockets=[listener])


def make_server(site: Site, token: str) -> uvicorn.Server:
    """Returns a server that is not running yet.

    Args:
        site: What is shown; it is closed when the server ends.
        token: The secret that a browser needs.
    """
    # No access log: the first address has the token.
    config = uvicorn.Config(
        create_app(site, token), log_level="warning", access_log=False, server_header=False, lifespan="on", ws="none"
    )
    return _Server(config, site)


class _Server(uvicorn.Server):
    """Stops what requests wait for when the end begins, and closes the connections that are open some time later."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, self._close_connections)
        stopping = asyncio.create_task(asyncio.to_thread(self._site.stop))  # the end waits for all requests
        await super().shutdown(sockets)
        await stopping

    def _close_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def listen(port: int) -> socket.socket:
    """Returns a socket that listens on loopback.

    Args:
        port: The port; 0 takes a free one.

    Raises:
        ConfigError: The port is in use, or may not be used.
    """
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        raise ConfigError(
            f"Port {port} of {HOST} cannot be used: {error.strerror}. Give another --port, or none for a free one."
        ) from error
