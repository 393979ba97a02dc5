"""What each step of a job with global batches delivered, on which rank and in which micro-batch, by its saved state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.step_entries import EMPTY
from energon_dali.datasets.stream import State
from energon_dali.diagnosis.job_history import JobHistory, Stretch
from energon_dali.plan.global_step import MicroBatch, spare_number

Outcome = Literal["delivered", "planned", "spare", "failed", "left out"]


@dataclass(frozen=True, slots=True)
class StepSample:
    """A sample of a step."""

    source: int
    """Number of its source."""
    number: int
    """Its number in the dataset; of a failed one with a spare, that of the spare."""
    outcome: Outcome
    """Whether it was delivered, is planned for a step that is still to come, took the place of one that failed, failed
    without a spare, or was left out with its step."""
    failed: int | None = None
    """Number of the sample that failed and whose place a spare took; None without one."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A micro-batch of a step."""

    rank: int | None
    """Its rank; None if it is not known which rank had it."""
    micro_batch: int | None
    """Its number among those of the rank in the step; None if it is not known."""
    samples: tuple[StepSample, ...]
    """Its samples, in order."""


class DeliveredSteps:
    """The steps of a job, from its beginning to those that come after its state. Reads no sample.

    Args:
        dataset: The dataset of the job, with global batches, such as `open_dataset_of` returns.
        states: Those of all ranks, or one of all of them.

    Raises:
        ConfigError: The dataset has no global batches.
        StateError: The states are of another dataset, have no global batches, or are not of one job at one time.
    """

    def __init__(self, dataset: SavableDataset[Any], states: list[State]) -> None:
        self._job = JobHistory(dataset, states)
        self._stretches = list(self._job.stretches())
        self.sources = self._job.sources
        """The datasets that it reads."""
        self.notes = [*self._job.incomplete]
        """What is not exact, in sentences."""
        self._has_ranks = self._job.dealt.dealt_by == self._job.state["balance"]
        if not self._has_ranks:
            self.notes.append(
                f"Samples were dealt to ranks by {self._job.state['balance'] or 'no balance'}, which the state cannot "
                "repeat: it is known which samples each step had, and not which rank had them."
            )
        if len({part.world_size for part in self._job.parts if part.stop > part.start}) > 1:
            self.notes.append(
                f"The number of ranks changed while the job ran. Ranks are shown as the last {self.world_size} of them "
                "would have had the samples."
            )

    @property
    def world_size(self) -> int:
        """Number of ranks when the state was saved."""
        return int(self._job.state["world_size"])

    @property
    def num_delivered(self) -> int:
        """Number of steps that were delivered as a whole."""
        return self._job.cursor.step

    @property
    def first_known(self) -> int:
        """The first step whose samples are known: 0, unless the job changed more often than its log could hold."""
        return self._job.cursor.step if self._job.is_lost else 0

    def step(self, number: int) -> list[StepBatch] | None:
        """Returns the micro-batches of a step, by rank; None if there is no such step.

        Args:
            number: Its number, from the beginning of the job.

        Raises:
            StateError: The plan does not fit the state.
        """
        if number < self.first_known:
            return None
        stretch = [one for one in self._stretches if one.first_step <= number or one is self._stretches[0]][-1]
        found = stretch.batches.find_step(number)
        if found is None:
            return None
        if not self._has_ranks:
            parts = range(found.micro_batches)
            return [self._batch(stretch.batches.micro_batch_of_step(found, 0, part), number, None) for part in parts]
        return list(self._of_ranks(stretch, number))

    def _of_ranks(self, stretch: Stretch, number: int) -> Iterator[StepBatch]:
        size = stretch.batches.global_batch_size
        dealt = self._job.dealt_as_saved(size, stretch.batches.start)
        step = dealt.find_step(number)
        assert step is not None, "sizes of ranks do not change which steps there are"
        for rank in range(self.world_size):
            for micro_batch in range(step.micro_batches):
                found = dealt.micro_batch_of_step(step, rank, micro_batch)
                yield self._batch(found, number, rank)

    def _batch(self, batch: MicroBatch, step: int, rank: int | None) -> StepBatch:
        cursor = self._job.cursor
        is_over = step < cursor.step or (step == cursor.step and batch.number < cursor.micro_batch)
        samples = tuple(self._samples(batch, "delivered" if is_over else "planned"))
        return StepBatch(rank, None if rank is None else batch.number, samples)

    def _samples(self, batch: MicroBatch, outcome: Outcome) -> Iterator[StepSample]:
        job, rows = self._job, batch.rows
        order = np.argsort(batch.units)
        outcomes = {int(order[at]): found for at, found in job.deviations.among(batch.units[order])}
        for at, (unit, row) in enumerate(zip(batch.units.tolist(), rows.as_tuples(), strict=True)):
            own, shard, index, _ = row
            source = self.sources[own]
            number = source.reader.index_of(shard, index)
            attempt = outcomes.get(at)
            if any(first <= unit < stop for first, stop in job.deviations.left_out):
                yield StepSample(own, number, "left out")
            elif attempt is None:
                yield StepSample(own, number, outcome)
            elif attempt == EMPTY:
                yield StepSample(own, number, "failed")
            else:
                spare = source.number_of(spare_number(job.seed, unit, attempt, source.num_samples))
                yield StepSample(own, spare, "spare", number)
