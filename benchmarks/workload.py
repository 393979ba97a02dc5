"""What a benchmark is, as data: workloads, the candidates they compare, and the bars that a ratio has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.data.recipe import Recipe

Environment = Literal["own", "energon"]
Better = Literal["higher", "lower"]
Device = Literal["cpu", "gpu"]
Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One contestant of a workload."""

    name: str
    """Unique inside its workload; stands in the JSON and in the plot."""
    program: str
    """Module under benchmarks.candidates that runs it."""
    options: Mapping[str, Plain] = field(default_factory=dict)
    """What the program is told."""
    environment: Environment = "own"
    """"own" runs in the Python of the runner, "energon" in the environment that holds megatron-energon."""
    series: str = ""
    """In a workload of growth: the line in the plot that it is a point of."""
    at: float = 0.0
    """In a workload of growth: where the point lies, such as the number of shards."""
    recipe: Recipe | None = None
    """Other files than the workload's."""
    batch_size: int | None = None
    """Another batch size than the workload's."""
    checkout: str = ""
    """Another checkout of the repository whose package and programs run, such as a git worktree of an older commit."""

    def __post_init__(self) -> None:
        if not self.name or not self.program.isidentifier():
            raise ValueError(f"{self.name=} must not be empty and {self.program=} must be the name of a module.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A ratio of two candidates that has to be reached."""

    of: str
    """Candidate whose number is divided."""
    to: str
    """Candidate by whose number it is divided."""
    at_least: float | None = None
    """Smallest ratio that is good; None has no lower bound."""
    at_most: float | None = None
    """Largest ratio that is good; None has no upper bound."""
    metric: str | None = None
    """Metric that is compared; None is the workload's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A number of one candidate that has to stay within a bound."""

    of: str
    """Candidate whose number it is."""
    metric: str
    """Which number."""
    at_least: float | None = None
    """Smallest number that is good; None has no lower bound."""
    at_most: float | None = None
    """Largest number that is good; None has no upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One comparison: the same task on the same files for all candidates."""

    name: str
    """Unique in the registry."""
    title: str
    """One line for the plot."""
    metric: str
    """The number that is compared first."""
    unit: str
    """Unit of that number."""
    recipe: Recipe
    """The files."""
    candidates: tuple[Candidate, ...]
    """Who takes part; every repetition runs them one after the other."""
    better: Better = "higher"
    """Whether more of the metric is better, or less."""
    output: str = "none"
    """What is delivered, and checked against the files: "uint8", "float224", "patches"; "clips" (the program of that
    name), "frames", "frames224", "frame-patches"; or "none"."""
    device: Device = "cpu"
    """Where batches must end, and where candidates decode that have the choice."""
    seconds: float = 0
    """The timed part of a run ends after so many seconds, though fewer samples came; 0 waits for all samples."""
    trains: bool = False
    """Whether a simulated training step follows each batch in a part of its own."""
    extra: bool = False
    """Runs only where it is named, or with --all."""
    x_label: str = ""
    """In a workload of growth: what `Candidate.at` counts."""
    warmup_samples: int = 256
    """Samples that pass before the clock starts; where `seconds` is given, half of that time passes instead."""
    samples: int = 3000
    """Samples that are timed."""
    batch_size: int = 64
    """Samples per batch."""
    repetitions: int = 5
    """How often each candidate runs."""
    bars: tuple[Bar, ...] = ()
    """Ratios to be reached."""
    limits: tuple[Limit, ...] = ()
    """Numbers to be kept."""

    def __post_init__(self) -> None:
        names = [candidate.name for candidate in self.candidates]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: candidates share a name: {names}. Give each its own.")
        named = {name for bar in self.bars for name in (bar.of, bar.to)} | {limit.of for limit in self.limits}
        if not named <= set(names):
            raise ValueError(f"{self.name}: bars or limits speak of {sorted(named - set(names))}; there are {names}.")
