"""Selects the samples of a buffer that are packed together: the form of a selection, and a packer by length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.task_encoder.token_counts import count_tokens

T = TypeVar("T")


@explain_call
@dataclass(slots=True)
class PackSelection(Generic[T]):
    """A result of `select_samples_to_pack` that says more than a list of groups; a sample in no list is dropped."""

    packs: list[list[T]]
    """Groups of samples, each of which is packed into one sample."""
    keep: list[T | list[T]] = field(default_factory=list)
    """Samples, or groups of samples, that start the next buffer. At the end of an epoch, when no buffer follows, a kept
    group is packed as it is, and a kept sample alone."""
    refused: list[tuple[T, str | Exception]] = field(default_factory=list)
    """Samples that cannot be packed, each with the reason as text or as an error: they are dropped, counted and passed
    to the error handler; with SkipSample they are dropped silently."""


class PackingBuffer(list[T]):
    """The list of samples that `select_samples_to_pack` receives; it also records which samples were kept before.

    Args:
        samples: The samples, beginning with those that were kept.
        rounds: For each sample, the number of earlier rounds that kept it.
    """

    def __init__(self, samples: Iterable[T], rounds: Sequence[int]) -> None:
        super().__init__(samples)
        self.rounds = rounds


@explain_call
@dataclass(eq=False)
class SequencePacker:
    """Packs samples by their lengths into rows of a fixed length, with little padding.

    Call it in `select_samples_to_pack`:

        packer = SequencePacker(4096, max_padding=0.02)

        def select_samples_to_pack(self, samples):
            return self.packer(samples)

    Packs with more padding than `max_padding` are kept for the next round, where shorter samples may fill them. The
    selection depends only on the buffer, so that it resumes exactly.

    Args:
        max_length: Length of a pack.
        length: Returns the length of a sample, in the same unit. May raise SkipSample. By default the tokens of its
            text (its field tokens, input_ids or length) and of its media, which a decoder with a front end counts
            before it decodes them (`count_tokens`).
        strategy: "best_fit" puts each sample, longest first, into the pack that it fills best; "first_fit_decreasing"
            puts it into the first pack that has room.
        max_padding: Largest share of a pack that may stay empty, 0 to 1. A pack with more padding is returned anyway if
            one of its samples was kept `max_rounds` times, if more than half of the buffer would be kept, or at the end
            of an epoch. 1 keeps nothing.
        max_samples: Most samples in a pack, which is then full; None is unlimited.
        max_rounds: Number of rounds that may keep a sample, at least 0.
        too_long: What happens to a sample that is longer than `max_length`: "refuse" drops it, counts it and passes it
            to the error handler; "alone" makes a pack of it, longer than the others.

    Raises:
        ConfigError: An argument is invalid.
    """

    max_length: int
    _: KW_ONLY
    length: Callable[[Any], int] = count_tokens
    strategy: Literal["best_fit", "first_fit_decreasing"] = "best_fit"
    max_padding: float = 0.05
    max_samples: int | None = None
    max_rounds: int = 4
    too_long: Literal["refuse", "alone"] = "refuse"

    def __post_init__(self) -> None:
        for name, good, allowed in (
            ("max_length", self.max_length > 0, "give a length above 0"),
            ("length", callable(self.length), "give a function of a sample, such as lambda s: len(s.tokens)"),
            ("strategy", self.strategy in _STRATEGIES, f"choose one of {', '.join(_STRATEGIES)}"),
            ("max_padding", 0 <= self.max_padding <= 1, "give a share from 0 to 1, such as 0.05"),
            ("max_samples", self.max_samples is None or self.max_samples >= 1, "give at least 1, or None"),
            ("max_rounds", self.max_rounds >= 0, "give at least 0"),
            ("too_long", self.too_long in ("refuse", "alone"), 'choose "refuse" or "alone"'),
        ):
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r} is invalid: {allowed}.")

    def __call__(self, samples: Sequence[T]) -> PackSelection[T]:
        """Returns the samples of a buffer that are packed together, kept, and refused."""
        rounds = samples.rounds if isinstance(samples, PackingBuffer) else [0] * len(samples)
        refused: list[tuple[T, str | Exception]] = []
        lengths = [self._measure(sample, refused) for sample in samples]
        fitting = [index for index, length in enumerate(lengths) if 0 <= length <= self.max_length]
        long = [index for index, length in enumerate(lengths) if length > self.max_length]
        # A stable sort: samples of one length keep their order, so that kept samples are first.
        fitting.sort(key=lambda index: -lengths[index])
        bins = _STRATEGIES[self.strategy](
            [lengths[index] for index in fitting], self.max_length, self.max_samples or len(samples)
        )
        groups = [[fitting[position] for position in members] for members in bins]
        given, kept = self._divide(groups, lengths, rounds)
        packs = [[samples[index] for index in sorted(group)] for group in given]
        if self.too_long == "alone":
            packs += [[samples[index]] for index in long]
        else:
            refused += [
                (samples[index], f"A sample of length {lengths[index]} does not fit into a pack of {self.max_length}.")
                for index in long
            ]
        return PackSelection(packs, [[samples[index] for index in sorted(group)] for group in kept], refused)

    def _measure(self, sample: T, refused: list[tuple[T, str | Exception]]) -> int:
        """Returns the length of a sample; -1 if it has none, which is added to `refused`."""
        try:
            length = self.length(sample)
            if length >= 0:
                return length
            refused.append((sample, f"The length function returned {length!r}; return a number of at least 0."))
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            refused.append((sample, f"The length function raised {type(error).__name__}: {error}."))
        except Exception as error:  # damaged media, SkipSample, a failed device: the caller distinguishes them
            refused.append((sample, error))
        return -1

    def _divide(
        self, groups: list[list[int]], lengths: list[int], rounds: Sequence[int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Returns (groups to pack, groups to keep), in the order of their oldest samples."""
        wanted = (1 - self.max_padding) * self.max_length
        filled = [sum(lengths[index] for index in group) for group in groups]
        keep = [
            number
            for number, group in enumerate(groups)
            if filled[number] < wanted
            and len(group) != self.max_samples
            and max(rounds[index] for index in group) < self.max_rounds
        ]
        keep.sort(key=lambda number: (filled[number], min(groups[number])))  # the emptiest gain most
        room = len(lengths) // 2
        kept: set[int] = set()
        for number in keep:
            room -= len(groups[number])
            if room < 0:
                break
            kept.add(number)
        order = sorted(range(len(groups)), key=lambda number: min(groups[number]))
        return [groups[n] for n in order if n not in kept], [groups[n] for n in order if n in kept]


def _best_fit(lengths: list[int], capacity: int, most: int) -> list[list[int]]:
    """Returns the positions in each bin, for lengths in descending order."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, number of the bin) of bins that are not full
    for position, length in enumerate(lengths):
        at = bisect_left(rooms, (length, -1))
        if at < len(rooms):
            room, number = rooms.pop(at)
        else:
            room, number = capacity, len(bins)
            bins.append([])
        bins[number].append(position)
        if len(bins[number]) < most:
            insort(rooms, (room - length, number))
    return bins


def _first_fit(lengths: list[int], capacity: int, most: int) -> list[list[int]]:
    bins: list[list[int]] = []
    rooms = np.zeros(len(lengths), np.float64)
    for position, length in enumerate(lengths):
        number = int(np.argmax(rooms[: len(bins)] >= length)) if bins else 0
        if not bins or rooms[number] < length:
            number = len(bins)
            bins.append([])
            rooms[number] = capacity
        bins[number].append(position)
        rooms[number] = rooms[number] - length if len(bins[number]) < most else -1
    return bins


_STRATEGIES: dict[str, Callable[[list[int], int, int], list[list[int]]]] = {
    "best_fit": _best_fit,
    "first_fit_decreasing": _first_fit,
}
