"""What each rank has to compute in the steps of a job, and how long ranks wait for each other, from the plan alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.stream import State
from energon_dali.diagnosis.step_plan import dataset_at
from energon_dali.errors import ConfigError
from energon_dali.plan.balance import Balance, Per, balance_of, barriers_of, bound_of
from energon_dali.plan.rng import Int64Array

WITHOUT, PER_STEP, PER_MICRO_BATCH = "without balance", "balanced per step", "balanced per micro-batch"


@dataclass(frozen=True, eq=False)
class PlannedLoads:
    """What the ranks have to compute in a step, if it is dealt by a policy."""

    step: int
    """Number of the step."""
    policy: str
    """How it is dealt."""
    sums: Int64Array
    """int64[ranks, micro_batches, 2]: cost of each micro-batch for the vision encoder and for the language model."""
    bounds: Mapping[Per, int]
    """What the sum of the largest loads is at least, by where ranks wait."""

    def waiting_share(self, per: Per) -> float:
        """Returns the share of their time in which ranks wait for others, 0 to 1.

        Args:
            per: Where they wait for each other.
        """
        return 1 - balance_of(barriers_of(self.sums, per))

    def longest(self, per: Per) -> int:
        """Returns the cost of the step: the sum of the largest loads of ranks at each barrier.

        Args:
            per: Where ranks wait for each other.
        """
        return int(barriers_of(self.sums, per).max(1).sum())


def plan_loads(
    dataset: SavableDataset[Any], steps: range, *, compare: bool = False, state: State | None = None
) -> Iterator[PlannedLoads]:
    """Yields what each rank computes in a range of steps, without reading a sample.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned for a balance, on any rank of the job.
        steps: Steps of the job. Those that are left out or do not exist are passed over.
        compare: Yield each step three times: dealt without balance, balanced per step, and per micro-batch.
        state: Plan from a state of the loader on.

    Raises:
        ConfigError: There are no global batches, or no balance, so that nothing has a cost.
        StateError: The state is of another dataset, or after the first step.
    """
    plan = dataset_at(dataset, steps, dataset.worker_config.rank, state).global_batches
    if plan is None or plan.balance is None:
        raise ConfigError(
            "Only a job with global batches and a balance has a cost per rank: give global_batch_size and balance."
        )
    balance = plan.balance
    policies: dict[str, Balance | None] = {"as planned": balance}
    if compare:
        per_step, per_micro_batch = replace(balance, per="step"), replace(balance, per="micro_batch")
        policies = {WITHOUT: None, PER_STEP: per_step, PER_MICRO_BATCH: per_micro_batch}
    for number in steps:
        step = plan.find_step(number)
        if step is None:
            continue
        found, costs, counts = plan.costs_by(step, list(policies.values()))
        bounds: dict[Per, int] = {"step": bound_of(costs, counts, "step")}
        bounds["micro_batch"] = bound_of(costs, counts, "micro_batch")
        for policy, sums in zip(policies, found, strict=True):
            yield PlannedLoads(number, policy, sums, bounds)
