"""Follows all streams of a process: plans what they use, tells the other processes, and fetches ahead."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from concurrent.futures import Future as Result
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from energon_dali.cache.shard_cache.cached_reader import CachedReader
from energon_dali.cache.shard_cache.follower import PlanFollower
from energon_dali.cache.shard_cache.future import Future, StreamFuture
from energon_dali.cache.shard_cache.plan_file import PlanFile
from energon_dali.errors import EnergonDaliError

if TYPE_CHECKING:
    from energon_dali.cache.shard_cache.node_cache import NodeCache

MOST_USES = 1 << 17
"""Uses of blocks that a process plans and publishes: at most 3 MB."""
FEWEST_USES = 1 << 12
"""The same for each of very many streams."""

_TURN_SECONDS = 0.1
_PUBLISH_SECONDS = 1.0
_PAUSE_SECONDS = 0.25
"""After a block was not worth keeping, fetching ahead waits for this long."""
_LOOKED_AT = 256
"""Uses that are looked at in one turn."""
_PRIOR_POSITIONS = 1000.0
_PRIOR_SECONDS = 1.0
_OPEN_SHARDS = 64

_log = logging.getLogger(__name__)


class Planner:
    """A thread that plans for the streams of this process.

    Args:
        cache: The cache of this process.
        fill_requests: Blocks that are fetched ahead at the same time; 0 fetches none.
    """

    def __init__(self, cache: NodeCache, fill_requests: int) -> None:
        self._cache = cache
        self._fill_requests = fill_requests
        self._file: PlanFile | None = None
        self._begin()

    def _begin(self) -> None:
        self._followers: list[weakref.ref[PlanFollower]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._settled = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._filling: dict[tuple[bytes, int], Result[bool]] = {}
        self._cursors: weakref.WeakKeyDictionary[PlanFollower, int] = weakref.WeakKeyDictionary()
        self._paused_until = 0.0
        self._readers: dict[str, CachedReader] = {}
        self._published_at = 0.0
        self._published: list[PlanFollower] = []
        self._changed = False
        self._pace = _Pace()

    def add(self, follower: PlanFollower) -> None:
        """Starts to follow a stream, until nothing refers to the follower."""
        with self._lock:
            self._followers.append(weakref.ref(follower))
            self._changed = True
            for one in self._live():
                one.most_uses = max(FEWEST_USES, MOST_USES // len(self._followers))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="energon-dali-shard-cache", daemon=True)
                self._thread.start()
        self._wake.set()

    def remove(self, follower: PlanFollower) -> None:
        """Stops following a stream."""
        with self._lock:
            self._followers = [one for one in self._followers if one() not in (None, follower)]
            self._changed = True
        self._wake.set()

    def wait_until_planned(self, seconds: float) -> bool:
        """Waits until the future of all streams is planned; returns False after a time."""
        end = time.monotonic() + seconds
        while any(follower.wants_more() for follower in self._live()):
            if time.monotonic() > end:
                return False
            self._wake.set()
            time.sleep(0.002)
        return True

    def future(self) -> Future:
        """Returns what the streams of this process will use."""
        followers = self._live()
        paces = self._pace.seconds_per_position(followers)
        streams = [
            StreamFuture(follower.table, follower.now, pace) for follower, pace in zip(followers, paces, strict=True)
        ]
        keys = [follower.shard_keys for follower in followers]
        followed = keys[0] if len(keys) == 1 else np.concatenate(keys) if keys else np.zeros(0, np.uint64)
        return Future(streams, np.unique(followed))

    def after_fork(self) -> None:
        """Closes the parent's plan in a forked child, and follows nothing: the thread is the parent's."""
        file, self._file = self._file, None
        self._begin()
        if file is not None:
            file.forget()

    @property
    def file_name(self) -> str:
        """Name of the file in which this process publishes its plan; "" if there is none."""
        return "" if self._file is None else self._file.name

    def _live(self) -> list[PlanFollower]:
        return [follower for one in self._followers if (follower := one()) is not None and not follower.failed]

    def _run(self) -> None:
        while True:
            self._wake.wait(_TURN_SECONDS)
            self._wake.clear()
            with self._lock:
                if not self._live():
                    self._stop()
                    return
            try:
                self._turn()
            except OSError as error:
                self._cache.failed(error)
            except Exception:
                _log.exception("The shard cache stopped planning ahead, and continues without a plan.")
                with self._lock:
                    self._followers.clear()

    def _stop(self) -> None:
        """Ends the thread, with the lock held."""
        self._thread = None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _turn(self) -> None:
        followers = self._live()
        self._pace.note(followers)
        for follower in followers:
            if follower.wants_more():
                try:
                    follower.context.copy().run(follower.extend)
                    self._wake.set()  # there may be more
                except (EnergonDaliError, OSError):  # the reader of the stream meets the same error, and reports it
                    follower.failed = True
                self._changed = True
        self._publish(followers)
        if self._fill_requests:
            self._fill(followers)

    def _publish(self, followers: list[PlanFollower]) -> None:
        folder = self._cache.folder
        if folder is None:
            return
        now = time.monotonic()
        if self._changed and now - self._published_at >= _PUBLISH_SECONDS:
            self._changed = False
            self._published_at = now
            if self._file is None:
                self._file = PlanFile(folder, self._cache.add_bytes)
            self._published = followers
            self._file.publish(self.future())
        elif self._file is not None and self._published == followers:
            paces = self._pace.seconds_per_position(followers)
            self._file.update([(one.now, pace) for one, pace in zip(followers, paces, strict=True)])

    # --- fetching ahead --------------------------------------------------------------------------------------------

    def _fill(self, followers: list[PlanFollower]) -> None:
        """Fetches what is needed next and not there, as long as it is worth keeping."""
        for key in [key for key, result in self._filling.items() if result.done()]:
            result = self._filling.pop(key)
            if result.cancelled() or result.exception() is not None or not result.result():
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
        if time.monotonic() < self._paused_until or not self._cache.is_usable:
            return
        for follower in followers:  # each a few: streams take turns
            room = self._fill_requests - len(self._filling)
            if room <= 0:
                return
            self._fill_for(follower, max(1, room // len(followers)))

    def _fill_for(self, follower: PlanFollower, most: int) -> None:
        uses = follower.uses
        cursor = max(self._cursors.get(follower, 0), follower.now)
        first = int(np.searchsorted(uses.positions, cursor))
        started = 0
        for row in range(first, min(len(uses), first + _LOOKED_AT)):
            shard, block = int(uses.shards[row]), int(uses.blocks[row])
            cursor = int(uses.positions[row])
            path = follower.path(shard)
            key = path.url.encode("utf-8", "surrogateescape"), block
            if key in self._filling:
                continue
            version = self._cache.versions_known(path.url)
            if version is not None and self._cache.has(version, block):
                continue
            if started == most:
                break
            started += 1
            reader = self._reader(follower, shard)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._fill_requests, thread_name_prefix="energon-dali-shard-fill")
            self._filling[key] = self._pool.submit(follower.context.copy().run, reader.fill, block)
            self._wake.set()
        else:
            cursor += 1 if first < len(uses) else 0
        self._cursors[follower] = cursor

    def _reader(self, follower: PlanFollower, shard: int) -> CachedReader:
        path = follower.path(shard)
        reader = self._readers.get(path.url)
        if reader is None:
            size = follower.context.copy().run(follower.size, shard)
            reader = self._readers[path.url] = CachedReader(self._cache, path, size)
            while len(self._readers) > _OPEN_SHARDS:
                self._readers.pop(next(iter(self._readers)))
        return reader


class _Pace:
    """How fast streams advance: seconds of all of them together, divided by their shares of the positions."""

    def __init__(self) -> None:
        self._begun: weakref.WeakKeyDictionary[PlanFollower, int] = weakref.WeakKeyDictionary()
        self._since = time.monotonic()

    def note(self, followers: list[PlanFollower]) -> None:
        """Remembers where streams began."""
        for follower in followers:
            self._begun.setdefault(follower, follower.now)

    def seconds_per_position(self, followers: list[PlanFollower]) -> list[float]:
        """Returns the seconds that a position of each stream takes."""
        advanced = [float(max(0, one.now - self._begun.get(one, one.now))) for one in followers]
        total = sum(advanced)
        seconds = (time.monotonic() - self._since + _PRIOR_SECONDS) / (total + _PRIOR_POSITIONS)
        prior = _PRIOR_POSITIONS / max(1, len(followers))
        return [seconds * (total + _PRIOR_POSITIONS) / (own + prior) for own in advanced]
