"""Finds the number of workers, the prefetch and the decoder that deliver fastest here, in a minute or two."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from energon_dali.diagnosis.bench import OpenDataset, measure_loader
from energon_dali.diagnosis.rates import DecoderName, LoaderRate, Setting, explain, usable_cores
from energon_dali.errors import ConfigError
from energon_dali.plan.layout import divisors
from energon_dali.shards.storage.atomic_file import write_atomically

_NEAR = 0.97
"""Share of the fastest rate that counts as equally fast: then fewer processes, and less memory, win."""
_HOPELESS = 0.7
"""Share of the fastest rate below which a setting is not measured again."""
_DISTURBED = 0.2
"""Share of the cores that other processes keep busy from which on the clock says little about a setting."""
_ROUNDS = 3
_FINALISTS = 3
_PREFETCHES = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What `tune` found."""

    setting: Setting
    """The setting to use."""
    samples_per_second: float
    """Its rate by the clock: the median of its measurements."""
    is_estimate: bool
    """Whether other processes kept the machine busy, so that it was chosen by the estimates instead of the rates."""
    rates: dict[Setting, float]
    """The rate by the clock of each setting that was measured; 0 for those that could not run."""
    estimates: dict[Setting, float]
    """The same without other processes, estimated from CPU time and waits."""
    advice: tuple[str, ...]
    """What limits the setting, and what to change, in sentences."""
    num_streams: int
    """Streams per rank, which fix the order of samples for every number of workers that divides them."""
    seconds: float
    """How long it took."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the result as plain values."""
        return {
            **self.setting.as_dict(),
            "num_streams_per_rank": self.num_streams,
            "samples_per_second": round(self.samples_per_second, 1),
            "is_estimate": self.is_estimate,
            "estimated_samples_per_second": round(self.estimates[self.setting], 1),
            "seconds": round(self.seconds, 1),
            "measured": [
                {
                    **setting.as_dict(),
                    "samples_per_second": round(rate, 1),
                    "estimated_samples_per_second": round(self.estimates[setting], 1),
                }
                for setting, rate in self.rates.items()
            ],
            "advice": list(self.advice),
        }

    def write(self, path: Path) -> None:
        """Writes the result as JSON.

        Raises:
            StorageError: The file cannot be written.
        """
        write_atomically(path, json.dumps(self.as_dict(), indent=2).encode() + b"\n")


def worker_counts(num_streams: int, most: int | None = None) -> list[int]:
    """Returns the numbers of workers that are worth a measurement: divisors of the streams, up to twice the cores.

    Args:
        num_streams: Streams per rank.
        most: Most workers; None is twice the number of cores that this process may use.
    """
    limit = max(1, 2 * usable_cores()) if most is None else most
    return [0, *(count for count in divisors(num_streams) if count <= limit)]


def tune(
    open_dataset: OpenDataset,
    *,
    decoders: Sequence[DecoderName] = ("own",),
    num_streams: int = 8,
    seconds: float = 60.0,
    most_workers: int | None = None,
    report: Callable[[LoaderRate], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> TuneResult:
    """Returns the fastest setting: measures all decoders and numbers of workers briefly, then the best ones longer.

    The order of samples is that of `num_streams` for all settings, so the choice changes no batch. Settings that are
    within 3 % of the fastest count as equal, and the one with fewest workers and least prefetch is taken. Where other
    processes keep the machine busy, settings are compared by estimates of what they would deliver without them.

    Args:
        open_dataset: Returns the dataset for a setting, with `num_streams` streams on this rank.
        decoders: What to try as decoder, from `usable_decoders`.
        num_streams: Streams of this rank.
        seconds: About how long it may take; at least 5. A measurement that has begun is finished.
        most_workers: Most workers to try; None is twice the number of cores, and more where they sleep or wait.
        report: Called with each measurement.
        progress: Called with a line that says what is measured next; None says nothing.

    Raises:
        ConfigError: No setting could run, or an argument is out of range.
        DatasetError: The dataset cannot be read.
    """
    if not seconds >= 5:
        raise ConfigError(f"seconds={seconds!r} is too short to compare settings: give at least 5.")
    begun = time.monotonic()
    search = _Search(open_dataset, report or _nothing, progress or _nothing, begun + seconds)
    # What is most likely to be fast comes first, and every decoder early, in case that time runs out.
    counts = sorted(worker_counts(num_streams, most_workers), key=lambda count: abs(count - usable_cores()))
    first = [Setting(count, 2, decoder) for count in counts for decoder in decoders]
    # Half of the time for a look at every setting; starting processes takes time as well, so that is an upper bound.
    brief = max(0.25, seconds / 2 / len(first) / 3)
    for setting in first:
        if time.monotonic() - begun > 0.6 * seconds and search.best is not None:
            break
        search.measure(setting, brief)
    if most_workers is None:
        for count in (count for count in divisors(num_streams) if count > max(counts)):
            if not search.wants_more_workers or time.monotonic() - begun > 0.7 * seconds:
                break
            assert search.best is not None
            search.measure(replace(search.best, num_workers=count), brief)
    leader = search.best
    if leader is None:
        raise ConfigError("No setting could run:\n" + "\n".join(dict.fromkeys(search.problems)))
    for prefetch in _PREFETCHES:
        if prefetch != leader.prefetch_factor and leader.num_workers and time.monotonic() - begun < 0.75 * seconds:
            search.measure(Setting(leader.num_workers, prefetch, leader.decoder), brief)
    # The finalists take turns, so that what else the machine does falls on all of them alike.
    finalists = search.finalists()
    longer = max(brief, 0.25 * seconds / _ROUNDS / len(finalists) / 2)
    for number in range(_ROUNDS):
        if number and time.monotonic() - begun > seconds:
            break
        for setting in finalists:
            search.measure(setting, longer)
    chosen = search.choose(finalists)
    rates = search.rates(by_estimates=False)
    return TuneResult(
        setting=chosen,
        samples_per_second=rates[chosen],
        is_estimate=search.is_disturbed,
        rates=rates,
        estimates=search.rates(by_estimates=True),
        advice=search.explain(chosen),
        num_streams=num_streams,
        seconds=time.monotonic() - begun,
    )


def _nothing(_: Any) -> None:
    """Ignores what is reported."""


class _Search:
    """The measurements so far."""

    def __init__(
        self,
        open_dataset: OpenDataset,
        report: Callable[[LoaderRate], None],
        progress: Callable[[str], None],
        end: float,
    ) -> None:
        self._open = open_dataset
        self._report = report
        self._progress = progress
        self._end = end
        self._found: dict[Setting, list[LoaderRate]] = {}
        self.problems: list[str] = []

    def measure(self, setting: Setting, seconds: float) -> None:
        left = max(0.0, self._end - time.monotonic())
        self._progress(f"measuring {setting} (about {left:.0f} s left)")
        rate = measure_loader(self._open, setting, seconds)
        self._found.setdefault(setting, []).append(rate)
        if rate.problem:
            self.problems.append(f"{setting}: {rate.problem}")
        self._report(rate)

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes kept much of the machine busy in half of the measurements."""
        loads = [one.other_cores for found in self._found.values() for one in found if not one.problem]
        return bool(loads) and median(loads) > _DISTURBED * usable_cores()

    def rates(self, *, by_estimates: bool | None = None) -> dict[Setting, float]:
        """Returns the rate of each setting.

        Args:
            by_estimates: Whether it is estimated what it would be without other processes; None if the clock measures
                mostly those.
        """
        estimated = self.is_disturbed if by_estimates is None else by_estimates
        return {
            setting: median(one.idle_samples_per_second if estimated else one.samples_per_second for one in found)
            for setting, found in self._found.items()
        }

    @property
    def wants_more_workers(self) -> bool:
        """Whether the fastest setting has most workers, and more would help by its diagnosis."""
        best = self.best
        if best is None or best.num_workers < max(setting.num_workers for setting in self._found):
            return False
        diagnosis = self._found[best][-1].diagnosis()
        return diagnosis is not None and diagnosis.more_workers

    def explain(self, chosen: Setting) -> tuple[str, ...]:
        """Returns what limits a setting, and what to change, in sentences."""
        return tuple(explain(self._found[chosen][-1], [found[-1] for found in self._found.values()]))

    @property
    def best(self) -> Setting | None:
        """The fastest setting; None if none could run."""
        rates = self.rates()
        best = max(rates, key=lambda setting: rates[setting], default=None)
        return best if best is not None and rates[best] > 0 else None

    def finalists(self) -> list[Setting]:
        rates = self.rates()
        best = max(rates.values())
        good = sorted((one for one in rates if rates[one] >= _HOPELESS * best), key=lambda one: -rates[one])
        smallest = min((one for one in good if rates[one] >= _NEAR * best), key=_size)
        return list(dict.fromkeys([*good[: _FINALISTS - 1], smallest, *good]))[:_FINALISTS]

    def choose(self, finalists: list[Setting]) -> Setting:
        """Returns the fastest of the finalists, or one that is as fast with fewer processes and less memory."""
        rates = self.rates()
        best = max(rates[setting] for setting in finalists)
        near = [setting for setting in finalists if rates[setting] >= _NEAR * best]
        return min(near, key=_size)


def _size(setting: Setting) -> tuple[int, int]:
    """Returns what a setting costs: processes first, then memory."""
    return setting.num_workers, setting.prefetch_factor
