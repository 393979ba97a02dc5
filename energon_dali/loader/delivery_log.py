"""What a job with global batches delivered other than planned: kept by each rank, and saved with its state.

A state says where a job is, and the plan says which units come before that. The log has the rest, so that both together
say exactly which samples were seen: units that failed, spares in their places, and steps that were left out. With it
is what planning the steps again that are over needs: their sizes, and weights that were set and no longer hold.
"""

from __future__ import annotations

import base64
import copy
import json
import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from energon_dali.datasets.step_entries import LEFT_OUT, Deviation, weights_entry, weights_of
from energon_dali.datasets.stream import State
from energon_dali.plan.layout import MAX_STREAMS
from energon_dali.plan.scheduled import WeightChange
from energon_dali.shards.documents.state_entries import (
    MAX_COUNT,
    checked_count,
    count_of,
    damaged,
    entry_of,
    flag_of,
    list_of,
    state_of,
)

LOG = "log"
"""Name of the entry of a state."""
MAX_LOG_BYTES = 1 << 20
"""Most bytes of the entry of one rank. Deviations beyond that are counted."""
_FRAME_BYTES = 4096
_BYTES_PER_PART = 160
"""What the entry takes besides the deviations and the history, at most."""
MAX_HISTORY_BYTES = MAX_LOG_BYTES // 2
"""Most bytes of it that the history takes."""
_OUTCOME_BITS = 3
_KEPT_TAIL = 1024
"""Last deviations among which one of the same step may be inserted without decoding those before."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """The deviations that one rank noted over a range of units, while the job had one number of ranks."""

    start: int
    """First unit of the range."""
    stop: int
    """Unit after the last."""
    rank: int
    """The rank: only the units that were dealt to it are noted."""
    world_size: int
    """Number of ranks."""
    dropped: int
    """How many deviations did not fit."""
    deviations: str
    """The deviations, packed."""

    @property
    def identity(self) -> tuple[int, int, int]:
        """What distinguishes it from other parts. Of two with the same one, the longer one continues the other."""
        return self.start, self.world_size, self.rank

    def unpacked(self) -> list[Deviation]:
        """Returns the deviations, in the order of their units.

        Raises:
            StateError: They are damaged.
        """
        return _decode(_inflated(self.deviations))

    def before(self, unit: int) -> LogPart:
        """Returns the part without units from one on."""
        if self.stop <= unit:
            return self
        kept = [one for one in self.unpacked() if one.unit < unit]
        return replace(self, stop=max(self.start, unit), deviations=_packed(_encode(kept)))


@dataclass(frozen=True, slots=True)
class StepSize:
    """Until where steps had another size than after it."""

    step: int
    """The first step of the new size."""
    unit: int
    """Its first unit."""
    size: int
    """Units of each step before it."""


@dataclass(frozen=True, slots=True)
class History:
    """How steps were made that are over: the same on all ranks."""

    sizes: tuple[StepSize, ...] = ()
    """Sizes of earlier steps, in order."""
    weights: tuple[WeightChange, ...] = ()
    """Weights of a blend that were set and are over, in order: those that still hold, or come, are in the cursor."""
    is_lost: bool = False
    """Whether there were too many of both, so that none is kept."""

    def as_entry(self) -> State:
        """Returns the entries of a log."""
        sizes = [asdict(one) for one in self.sizes]
        return {"sizes": sizes, "weights": weights_entry(self.weights), "history_lost": self.is_lost}


class _Noted(NamedTuple):
    """What a log has noted since its last part; replaced as a whole."""

    stop: int
    """The unit after the last one that is noted."""
    encoded: int
    """The same, of those in the data: others did not fit."""
    data: bytes
    dropped: int
    tail: tuple[int, int] = (0, 0)
    """(how many bytes of the data are before its last deviations, the unit after theirs)."""

    def with_more(self, deviations: Sequence[Deviation], room: int) -> _Noted:
        """Returns this with deviations that are not in it, as far as there is room in bytes."""
        earlier = [one for one in deviations if one.unit < self.encoded]
        stop, encoded, data, dropped, tail = self._with_earlier(earlier, room) if earlier else self
        new = bytearray()
        for one in deviations:
            if one.unit < stop:
                continue
            stop = one.unit + one.num_units
            more = _encode([one], encoded)
            if len(data) + len(new) + len(more) > room:
                dropped += 1
            else:
                encoded = stop
                new += more
        return _Noted(stop, encoded, data + new, dropped, tail)

    def _with_earlier(self, deviations: Sequence[Deviation], room: int) -> _Noted:
        """Returns this with deviations before the last one: micro-batches of a step may not have ascending units."""
        begin, after = self.tail if deviations[0].unit >= self.tail[1] else (0, 0)
        found = _decode(self.data[begin:], after)
        more = 0
        for one in deviations:
            at = bisect_right(found, one.unit, key=attrgetter("unit"))
            if not at or found[at - 1].unit + found[at - 1].num_units <= one.unit:
                found.insert(at, one)
                more += 1
        head = found[:-_KEPT_TAIL]
        data = self.data[:begin] + _encode(head, after)
        if head:
            after = head[-1].unit + head[-1].num_units
        tail = len(data), after
        data += _encode(found[-_KEPT_TAIL:], after)
        if more and len(data) > room:
            return self._replace(dropped=self.dropped + more)
        return self._replace(data=data, tail=tail)


class DeliveryLog:
    """The log of one rank. May be used by several threads.

    Args:
        rank: The rank.
        world_size: Number of ranks.
        start: First unit that it is of.
        parts: What was noted before, by this rank and others.
        history: Earlier sizes and weights.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        start: int = 0,
        parts: Iterable[LogPart] = (),
        history: History = History(),
    ) -> None:
        self._lock = threading.RLock()  # a signal handler may save a state at any time
        self._parts = list(parts)
        self._history = history
        self._history_bytes = len(json.dumps(history.as_entry()))
        self._begin(LogPart(start, start, rank, world_size, 0, ""))

    def _begin(self, part: LogPart) -> None:
        """Starts to note what follows a part."""
        found = part.unpacked()
        stop = found[-1].unit + found[-1].num_units if found else 0
        self._part = part
        self._noted = _Noted(stop, stop, bytes(_encode(found)), part.dropped)

    def twin(self) -> DeliveryLog:
        """Returns a copy that goes on by itself."""
        with self._lock:
            twin = copy.copy(self)
            twin._lock, twin._parts = threading.RLock(), list(self._parts)
            return twin

    @property
    def history(self) -> History:
        """Earlier sizes and weights."""
        return self._history

    @property
    def _room(self) -> int:
        """Most bytes of deviations before they are packed."""
        others = _BYTES_PER_PART * (len(self._parts) + 1) + self._history_bytes
        others += sum(len(one.deviations) for one in self._parts)
        return max(0, MAX_LOG_BYTES - _FRAME_BYTES - others) * 4 // 5  # base85 writes 4 bytes as 5

    @classmethod
    def restored(cls, state: State, rank: int, world_size: int, reached: int) -> DeliveryLog:
        """Returns the log of a rank that continues at a state.

        A state of all ranks is shared among them, so that their logs together are whole again. From that of a single
        rank every other takes what is there, which leaves the log without what the missing ranks noted.

        Args:
            state: The state.
            rank: The rank.
            world_size: Number of ranks.
            reached: Unit after the last that was delivered.

        Raises:
            StateError: The log of the state is damaged.
        """
        parts = parts_of(state)
        if len(state["given"]) == state["world_size"]:
            parts = [part for part in parts if part.rank % world_size == rank]
        history = history_of(state)
        room = MAX_LOG_BYTES - len(json.dumps(history.as_entry()))
        parts = _fitting([part.before(reached) for part in parts if part.start < reached], room)
        own = next(
            (part for part in parts if (part.rank, part.world_size, part.stop) == (rank, world_size, reached)), None
        )
        log = cls(rank, world_size, reached, [part for part in parts if part is not own], history)
        if own is not None:
            log._begin(own)
        return log

    def add(self, deviations: Iterable[Sequence[int]]) -> None:
        """Notes deviations; those that are noted already change nothing.

        Args:
            deviations: As the state of a RankIterator has them, after all that were noted before.
        """
        found = list(map(Deviation._make, deviations))
        with self._lock:
            while found:
                before = self._noted
                after = before.with_more(found, self._room)
                if self._noted is before:  # else a signal handler has saved a state meanwhile, and noted them
                    self._noted = after
                    return

    def forget_from(self, unit: int) -> None:
        """Forgets units from one on: they are still to be delivered."""
        with self._lock:
            own = self._current(max(unit, self._noted.stop)).before(unit)
            self._parts = [part.before(unit) for part in self._parts if part.start < unit]
            sizes = tuple(one for one in self._history.sizes if one.unit <= unit)
            self._keep(replace(self._history, sizes=sizes))
            self._begin(replace(own, start=min(own.start, unit), stop=unit))

    def continue_with(self, rank: int, world_size: int, reached: int) -> None:
        """Continues the log with other ranks.

        Args:
            rank: Number of this rank among them.
            world_size: How many there are.
            reached: Unit after the last that was delivered.
        """
        with self._lock:
            self._parts.append(self._current(reached))
            self._begin(LogPart(reached, reached, rank, world_size, 0, ""))

    def change_size(self, step: int, unit: int, size: int) -> None:
        """Notes that steps have another size from a step on.

        Args:
            step: The step.
            unit: Its first unit.
            size: Units of the steps before it.
        """
        with self._lock:
            self._keep(replace(self._history, sizes=(*self._history.sizes, StepSize(step, unit, size))))

    def note_weights(self, changes: Iterable[WeightChange]) -> None:
        """Notes weights that are over; those that are noted already change nothing.

        Args:
            changes: In their order.
        """
        with self._lock:
            known = self._history.weights
            last = known[-1].at if known else -1
            new = tuple(change for change in changes if change.at > last)
            if new:
                self._keep(replace(self._history, weights=(*known, *new)))

    def _keep(self, history: History) -> None:
        """Keeps a history if there is room for it."""
        if self._history.is_lost:
            return
        size = len(json.dumps(history.as_entry()))
        others = _BYTES_PER_PART * (len(self._parts) + 1) + sum(len(one.deviations) for one in self._parts)
        if size > min(MAX_HISTORY_BYTES, MAX_LOG_BYTES - _FRAME_BYTES - others - len(self._noted.data) * 5 // 4):
            history = History(is_lost=True)
            size = len(json.dumps(history.as_entry()))
        self._history, self._history_bytes = history, size

    def entry(self, reached: int) -> State:
        """Returns the entry of a state, as {"log": ...}.

        Args:
            reached: Unit after the last that was delivered.
        """
        with self._lock:
            return _as_entry([*self._parts, self._current(reached)], self._history)

    def _current(self, reached: int) -> LogPart:
        part = replace(
            self._part,
            stop=max(reached, self._noted.stop, self._part.start),
            dropped=self._noted.dropped,
            deviations=_packed(self._noted.data),
        )
        return part.before(max(reached, part.start))


def _fitting(parts: Iterable[LogPart], room: int) -> list[LogPart]:
    """Returns parts of which those that no rank has room for only count their deviations.

    Args:
        parts: The parts.
        room: Bytes of the entry without the history.
    """
    room -= _FRAME_BYTES
    found = []
    for part in parts:
        room -= _BYTES_PER_PART + len(part.deviations)
        if room < 0 and part.deviations:
            room += len(part.deviations)
            part = replace(part, deviations="", dropped=part.dropped + len(part.unpacked()))
        found.append(part)
    return found


def _as_entry(parts: Iterable[LogPart], history: History) -> State:
    return {LOG: {**history.as_entry(), "parts": [asdict(part) for part in parts]}}


def merge_logs(states: Sequence[State]) -> State:
    """Returns the entry of a state for the logs of several; {} without global batches.

    Raises:
        StateError: One of them is damaged.
    """
    if "cursor" not in states[0]:
        return {}
    merged: dict[tuple[int, int, int], LogPart] = {}
    for state in states:
        for part in parts_of(state):
            other = merged.get(part.identity)
            if other is None or other.stop < part.stop:
                merged[part.identity] = part
    histories = [history_of(state) for state in states]  # a rank whose log is full may have lost it
    history = next((one for one in histories if not one.is_lost), histories[0])
    return _as_entry([merged[identity] for identity in sorted(merged)], history)


def split_log(state: State, rank: int, world_size: int) -> State:
    """Returns the entry of a state for a rank's share of a log; {} without global batches.

    Args:
        state: The state of all ranks.
        rank: The rank.
        world_size: Among how many it is shared.

    Raises:
        StateError: The log is damaged.
    """
    if "cursor" not in state:
        return {}
    return _as_entry([part for part in parts_of(state) if part.rank % world_size == rank], history_of(state))


def parts_of(state: Mapping[str, Any]) -> list[LogPart]:
    """Returns the parts of the log of a state with global batches.

    Raises:
        StateError: They are missing or damaged.
    """
    found = []
    for entry in list_of(state_of(state, LOG), "parts"):
        counts = {name: count_of(entry, name) for name in ("start", "stop", "dropped")}
        world_size = count_of(entry, "world_size", MAX_STREAMS)
        rank = count_of(entry, "rank", max(0, world_size - 1))
        deviations = entry_of(entry, "deviations")
        if not isinstance(deviations, str) or counts["start"] > counts["stop"] or not world_size:
            raise damaged("parts", entry, "a part of a log")
        found.append(LogPart(**counts, rank=rank, world_size=world_size, deviations=deviations))
    return found


def history_of(state: Mapping[str, Any]) -> History:
    """Returns the earlier sizes and weights that the log of a state has.

    Raises:
        StateError: They are missing or damaged.
    """
    log = state_of(state, LOG)
    sizes = tuple(
        StepSize(count_of(entry, "step"), count_of(entry, "unit"), count_of(entry, "size"))
        for entry in list_of(log, "sizes")
    )
    if any(not one.size for one in sizes) or any(a.unit > b.unit or a.step > b.step for a, b in pairwise(sizes)):
        raise damaged("sizes", log["sizes"], "sizes of steps, in their order")
    return History(sizes, weights_of(log), flag_of(log, "history_lost"))


def uncovered_ranks(parts: Sequence[LogPart], reached: int) -> list[tuple[int, int, list[int]]]:
    """Returns (first unit, unit after the last, ranks) of what no part of a log is of; [] if it is whole.

    Args:
        parts: The parts.
        reached: Unit after the last that was delivered.
    """
    borders = sorted({0, reached, *(unit for part in parts for unit in (part.start, part.stop) if unit < reached)})
    found: list[tuple[int, int, list[int]]] = []
    for start, stop in pairwise(borders):
        ranks: dict[int, set[int]] = {}
        for part in parts:
            if part.start <= start and stop <= part.stop:
                ranks.setdefault(part.world_size, set()).add(part.rank)
        missing = [sorted(set(range(size)) - have) for size, have in ranks.items()]
        if not missing:
            found.append((start, stop, []))
        elif all(missing):
            found.append((start, stop, min(missing, key=len)))
    return found


# --- packing -------------------------------------------------------------------------------------------------------


def _encode(deviations: Iterable[Deviation], after: int = 0) -> bytearray:
    """Returns deviations as numbers of 7 bits per byte: the distance from the one before and the outcome, and how many
    units were left out.

    Args:
        deviations: In the order of their units.
        after: The unit after the one before the first.
    """
    data = bytearray()
    for one in deviations:
        _append(data, (one.unit - after) << _OUTCOME_BITS | one.outcome)
        if one.outcome == LEFT_OUT:
            _append(data, one.num_units)
        after = one.unit + one.num_units
    return data


def _append(data: bytearray, number: int) -> None:
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def _decode(data: bytes, unit: int = 0) -> list[Deviation]:
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
        elif shift > 63:
            raise damaged("deviations", data[:20], "packed deviations")
    if shift:
        raise damaged("deviations", data[-20:], "packed deviations")
    found = []
    rest = iter(numbers)
    for number in rest:
        outcome = number & ((1 << _OUTCOME_BITS) - 1)
        unit = checked_count(unit + (number >> _OUTCOME_BITS), "deviations")
        count = checked_count(next(rest, 0), "deviations") if outcome == LEFT_OUT else 1
        if outcome > LEFT_OUT or not 0 < count <= MAX_COUNT - unit:
            raise damaged("deviations", number, "packed deviations")
        found.append(Deviation(unit, outcome, count))
        unit += count
    return found


def _packed(data: bytes | bytearray) -> str:
    return packed(bytes(data), 6) if data else ""


def _inflated(text: str) -> bytes:
    try:
        return unpacked(text, MAX_LOG_BYTES) if text else b""
    except (ValueError, zlib.error) as error:
        raise damaged("deviations", text, f"packed deviations ({str(error)[:200]})") from error


def packed(data: bytes, level: int) -> str:
    """Returns bytes as compressed text.

    Args:
        data: The bytes.
        level: Of zlib.
    """
    return base64.b85encode(zlib.compress(data, level)).decode()


def unpacked(text: str, most: int) -> bytes:
    """Returns the bytes of a compressed text.

    Args:
        text: What `packed` returned.
        most: Most bytes.

    Raises:
        ValueError: It is not such a text, is cut off, or unpacks to more bytes.
        zlib.error: It is damaged.
    """
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(base64.b85decode(text), most)
    if not unpacking.eof:
        raise ValueError(f"it is cut off, or unpacks to more than {most:,} bytes")
    return data
