"""What each step of a job of streams was planned to have, on which rank, by its saved state."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import source_of
from energon_dali.datasets.stream import State
from energon_dali.diagnosis.delivered_steps import StepBatch, StepSample
from energon_dali.diagnosis.step_plan import plan_steps
from energon_dali.loader.loader_state import merge_states

_NOTE = (
    "The job had no global batches, so its state does not say which samples failed. These are the samples as they were "
    "planned: one that failed or was skipped was left out, and what follows in its stream moved up. A debug log says "
    "what was received."
)


class PlannedSteps:
    """The steps of a job without global batches, by its plan. A step is the batch of each rank with this number.

    Args:
        dataset: The dataset of the job, such as `open_streams_of` returns.
        states: Those of some or all ranks.

    Raises:
        StateError: The states are not of one job.
    """

    def __init__(self, dataset: SavableDataset[Any], states: list[State]) -> None:
        state = merge_states(states)
        self._dataset = dataset
        self.sources = source_of(dataset).sources
        """The datasets that it reads."""
        self._numbers = {source.name: number for number, source in enumerate(self.sources)}
        self.world_size = int(state["world_size"])
        """Number of ranks."""
        given = state.get("given", {})
        self.num_delivered = max(map(int, given.values()), default=0)
        """Number of batches that a rank had received."""
        self.notes = [_NOTE]
        """What is not exact, in sentences."""

    def step(self, number: int) -> list[StepBatch] | None:
        """Returns the batch of each rank; None if the data ends before.

        Args:
            number: Its number, from 0.

        Raises:
            ConfigError: The number is too large.
        """
        found = [
            StepBatch(
                batch.rank,
                None,
                tuple(
                    StepSample(
                        self._numbers[one.dataset], one.index, "delivered" if number < self.num_delivered else "planned"
                    )
                    for one in batch.samples
                ),
            )
            for batch in plan_steps(self._dataset, range(number, number + 1))
        ]
        return found or None
