"""What goes through a pipeline: a submitted block, and the runs that it is divided into."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from energon_dali.decode.dali.runtime.futures import StreamFuture
from energon_dali.decode.dali.runtime.library import Pipeline
from energon_dali.decode.interface import Outcome

BatchT = TypeVar("BatchT")


@dataclass(slots=True, eq=False)
class Block:
    """A submitted block, until its last part is done."""

    outcomes: list[Outcome | None]
    """One per handle, None while it is missing."""
    missing: int
    """How many are missing."""
    stream: Any
    """torch.cuda.Stream on which the values will be used, on a GPU."""
    future: StreamFuture = field(init=False)
    """Of the whole block."""

    def __post_init__(self) -> None:
        self.future = StreamFuture(self.stream)

    def put(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Takes the outcomes of some positions."""
        for position, outcome in zip(positions, outcomes, strict=True):
            self.outcomes[position] = outcome
        self.missing -= len(positions)
        if self.missing == 0:
            with suppress(InvalidStateError):  # cancelled meanwhile
                self.future.set_result(self.outcomes)  # type: ignore[arg-type]

    def fail(self, error: BaseException) -> None:
        """Gives whoever waits for the block an error."""
        with suppress(InvalidStateError):  # another run of the same block failed before
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Run(Generic[BatchT]):
    """A part of a block that goes through the pipeline at once."""

    block: Block
    """What it is a part of."""
    positions: list[int]
    """Where in the block."""
    batch: BatchT
    """What goes through the pipeline."""
    source_bytes: int
    """Memory that it takes."""
    pipeline: Pipeline | None = None
    """Where it was started."""
    error: BaseException | None = None
    """Why it failed."""
