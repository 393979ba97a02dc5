"""What the users of a request pool hold is given back, however they leave it."""

from __future__ import annotations

import threading
import time

import pytest

from energon_dali.shards.storage.request_pool import RequestPool


def test_bytes_of_a_user_are_given_back() -> None:
    pool = RequestPool(read_ahead_bytes=1000)
    one, other = object(), object()
    for user in (one, other):
        pool.join(user)
        pool.hold(user, 300)
    assert (pool.bytes_held, pool.bytes_per_user) == (600, 500)
    pool.hold(one, 100)
    assert pool.bytes_held == 400
    pool.leave(one)
    pool.leave(one)
    pool.hold(one, 50)
    assert (pool.bytes_held, pool.bytes_per_user) == (300, 1000)
    pool.after_fork()  # the requests are the parent's
    assert pool.bytes_held == 0
    pool.hold(other, 20)
    assert pool.bytes_held == 20
    pool.leave(other)
    assert pool.bytes_held == 0


def test_requests_that_wait_are_cancelled_when_the_last_user_leaves() -> None:
    pool = RequestPool(requests_in_flight=1)
    one, other = object(), object()
    pool.join(one)
    pool.join(other)
    begun, ending = threading.Event(), threading.Event()

    def wait() -> str:
        begun.set()
        assert ending.wait(60)
        return "ended"

    running, waiting = pool.submit(1, wait), pool.submit(1, str)
    assert begun.wait(60)
    pool.leave(one)
    assert not waiting.cancelled()
    pool.leave(other)
    assert waiting.cancelled()
    ending.set()
    assert running.result(60) == "ended"
    pool.join(one)
    assert pool.submit(1, lambda: "again").result(60) == "again"
    pool.leave(one)


def test_a_request_is_not_lost_when_the_limit_falls_while_threads_wait() -> None:
    pool, user = RequestPool(), object()
    pool.join(user)
    try:
        threads = pool.limit
        together = threading.Barrier(threads)
        for future in [pool.submit(0, _slowly, together) for _ in range(threads)]:
            future.result(timeout=30)
        deadline = time.monotonic() + 30
        while pool._idle < threads and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pool._idle == threads

        for _ in range(20):  # fast, unless it is interrupted: the limit falls below the number of threads
            pool.submit(0, int).result(timeout=30)
            if pool.limit < threads - 1:
                break

        assert pool.limit < threads - 1
        assert pool.submit(0, int).result(timeout=30) == 0
        assert len(pool._threads) == pool.limit
    finally:
        pool.leave(user)


def test_an_error_of_the_counter_reaches_the_reader_and_ends_no_thread() -> None:
    def count(name: str, amount: int) -> None:
        raise RuntimeError("no more counters")

    pool, user = RequestPool(count, requests_in_flight=1), object()
    pool.join(user)
    try:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no more counters"):
                pool.submit(0, int).result(timeout=30)
    finally:
        pool.leave(user)


def _slowly(together: threading.Barrier) -> None:
    """Takes as long as with a high latency, in all threads at the same time."""
    together.wait(timeout=30)
    time.sleep(0.05)
