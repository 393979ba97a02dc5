"""Where the samples that a rank delivered differ from the units of its global batches."""

from __future__ import annotations

from typing import NamedTuple

from energon_dali.datasets.restore_key import UNIT_NAME
from energon_dali.plan import GlobalBatchPlan
from energon_dali.plan.spares import SPARES, attempts_of, unit_of_number
from energon_dali.samples.base import Key

EMPTY = SPARES
"""The outcome of a unit that failed and has no spare."""
LEFT_OUT = SPARES + 1
"""The outcome of units that no step delivers: those of skipped steps, or of the smaller step that is dropped."""
DEVIATIONS = "deviations"
"""Name of the entry in the state of a RankIterator."""


class Deviation(NamedTuple):
    """Units that were not delivered as planned."""

    unit: int
    """The first of them."""
    outcome: int
    """Which spare took its place, from 0 on; or EMPTY, or LEFT_OUT."""
    num_units: int
    """How many units; 1 unless they were left out."""


def units_of_key(key: Key) -> list[int]:
    """Returns the numbers of the units and spares that a batch is made of.

    Args:
        key: The restore key of the batch.
    """
    return [part[part.index(UNIT_NAME) + 1] for part in key if isinstance(part, tuple)]


def find_deviations(plan: GlobalBatchPlan, stream: int, epoch: int, number: int, key: Key) -> tuple[Deviation, ...]:
    """Returns where a micro-batch differs from its units, in their order; () if it does not.

    Args:
        plan: The global batches.
        stream: Stream that made it.
        epoch: Epoch, counted from the one that holds the start.
        number: Its number in the epoch of the stream.
        key: Its restore key.
    """
    numbers, size = units_of_key(key), plan.size_of(stream, epoch, number)
    if len(numbers) == size and not attempts_of(max(numbers)):
        return ()
    outcomes = {unit_of_number(one): attempts_of(one) - 1 for one in numbers if attempts_of(one) <= SPARES}
    found = [Deviation(unit, attempt, 1) for unit, attempt in outcomes.items() if attempt >= 0]
    if len(outcomes) < size:
        units = plan.micro_batch(stream, epoch, number).units.tolist()
        found += [Deviation(unit, EMPTY, 1) for unit in units if unit not in outcomes]
    return tuple(sorted(found))
