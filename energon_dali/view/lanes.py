"""Lanes for slow requests: those that wait for one another take no thread from the other pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

Answer = Callable[[Request], Response]


class Lane:
    """Lets a limited number of requests work at the same time, each in a thread; the others wait without one.

    Args:
        width: How many.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._limiter: anyio.CapacityLimiter | None = None

    def __call__(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Returns a function that answers in this lane.

        Args:
            answer: Answers a request; it may block.
        """

        async def wait(request: Request) -> Response:
            if self._limiter is None:  # it belongs to the event loop of the server
                self._limiter = anyio.CapacityLimiter(self._width)
            return await anyio.to_thread.run_sync(answer, request, limiter=self._limiter)

        return wait
