"""Calls that each wait for storage, several at the same time, in a bounded number of threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from energon_dali.shards.storage.forks import drop_in_child

T = TypeVar("T")
R = TypeVar("R")

MOST_REQUESTS = 64
"""Requests in flight that are kept at a high latency."""
MOST_THREADS = 1024
"""Limit of the user's own number."""
FEWEST_REQUESTS = 8
"""Requests in flight that are kept at a low latency."""
READ_AHEAD_BYTES = 256 << 20
"""Default of `read_ahead_bytes`."""

CALLS_AT_ONCE = 16
"""Calls of `call_together` at the same time."""

_SECONDS_PER_REQUEST = 0.0025
"""Latency that calls for another FEWEST_REQUESTS in flight."""
_MEASURED = 64
"""Requests, of which the fastest is taken for the latency."""


@dataclass(slots=True, eq=False)
class _Request:
    size: int
    call: Callable[[], Any]
    context: Context
    future: Future[Any] = field(default_factory=Future)


class RequestPool:
    """Runs requests in threads, at most `limit` at the same time, in the order in which they were submitted.

    The limit is that of the user, or else follows the measured latency: 8 below 2.5 ms, 64 from 20 ms on. Threads start
    with the first request, and end when the last user has left. They are daemons: a request that hangs does not keep
    the process from ending.

    Args:
        count: Adds to a counter, given its name and an amount; None counts nothing.
        requests_in_flight: Limit of requests at the same time; None adapts it.
        read_ahead_bytes: Bytes that all users together may hold or wait for; None is READ_AHEAD_BYTES.
        thread_name: Of the threads.
    """

    def __init__(
        self,
        count: Callable[[str, int], None] | None = None,
        *,
        requests_in_flight: int | None = None,
        read_ahead_bytes: int | None = None,
        thread_name: str = "energon-dali-read",
    ) -> None:
        self._count = count
        self._thread_name = thread_name
        self._requests_in_flight = requests_in_flight
        self.read_ahead_bytes = READ_AHEAD_BYTES if read_ahead_bytes is None else read_ahead_bytes
        self.is_wanted = bool(read_ahead_bytes)
        """Whether the user asked for reading ahead, of local files too."""
        self.is_allowed = read_ahead_bytes != 0
        """Whether files may be read ahead."""
        self._durations: deque[float] = deque(maxlen=_MEASURED)
        self._measured_limit = 2 * FEWEST_REQUESTS
        self._users: dict[object, int] = {}  # bytes that each of them holds or waits for
        self.after_fork()
        drop_in_child(self)

    def after_fork(self) -> None:
        """Forgets the threads, which do not survive a fork, and what they were given."""
        # Its lock can be taken twice: a user that is collected leaves at any moment, in any thread.
        self._change = threading.Condition(threading.RLock())
        self._waiting: deque[_Request] = deque()
        self._threads: set[object] = set()  # one token per thread, also of one that is about to start
        self._idle = 0  # threads that wait for requests
        self._users = dict.fromkeys(self._users, 0)
        self.bytes_held = 0
        """Bytes that the users together hold or wait for."""

    @property
    def limit(self) -> int:
        """Number of requests that may be in flight now."""
        return self._measured_limit if self._requests_in_flight is None else self._requests_in_flight

    @property
    def bytes_per_user(self) -> int:
        """Bytes that each user may hold or wait for."""
        return self.read_ahead_bytes // max(1, len(self._users))

    def join(self, user: object) -> None:
        """Registers a user, who calls `leave` later."""
        with self._change:
            self._users[user] = 0

    def leave(self, user: object) -> None:
        """Ends a use. The last one stops the threads; requests that have begun end on their own."""
        with self._change:
            self.bytes_held -= self._users.pop(user, 0)
            if self._users:
                return
            waiting, self._waiting = self._waiting, deque()
            self._change.notify_all()
        for request in waiting:
            request.future.cancel()

    def hold(self, user: object, size: int) -> None:
        """Notes how many bytes a user holds or waits for now."""
        with self._change:
            if user in self._users:  # else it has left
                self.bytes_held += size - self._users[user]
                self._users[user] = size

    def submit(self, size: int, call: Callable[..., T], *args: Any) -> Future[T]:
        """Runs a call in a thread, as soon as fewer requests than the limit are in flight.

        Args:
            size: Bytes that it requests.
            call: Makes the request, retries included.
            *args: Its arguments.
        """
        request = _Request(size, partial(call, *args), copy_context())  # retries belong to the loader that reads
        with self._change:
            self._waiting.append(request)
            self._change.notify()
            if self._idle < len(self._waiting) and len(self._threads) < self.limit:
                self._start()
        return request.future

    def _start(self) -> None:
        """Starts another thread."""
        token = object()
        self._threads.add(token)
        try:
            threading.Thread(target=self._run, args=(token,), name=self._thread_name, daemon=True).start()
        except BaseException as error:  # Ctrl-C, or the system allows no more threads
            self._threads.discard(token)
            if not isinstance(error, RuntimeError) or not self._threads:
                raise

    def _run(self, token: object) -> None:
        """Thread body: runs the requests that wait, one after the other."""
        while True:
            with self._change:
                while self._users and not self._waiting and len(self._threads) <= self.limit:
                    self._idle += 1
                    self._change.wait()
                    self._idle -= 1
                if not self._waiting or len(self._threads) > self.limit:
                    self._threads.discard(token)
                    if self._waiting:  # the limit fell, so this thread is one too many: wake another for the request
                        self._change.notify()
                    return
                request = self._waiting.popleft()
            future = request.future
            if future.set_running_or_notify_cancel():
                start = time.perf_counter()
                try:
                    result = request.context.run(request.call)
                    self._note(time.perf_counter() - start, request.size)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del request, future

    def _note(self, seconds: float, size: int) -> None:
        self._durations.append(seconds)
        latency = min(self._durations)
        self._measured_limit = min(MOST_REQUESTS, FEWEST_REQUESTS * (1 + int(latency / _SECONDS_PER_REQUEST)))
        if self._count is not None:
            self._count("read_ahead.requests", 1)
            self._count("read_ahead.bytes_fetched", size)
            self._count("read_ahead.request_microseconds", int(seconds * 1e6))

    def count_wanted(self, size: int) -> None:
        """Counts the bytes of samples that requests are made for."""
        if self._count is not None:
            self._count("read_ahead.bytes_wanted", size)

    def count_on_demand(self, size: int) -> None:
        """Counts bytes of parts that were not read ahead and are fetched while the part is decoded."""
        if self._count is not None:
            self._count("media.bytes_on_demand", size)


def map_in_threads(
    function: Callable[[T], R], items: Sequence[T], threads: int, room: Callable[[], int] | None = None
) -> Iterator[R]:
    """Yields `function(item)` for each item, in order, several of them worked on at the same time.

    Args:
        function: Called in threads, in the context of the caller.
        items: Its arguments.
        threads: Calls at the same time.
        room: Returns the number of the first item that must not be started yet; None starts all of them.
    """
    pool, user = RequestPool(requests_in_flight=max(1, min(threads, len(items)))), object()
    pool.join(user)
    waiting: deque[Future[R]] = deque()
    following = 0
    try:
        while following < len(items) or waiting:
            while following < min(len(items), len(items) if room is None else room()):
                waiting.append(pool.submit(0, function, items[following]))
                following += 1
            yield waiting.popleft().result()
    finally:
        pool.leave(user)


def call_together(call: Callable[[int], T], numbers: Sequence[int]) -> dict[int, T | Exception]:
    """Returns what a function returns or raises for each of several numbers.

    Args:
        call: Called in threads, in the context of the caller.
        numbers: Its arguments, all different.
    """

    def attempt(number: int) -> T | Exception:
        try:
            return call(number)
        except Exception as error:
            return error

    found = map(attempt, numbers) if len(numbers) < 2 else map_in_threads(attempt, numbers, CALLS_AT_ONCE)
    return dict(zip(numbers, found, strict=True))
