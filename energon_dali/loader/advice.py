"""What a loader spends its time on, and what to change: one diagnosis, from the statistics of the whole loader.

`bench`, `tune`, the panel and `num_workers="auto"` all use it. What counts is what the processes did while the trainer
waited, not what a stage takes alone: a hook that sleeps keeps no core busy, and storage that is slow is not decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from energon_dali.host_cores import cores_per_rank
from energon_dali.loader.host_memory import MemoryLeft
from energon_dali.loader.statistics import LoaderStatistics

Cause = Literal[
    "nothing",
    "trainer",
    "memory",
    "start",
    "slow worker",
    "storage",
    "decoding",
    "sleeping hook",
    "computing hook",
    "rank",
]
"""What limits a loader. "rank" is work of the rank's process, and "nothing" means none of the others."""

_WAITS = frozenset({"wait for trainer", "wait for workers", "wait for decode", "wait for reader"})
"""Stages in which a thread waits for another part of the loader."""
_COMPUTES = frozenset({"load", "worker", "rank"})
"""Stages of this package that wait for nothing but a core."""
_READ = "read"
_TRAINER_WAITS = 0.05
"""Share of the time that the trainer waits from which on the loader limits it."""
_IDLE = 0.25
"""Share of the workers' time in which the rank has no room from which on they wait for one of them, or for the rank."""
_LARGE = 0.5
"""Share of the work from which on one stage is the cause."""
_SMALLER_MEDIA = (
    "Store images in the size that the model sees, resize inside the decoder (operations=[Resize(...)]), and choose "
    "fewer frames of videos"
)
_SLEEPS = 0.5
"""Share of a stage's time without the processor from which on it sleeps or waits."""
_ALL_CORES = 0.85
"""Share of the cores' time from which on all cores count as busy."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the processes of a loader did in some time."""

    seconds: dict[str, float]
    """Time at work by stage, over all processes, without the time in which they were ready and had no core."""
    cpu_seconds: dict[str, float]
    """How much of it they computed."""
    idle_share: float
    """Share of the time of all workers that they waited until the rank had room for more."""
    rank_waits: float
    """Share of the time that the rank waited for workers."""
    decoder_waits: float
    """Share of the time that the rank waited for a decoder that works next to it."""
    wanted_cores: float
    """How many cores they kept busy, or waited for because others kept them busy, on average."""

    @classmethod
    def of(cls, statistics: LoaderStatistics, num_workers: int) -> Work:
        """Returns the work in the time of some statistics.

        Args:
            statistics: Of a loader, for the whole run or since an earlier snapshot.
            num_workers: Worker processes meanwhile.
        """
        elapsed = max(statistics.elapsed_seconds, 1e-9)
        found = {name: time for name, time in statistics.stage_seconds.items() if name not in _WAITS and time > 0}
        cpu = {name: min(found[name], statistics.cpu_seconds.get(name, 0.0)) for name in found}
        # Who computes is who waits for a core.
        computed = sum(cpu.values())
        waited = {
            name: statistics.core_wait_seconds * amount / computed if computed else 0.0 for name, amount in cpu.items()
        }
        seconds = {
            name: cpu[name] if name in _COMPUTES else max(cpu[name], found[name] - waited[name]) for name in found
        }
        return cls(
            seconds,
            cpu,
            # At most 1 also where the number of workers was changed meanwhile.
            min(1.0, statistics.stage_seconds.get("wait for trainer", 0.0) / (elapsed * max(1, num_workers))),
            statistics.stage_seconds.get("wait for workers", 0.0) / elapsed,
            statistics.stage_seconds.get("wait for decode", 0.0) / elapsed,
            (sum(statistics.cpu_seconds.values()) + statistics.core_wait_seconds) / elapsed,
        )

    @property
    def total_seconds(self) -> float:
        """The time at work of all stages."""
        return sum(self.seconds.values())

    def sleeping_share(self, stage: str) -> float:
        """Returns the share of a stage's time in which it did not compute: it slept, or waited for storage."""
        time = self.seconds.get(stage, 0.0)
        return 1.0 - self.cpu_seconds[stage] / time if time > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a loader."""

    cause: Cause
    """In one word or two."""
    stage: str
    """Name of the stage that takes most of the time; "" if none does."""
    finding: str
    """What was found, as a sentence."""
    remedy: str
    """What to change, as a sentence; "" if nothing."""
    more_workers: bool
    """Whether more workers would help, as far as this can be said beforehand."""

    def __str__(self) -> str:
        return f"{self.finding} {self.remedy}".rstrip()


def diagnose(
    statistics: LoaderStatistics,
    *,
    num_workers: int,
    cores: int | None = None,
    memory: MemoryLeft | None = None,
    trains: bool = True,
    tried_more: bool = False,
) -> Diagnosis:
    """Returns what limits a loader.

    Args:
        statistics: Of a loader, for the whole run or since an earlier snapshot.
        num_workers: Its worker processes.
        cores: Cores that it may use; None is the share of a rank.
        memory: What is left; None if that is not known.
        trains: Whether somebody trains between the batches; False where they are taken at once, as `bench` does.
        tried_more: Whether more workers were measured, and were not faster.
    """
    cores = cores_per_rank() if cores is None else cores
    blocked = statistics.blocked_share
    if trains and statistics.batches and blocked < _TRAINER_WAITS:
        finding = f"The trainer takes the time: it waits {blocked:.0%} of it for batches."
        return Diagnosis("trainer", "", finding, "A faster loader would change nothing.", more_workers=False)
    if memory is not None and memory.is_short:
        left = f"{memory.available_bytes / 2**30:.1f} of {memory.total_bytes / 2**30:.1f} GiB"
        remedy = "Lower num_workers, prefetch_factor, batch_size or buffers."
        return Diagnosis("memory", "", f"Too little memory is left: {left}.", remedy, more_workers=False)
    work = Work.of(statistics, num_workers)
    if work.total_seconds <= 0:
        return Diagnosis("nothing", "", "Nothing was measured yet.", "", more_workers=False)
    if num_workers > 1 and work.idle_share > _IDLE:
        if trains and blocked < _LARGE:
            finding = f"The trainer takes most of the time: it waits {blocked:.0%} of it, and the workers wait for it."
            return Diagnosis("trainer", "", finding, "A faster loader would change little.", more_workers=False)
        return _of_uneven(work, statistics, num_workers)
    return _of_stages(work, statistics, num_workers, cores, tried_more=tried_more)


def _of_uneven(work: Work, statistics: LoaderStatistics, num_workers: int) -> Diagnosis:
    """Returns the diagnosis of a loader most of whose workers wait for room."""
    idle = f"{work.idle_share:.0%} of the workers' time passes because the rank has no room for more"
    if work.rank_waits > _LARGE:
        remedy = (
            "The streams take turns, so the slowest decides: look for long samples in some shards, a slow disk, or a "
            "hook that is slow in one process. A trace shows what it does."
        )
        slow = _slowest_worker(statistics.idle_seconds, num_workers)
        return Diagnosis(
            "slow worker", "", f"{slow} is slower than the others: {idle}, and the rank waits.", remedy, False
        )
    if work.decoder_waits > _LARGE:
        return _of_decoding_in_rank(f"the rank waits {work.decoder_waits:.0%} of the time for its decoder")
    remedy = "Move hooks to the workers (preencode_sample, or SampleDecoder), or use decode_process=True."
    return Diagnosis("rank", "", f"The rank's own process is the limit: {idle}.", remedy, more_workers=False)


def _slowest_worker(idle_seconds: dict[str, float], num_workers: int) -> str:
    """Returns the worker that hardly waited for room while the others did; "One worker" if it is not clear which."""
    running = {name: idle_seconds.get(name, 0.0) for name in (f"worker {number}" for number in range(num_workers))}
    first, second, *_ = sorted(running, key=lambda name: running[name])
    return first.capitalize() if running[first] < _LARGE * running[second] else "One worker"


def _of_decoding_in_rank(finding: str) -> Diagnosis:
    """Returns the diagnosis of a loader that waits for the decoder of its rank, whose threads are not measured."""
    remedy = (
        f"{_SMALLER_MEDIA}. The rank decodes alone, so more workers do not help; a GPU may, and so may decoding in the "
        "workers (SampleDecoder)."
    )
    return Diagnosis("decoding", "decode", f"Decoding takes most of it: {finding}.", remedy, more_workers=False)


def _of_stages(
    work: Work, statistics: LoaderStatistics, num_workers: int, cores: int, *, tried_more: bool
) -> Diagnosis:
    """Returns the diagnosis by the stage that takes most."""
    stage = max(work.seconds, key=lambda name: work.seconds[name])
    share = work.seconds[stage] / work.total_seconds
    sleeps = work.sleeping_share(stage) > _SLEEPS
    is_full = work.wanted_cores > _ALL_CORES * cores
    more = _more_workers(num_workers, is_full=is_full and not sleeps, tried_more=tried_more)
    can_grow = (not is_full or sleeps) and not tried_more
    if stage == "start":
        return Diagnosis("start", stage, f"Starting takes {share:.0%} of the time so far.", "", more_workers=False)
    if stage == _READ and sleeps:
        read = statistics.counts.get("bytes.read", 0) / 1e6 / max(statistics.elapsed_seconds, 1e-9)
        finding = f"Waiting for storage takes most of it: {share:.0%} of the work, at {read:.1f} MB/s."
        remedy = (
            f"Put the data on a faster disk or nearer, keep it with a shard_cache, drop parts that no field needs, or "
            f"let more be requested at once (read_ahead_bytes, requests_in_flight; {more})."
        )
        return Diagnosis("storage", stage, finding, remedy, can_grow)
    if stage == "decode" and stage not in statistics.cpu_seconds:
        return _of_decoding_in_rank(f"{share:.0%} of the work")
    if stage == "decode":
        remedy = f"{_SMALLER_MEDIA}; {more}."
        return Diagnosis("decoding", stage, f"Decoding takes most of it: {share:.0%} of the work.", remedy, can_grow)
    if stage in statistics.hooks:
        if sleeps:
            finding = (
                f"Your hook {stage} takes most of it: {share:.0%} of the work, and it sleeps or waits for something "
                f"{work.sleeping_share(stage):.0%} of that time."
            )
            remedy = f"It needs no core while it waits: {more}."
            if tried_more:
                remedy = (
                    f"{more[:1].upper()}{more[1:]}: what it waits for may be the limit, such as a lock or a server."
                )
            return Diagnosis("sleeping hook", stage, finding, remedy, can_grow)
        finding = f"Your hook {stage} takes most of it: {share:.0%} of the work, which it computes."
        remedy = (
            f"Make it faster, move resizing to the decoder's operations, or tokenise when the dataset is made; {more}."
        )
        return Diagnosis("computing hook", stage, finding, remedy, can_grow)
    finding = f"Most of the work, {share:.0%}, is in the stage {stage}."
    return Diagnosis("nothing", stage, finding, f"{more[:1].upper()}{more[1:]}.", can_grow)


def _more_workers(num_workers: int, *, is_full: bool, tried_more: bool) -> str:
    if is_full:
        return "more workers do not help, because all cores are busy"
    if tried_more:
        return f"{'more ' if num_workers else ''}workers were tried, and were not faster"
    return "more workers help" if num_workers else "workers (num_workers) help"
