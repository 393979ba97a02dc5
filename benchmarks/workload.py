"""Benchmarks as data: workloads, the candidates that they compare, and the bars that ratios have to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.data.recipe import Recipe

Environment = Literal["own", "energon", "peers"]
Better = Literal["higher", "lower"]
Device = Literal["cpu", "gpu"]
Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One candidate of a workload."""

    name: str
    """Unique within its workload; used in the JSON and in the plot."""
    program: str
    """Module under benchmarks.candidates that runs it."""
    options: Mapping[str, Plain] = field(default_factory=dict)
    """Options of the program."""
    environment: Environment = "own"
    """"own" runs in the Python of the runner, "energon" in the environment with megatron-energon, "peers" in that with
    other loaders."""
    format: str = ""
    """A format of its own that the program converts the files to: "mds", "litdata"; they get a folder next to them."""
    series: str = ""
    """In a growth workload: its line in the plot."""
    at: float = 0.0
    """In a growth workload: position of the point, such as the number of shards."""
    recipe: Recipe | None = None
    """Files that replace those of the workload."""
    batch_size: int | None = None
    """Batch size that replaces that of the workload."""
    checkout: str = ""
    """Another checkout of the repository whose package and programs run, such as a git worktree of an older commit."""

    def __post_init__(self) -> None:
        if not self.name or not self.program.isidentifier():
            raise ValueError(f"{self.name=} must not be empty and {self.program=} must be the name of a module.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A ratio, or a difference, of two candidates that has to be reached."""

    of: str
    """Candidate of the numerator."""
    to: str
    """Candidate of the denominator."""
    at_least: float | None = None
    """Lower bound of the ratio; None for none."""
    at_most: float | None = None
    """Upper bound of the ratio; None for none."""
    difference: bool = False
    """Whether it is the numerator less the denominator, and not their ratio."""
    metric: str | None = None
    """Metric that is compared; None is that of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A number of one candidate that has to stay within a bound."""

    of: str
    """The candidate."""
    metric: str
    """The metric."""
    at_least: float | None = None
    """Lower bound; None for none."""
    at_most: float | None = None
    """Upper bound; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One comparison: the same task on the same files for all candidates."""

    name: str
    """Unique in the registry."""
    title: str
    """Title in the plot."""
    metric: str
    """The main metric."""
    unit: str
    """Unit of the metric."""
    recipe: Recipe
    """The files."""
    candidates: tuple[Candidate, ...]
    """The candidates; every repetition runs them one after the other."""
    better: Better = "higher"
    """Whether higher values of the metric are better."""
    output: str = "none"
    """What is delivered, and checked against the files: "uint8", "float224", "patches"; "clips" (the program of that
    name), "frames", "frames224", "frame-patches"; "jpeg", "text", "decoded" (of remote files: the bytes, or
    the pixels); or "none"."""
    device: Device = "cpu"
    """Device on which batches are delivered, and on which candidates decode if they support both."""
    seconds: float = 0
    """Time limit of the timed part of a run in seconds; 0 waits for all samples."""
    trains: bool = False
    """Whether a separate part of the run has a simulated training step after each batch."""
    extra: bool = False
    """Whether it runs only if it is named, or with --all."""
    storage: Mapping[str, float] | None = None
    """Fields of `ServerOptions`: the files are read from an S3 server that behaves so. None is the local disk."""
    x_label: str = ""
    """In a growth workload: the unit of `Candidate.at`."""
    warmup_samples: int = 256
    """Warm-up samples before the timed part; if `seconds` is given, half of that time is used instead."""
    samples: int = 3000
    """Samples that are timed."""
    batch_size: int = 64
    """Samples per batch."""
    repetitions: int = 5
    """Number of runs of each candidate."""
    bars: tuple[Bar, ...] = ()
    """Ratios to be reached."""
    limits: tuple[Limit, ...] = ()
    """Bounds to be kept."""

    def __post_init__(self) -> None:
        names = [candidate.name for candidate in self.candidates]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: candidates share a name: {names}. Give each its own.")
        named = {name for bar in self.bars for name in (bar.of, bar.to)} | {limit.of for limit in self.limits}
        if not named <= set(names):
            raise ValueError(f"{self.name}: bars or limits speak of {sorted(named - set(names))}; there are {names}.")
