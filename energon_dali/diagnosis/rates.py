"""What `bench` and `tune` vary and measure: settings of a loader, and the rates and CPU time of stages and loaders.

Settings are workers, prefetch and decoder, with the order of samples fixed. CPU time is that of this process, its
threads and its descendants, and of everything else on the machine, from /proc. It also says where the time goes, and
what to change.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from energon_dali.decode import DaliDecoder, Decoder, SampleDecoder
from energon_dali.decode.media_decoder import DecoderOptions, MediaDecoder, options_of
from energon_dali.errors import ConfigError
from energon_dali.loader.advice import Diagnosis, diagnose
from energon_dali.loader.host_memory import memory_left
from energon_dali.loader.statistics import LoaderStatistics
from energon_dali.worker_config import AUTO_STREAMS_PER_RANK

DecoderName = Literal["own", "pil", "dali-cpu", "dali-gpu"]
DECODERS: tuple[DecoderName, ...] = get_args(DecoderName)
STREAMS_PER_RANK = AUTO_STREAMS_PER_RANK
"""Streams that are fixed where nothing else fixes them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a loader."""

    num_workers: int
    """Worker processes; 0 runs everything in the trainer's process."""
    prefetch_factor: int = 2
    """The argument of `get_loader`."""
    decoder: DecoderName = "own"
    """The encoder's own decoder; or SampleDecoder ("pil") or DaliDecoder on the named device, with its options."""

    def __str__(self) -> str:
        workers = "1 worker" if self.num_workers == 1 else f"{self.num_workers} workers"
        return f"{self.decoder}, {workers}, prefetch_factor={self.prefetch_factor}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the setting as plain values."""
        return asdict(self)


def with_decoder(encoder: Any, name: DecoderName) -> Any:
    """Returns a copy of a task encoder with another decoder of the same options; the encoder itself for "own".

    Raises:
        ConfigError: The name is unknown, or the encoder's decoder is of the user's own kind.
    """
    if name not in DECODERS:
        raise ConfigError(f"The decoder {name!r} is unknown: give one of {', '.join(DECODERS)}.")
    if name == "own":
        return encoder
    twin = copy.copy(encoder)
    twin.decoder = _decoder(encoder.decoder, name)
    return twin


def _decoder(own: Decoder | None, name: DecoderName) -> Decoder:
    if type(own) not in (SampleDecoder, DaliDecoder):
        raise ConfigError(
            f"The encoder's decoder is {own!r}, which cannot be exchanged for {name!r}: only SampleDecoder and "
            'DaliDecoder have the same options. Use "own".'
        )
    assert isinstance(own, MediaDecoder)
    options = options_of(own)
    if name == "pil":
        return SampleDecoder(**{option: options[option] for option in DecoderOptions.__annotations__})
    device = name.removeprefix("dali-")
    return DaliDecoder(**{**options, "image_decode_device": device, "video_decode_device": device})


def usable_decoders(own: Decoder | None) -> list[DecoderName]:
    """Returns the decoders that can take the place of an encoder's own on this machine, with "own" first."""
    found: list[DecoderName] = ["own"]
    if type(own) not in (SampleDecoder, DaliDecoder):
        return found
    if type(own) is DaliDecoder:
        found.append("pil")
    if DaliDecoder.available():
        found.append("dali-cpu")
        import torch

        if torch.cuda.is_available():
            found.append("dali-gpu")
    return found


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU time that was used between two moments."""

    own_seconds: float
    """Of this process and its descendants, over all threads."""
    busiest_seconds: float
    """Of the thread among them that used most."""
    other_seconds: float
    """Of all other processes of the machine."""


@dataclass(slots=True)
class CpuMeter:
    """Measures CPU time from when it is made. It needs Linux; elsewhere it measures nothing."""

    _threads: dict[tuple[int, int], int] = field(default_factory=lambda: dict(_thread_times()))
    _machine: float = field(default_factory=lambda: _machine_seconds())

    def read(self) -> CpuUse:
        """Returns what was used since the meter was made; threads that have ended are left out."""
        used = [time - self._threads.get(thread, 0) for thread, time in _thread_times()]
        own = sum(used) / 1e9
        return CpuUse(own, max(used, default=0) / 1e9, max(0.0, _machine_seconds() - self._machine - own))


def _thread_times() -> Iterator[tuple[tuple[int, int], int]]:
    """Yields ((process, thread), CPU time in nanoseconds) of this process and its descendants."""
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{process}/task")
        except OSError:  # it has ended, or this is not Linux
            continue
        for thread in threads:
            try:
                with open(f"/proc/{process}/task/{thread}/schedstat", encoding="ascii") as file:
                    yield (process, int(thread)), int(file.read().split()[0])
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    waiting += map(int, file.read().split())
            except (OSError, ValueError, IndexError):
                continue


def _machine_seconds() -> float:
    """Returns the CPU time of all processes since the machine started; 0 if it is not known."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, soft_irq, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class StageRate:
    """How fast one stage works alone, in one process."""

    name: str
    """"reading", "decoding" or "hooks"; "batching" for the last without hooks of the user's."""
    samples: int
    """Samples that were measured."""
    seconds: float
    """Time that they took."""
    size_bytes: int = 0
    """Bytes that were read."""
    problem: str = ""
    """Why it could not be measured; "" if it was."""

    @property
    def samples_per_second(self) -> float:
        """Samples per second of one process; 0 if it was not measured."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_per_sample(self) -> float:
        """Seconds that a sample takes; 0 if it was not measured."""
        return self.seconds / self.samples if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class LoaderRate:
    """How fast the whole loader delivers in one setting, to a trainer that takes batches at once."""

    setting: Setting
    """What was measured."""
    samples: int
    """Samples that were delivered in the measured time."""
    seconds: float
    """The measured time, after the first batches."""
    first_batch_seconds: float
    """Time until the first batch, with the start of the processes."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Time at work per stage, summed over all processes, since the start."""
    cpu: CpuUse | None = None
    """CPU time of the measured time."""
    statistics: LoaderStatistics | None = None
    """What the loader did in the measured time."""
    problem: str = ""
    """Why it could not be measured; "" if it was."""

    @property
    def samples_per_second(self) -> float:
        """Samples per second; 0 if it was not measured."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def other_cores(self) -> float:
        """How many cores other processes kept busy during the measurement, on average."""
        return self.cpu.other_seconds / self.seconds if self.cpu is not None and self.seconds > 0 else 0.0

    @property
    def idle_samples_per_second(self) -> float:
        """An estimate of the samples per second on a machine that does nothing else.

        The busiest thread and all cores together are the limits, and what the loader waits for other than a core.
        """
        if self.cpu is None or not self.samples or not self.cpu.own_seconds:
            return self.samples_per_second
        waits = 0.0
        if self.statistics is not None:
            waits = self.seconds - self.statistics.core_wait_seconds / (1 + self.setting.num_workers)
        return self.samples / max(self.cpu.busiest_seconds, self.cpu.own_seconds / usable_cores(), waits)

    def diagnosis(self, others: Sequence[LoaderRate] = ()) -> Diagnosis | None:
        """Returns what limits the loader in this setting; None if it was not measured.

        Args:
            others: Other settings that were measured; those with more workers show whether that helps.
        """
        if self.statistics is None:
            return None
        workers = self.setting.num_workers
        more = [one for one in others if one.is_like(self) and one.setting.num_workers > workers]
        return diagnose(
            self.statistics,
            num_workers=workers,
            cores=usable_cores(),
            memory=memory_left(),
            trains=False,
            tried_more=bool(more) and all(one.samples_per_second < _BETTER * self.samples_per_second for one in more),
        )

    def is_like(self, other: LoaderRate) -> bool:
        """Returns whether both were measured, in settings that differ in nothing but the number of workers."""
        mine, theirs = (replace(one.setting, num_workers=0) for one in (self, other))
        return mine == theirs and self.samples > 0 and other.samples > 0


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


_BETTER = 1.05
"""Ratio from which on a setting counts as faster."""
_DISTURBED = 0.2
"""Share of the cores that other processes keep busy from which on the clock says little."""
_SHORT_SECONDS = 0.05
"""Times below this are shown as 0.0 s, so they are left out."""
_SCALES = 1.2
"""Ratio from which on storage delivers more if more workers ask for it, so that its latency is the limit."""


def advise(stages: Sequence[StageRate], loaders: Sequence[LoaderRate]) -> Iterator[str]:
    """Yields sentences about measurements.

    Args:
        stages: Reading, decoding and hooks alone.
        loaders: The whole loader in several settings.
    """
    work = sum(stage.seconds_per_sample for stage in stages)
    if work:
        shares = ", ".join(f"{stage.name} {stage.seconds_per_sample / work:.0%}" for stage in stages if stage.samples)
        yield f"Time per sample in one process, each alone: {work * 1e3:.2f} ms ({shares})."
    measured = [one for one in loaders if not one.problem]
    for failed in (one for one in loaders if one.problem):
        yield f"{failed.setting} could not run: {failed.problem}"
    if not measured:
        return
    best = max(measured, key=lambda one: one.samples_per_second)
    first = measured[0]
    if best is not first and first.samples_per_second:
        ratio = best.samples_per_second / first.samples_per_second
        if ratio > _BETTER:
            yield f"Fastest: {best.setting}, {ratio:.2f} times as fast as {first.setting}."
    slower = [one for one in measured if one.setting.num_workers]
    if slower and all(_BETTER * one.samples_per_second < best.samples_per_second for one in slower):
        yield "Without workers it is fastest: sending samples between processes takes longer than making them."
    yield from explain(best, measured)
    shown_stages = [(name, seconds) for name, seconds in best.stage_seconds.items() if seconds >= _SHORT_SECONDS]
    slowest = sorted(shown_stages, key=lambda pair: -pair[1])[:4]
    if slowest:
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
        yield f"Time of the stages in the fastest setting, over all processes: {shown}."
    disturbed = max((one.other_cores for one in measured), default=0.0)
    if disturbed > _DISTURBED * usable_cores():
        yield (
            f"Other processes kept up to {disturbed:.1f} cores busy. Estimates without them: "
            + ", ".join(f"{one.setting} {one.idle_samples_per_second:,.1f} samples/s" for one in measured)
            + "."
        )


def explain(best: LoaderRate, measured: Sequence[LoaderRate]) -> Iterator[str]:
    """Yields what limits the fastest setting, and what to change.

    Args:
        best: The fastest setting.
        measured: All settings that ran.
    """
    found = best.diagnosis(measured)
    if found is None:
        return
    yield str(found)
    if found.cause == "storage":
        same = [one for one in measured if one.setting.decoder == best.setting.decoder and one.setting.num_workers]
        few, many = (pick(same, key=lambda one: one.setting.num_workers, default=best) for pick in (min, max))
        workers = f"{many.setting.num_workers} workers read"
        if few is many or not few.samples_per_second:
            return
        ratio = many.samples_per_second / few.samples_per_second
        if ratio > _SCALES * math.sqrt(many.setting.num_workers / few.setting.num_workers) / math.sqrt(2):
            yield f"Its latency is the limit: {workers} {ratio:.1f} times as fast as {few.setting.num_workers}."
        else:
            yield f"Its bandwidth is the limit: {workers} only {ratio:.1f} times as fast as {few.setting.num_workers}."
