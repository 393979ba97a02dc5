"""What the users of a request pool hold is given back, however they leave it."""

from __future__ import annotations

import threading

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
