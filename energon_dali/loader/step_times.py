"""What the last steps of a job with global batches took, next to what was planned for each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.datasets.step_entries import cursor_of
from energon_dali.datasets.stream import State
from energon_dali.errors import ConfigError
from energon_dali.plan.balance import Per, balance_of, barriers_of
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.documents.state_entries import plain

Float64Array = npt.NDArray[np.float64]

_KEPT = 256
"""Steps whose times are kept."""
_SHOWN = 10


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Measured and planned times of steps; `str` shows them as a table.

    Give `sums` and `seconds` to `fit_cost`.
    """

    rank: int
    """The rank that measured."""
    steps: Int64Array
    """int64[n]: numbers of the steps, ascending."""
    seconds: Float64Array
    """float64[n]: from the first batch of a step to the request for that of the next one, without waits for batches.
    Collective operations make the trainer wait for the slowest rank, so this is about the same on all ranks."""
    blocked_seconds: Float64Array
    """float64[n]: how long the trainer waited for batches within the step."""
    sums: Int64Array
    """int64[n, barriers, ranks, 6]: what all ranks compute, in the terms of `fit_cost`. The last step of an epoch may
    have fewer micro-batches: its other barriers are 0."""
    costs: Int64Array | None
    """int64[n, barriers, ranks, 2]: what that costs by the balance of the job; None without one."""

    def planned_seconds(self) -> Float64Array:
        """Returns how long each rank computes, as planned: float64[n, ranks].

        Costs are turned into seconds by one factor, with which all steps together take as long as was measured.

        Raises:
            ConfigError: The job has no balance, so that nothing has a cost.
        """
        if self.costs is None:
            raise ConfigError("The job has no balance, so that nothing has a cost: give get_train_dataset a balance.")
        longest = float(self.costs.max(2, initial=0).sum())
        factor = float(self.seconds.sum()) / longest if longest else 0.0
        seconds: Float64Array = self.costs.sum((1, 3)) * factor
        return seconds

    def planned_waiting_share(self) -> float:
        """Returns the share of the time in which ranks wait for others, as planned, 0 to 1.

        Raises:
            ConfigError: The job has no balance.
        """
        if self.costs is None:
            raise ConfigError("The job has no balance, so that nothing has a cost: give get_train_dataset a balance.")
        return 1 - float(np.mean([balance_of(one) for one in self.costs])) if len(self.costs) else 0.0

    def __str__(self) -> str:
        if self.costs is None:
            rows = zip(self.steps.tolist(), self.seconds.tolist(), strict=True)
            return "\n".join(f"step {step:,}: {seconds:.3f} s" for step, seconds in [*rows][-_SHOWN:])
        lines = ["step  measured  planned: this rank  mean  slowest"]
        planned = self.planned_seconds()
        for step, seconds, of_ranks in [*zip(self.steps.tolist(), self.seconds.tolist(), planned, strict=True)][
            -_SHOWN:
        ]:
            own, mean, slowest = of_ranks[self.rank], of_ranks.mean(), of_ranks.max()
            lines.append(f"{step:4,}  {seconds:6.3f} s  {own:16.3f} s  {mean:.3f} s  {slowest:.3f} s")
        return "\n".join([*lines, f"ranks wait {self.planned_waiting_share():.1%} of their time, as planned"])


class StepClock:
    """Measures how long a trainer takes for each step. Keeps the last ones."""

    def __init__(self) -> None:
        self._done: deque[tuple[Mapping[str, Any], float, float]] = deque(maxlen=_KEPT)
        self._position: Mapping[str, Any] | None = None
        """The position before the first batch of the step that runs; None if that batch was not seen."""
        self._began = 0.0
        self._blocked = 0.0

    def note(self, position: State, asked: float, delivered: float) -> None:
        """Notes a batch.

        Args:
            position: Where the job was before it.
            asked: When the trainer asked for it, of `time.perf_counter`.
            delivered: When it was delivered.
        """
        if position["cursor"]["micro_batch"]:
            self._blocked += delivered - asked
            return
        self.end(asked)
        self._position, self._began, self._blocked = position, delivered, 0.0

    def end(self, asked: float) -> None:
        """Notes the end of a step.

        Args:
            asked: When the trainer asked for what follows.
        """
        if self._position is not None:
            self._done.append((self._position, asked - self._began - self._blocked, self._blocked))
        self._position = None

    def clear(self) -> None:
        """Forgets all steps: others follow than those after them."""
        self._done.clear()
        self._position = None

    def times(self, batches: GlobalBatchPlan, rank: int, last: int) -> StepTimes:
        """Returns the times of the last steps.

        Args:
            batches: The plan of the job.
            rank: The rank.
            last: How many steps, at most.

        Raises:
            ConfigError: Nothing was measured of the samples.
        """
        if batches.measured is None:
            raise ConfigError(
                "step_times shows what was planned for each rank by the measures of its samples, and this job uses "
                "none. Give get_train_dataset a balance, or packs."
            )
        per: Per = "step" if batches.balance is None else batches.balance.per
        steps, sums, costs = [], [], []
        done = [*self._done][-last:]
        for position, _, _ in done:
            plan = batches.continued(cursor_of(plain(position)), batches.world_size, batches.workers)
            step = replace(plan, start=replace(plan.start, skipped=())).step_at(0, 0)
            steps.append(step.number)
            of_step = plan.sums_by_slot(step)
            sums.append(barriers_of(of_step[0], per))
            if of_step[1] is not None:
                costs.append(barriers_of(of_step[1], per))
        return StepTimes(
            rank,
            np.array(steps, np.int64),
            np.array([seconds for _, seconds, _ in done]),
            np.array([blocked for _, _, blocked in done]),
            _stacked(sums, (batches.world_size, 6)),
            None if batches.balance is None else _stacked(costs, (batches.world_size, 2)),
        )


def _stacked(steps: list[Int64Array], shape: tuple[int, int]) -> Int64Array:
    """Returns int64[n, barriers, *shape] of int64[barriers, *shape] of n steps; nothing in barriers that one lacks."""
    found = np.zeros((len(steps), max((len(one) for one in steps), default=1), *shape), np.int64)
    for number, one in enumerate(steps):
        found[number, : len(one)] = one
    return found
