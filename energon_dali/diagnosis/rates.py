"""What `bench` and `tune` vary and measure: settings of a loader, and the rates and CPU time of stages and loaders.

Settings are workers, prefetch and decoder, with the order of samples fixed. CPU time is that of this process, its
threads and its descendants, and of everything else on the machine, from /proc. It also says where the time goes, and
what to change.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from energon_dali.decode import DaliDecoder, Decoder, SampleDecoder
from energon_dali.decode.media_decoder import DecoderOptions, MediaDecoder, options_of
from energon_dali.errors import ConfigError
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
    """"reading", "decoding" or "hooks"."""
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
        """Samples per second that CPU time alone allows on a machine that does nothing else.

        The busiest thread and all cores together are the limits. Waits for storage are not counted.
        """
        if self.cpu is None or not self.samples or not self.cpu.own_seconds:
            return self.samples_per_second
        return self.samples / max(self.cpu.busiest_seconds, self.cpu.own_seconds / usable_cores())


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


_LARGE = 0.5
"""Share of the work from which on one stage is said to take most of it."""
_BETTER = 1.05
"""Ratio from which on a setting counts as faster."""
_DISTURBED = 0.2
"""Share of the cores that other processes keep busy from which on the clock says little."""
_BUSY = 0.6
"""Share of what all cores could do alone below which a loader waits for something else."""

_CHANGES = {
    "reading": "Reading takes most of it: put the data on a faster disk, read remote data with more read_ahead_bytes "
    "or a shard_cache, and drop parts that no field needs with part_filter.",
    "decoding": "Decoding takes most of it: store images in the size that the model sees, resize inside the decoder "
    "(operations=[Resize(...)]), and choose fewer frames of videos.",
    "hooks": "Your hooks take most of it: look for the slowest stage below, move work into preencode_sample or the "
    "decoder's operations, and tokenise or resize when the dataset is made.",
}


def advise(stages: Sequence[StageRate], loaders: Sequence[LoaderRate]) -> Iterator[str]:
    """Yields sentences about measurements.

    Args:
        stages: Reading, decoding and hooks alone.
        loaders: The whole loader in several settings.
    """
    work = sum(stage.seconds_per_sample for stage in stages)
    if work:
        shares = ", ".join(f"{stage.name} {stage.seconds_per_sample / work:.0%}" for stage in stages if stage.samples)
        yield f"Work per sample in one process: {work * 1e3:.2f} ms ({shares})."
        largest = max(stages, key=lambda stage: stage.seconds_per_sample)
        if largest.seconds_per_sample > _LARGE * work:
            yield _CHANGES[largest.name]
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
    if best.setting.num_workers == 0:
        yield "Without workers it is fastest: sending samples between processes takes longer than making them."
    slowest = sorted(best.stage_seconds.items(), key=lambda pair: -pair[1])[:4]
    if slowest:
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
        yield f"Time at work in the fastest setting, over all processes: {shown}."
    cores = usable_cores()
    disturbed = max((one.other_cores for one in measured), default=0.0)
    if disturbed > _DISTURBED * cores:
        yield (
            f"Other processes kept up to {disturbed:.1f} cores busy, so these rates say little. By CPU time alone, "
            + ", ".join(f"{one.setting} would deliver {one.idle_samples_per_second:,.1f} samples/s" for one in measured)
            + "."
        )
    if work and best.samples_per_second * work < _BUSY * cores:
        busy = best.samples_per_second * work / cores
        yield (
            f"The fastest setting keeps {cores} cores busy to {busy:.0%} with this work: it waits for storage, for a "
            "single busy process, or the machine has other work. More workers help only if cores are idle."
        )
    elif work and best.setting.num_workers:
        yield f"The fastest setting keeps all {cores} cores busy: only less work per sample, or more cores, helps."
