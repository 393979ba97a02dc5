"""What a rank keeps of a job with global batches besides its position, and how the position changes between steps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import source_of
from energon_dali.datasets.step_entries import DEVIATIONS, ENDS_EPOCH, cursor_entry, cursor_of
from energon_dali.datasets.stream import State
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.delivery_log import DeliveryLog, History, history_of
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor
from energon_dali.plan.scheduled import Over, ScheduledBlendPlan, WeightChange
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.state_entries import MAX_COUNT


class GlobalJob:
    """The log of a rank, and what its loader was asked for. A position is a state of a RankIterator.

    Args:
        tree: The dataset, with global batches.
    """

    def __init__(self, tree: SavableDataset[Any]) -> None:
        self.tree = tree
        """The dataset that runs now."""
        config = tree.worker_config
        self._log = DeliveryLog(config.rank, config.world_size)
        self._blended: tuple[Any, Any] = (0, 0)
        self._asked_steps: list[tuple[int, int]] = []
        """Steps that were left out before the first batch, as (first, step after the last)."""
        self._asked_weights: list[tuple[WeightChange, Over, WeightChange]] = []
        """Weights that were set before the first batch, what their points count, and what a state says of them."""

    def twin(self) -> GlobalJob:
        """Returns a copy with a log of its own."""
        twin = copy.copy(self)
        twin._log = self._log.twin()
        return twin

    @property
    def _batches(self) -> GlobalBatchPlan:
        batches = self.tree.global_batches
        assert batches is not None, "a loader makes this for global batches alone"
        return batches

    # --- the log ----------------------------------------------------------------------------------------------------

    def note(self, position: State) -> None:
        """Notes what the last delivered batch was other than planned."""
        self._log.add(position.get(DEVIATIONS, ()))

    def note_end(self, position: State) -> None:
        """Notes the end of an epoch: with `limit`, the same steps come again."""
        self._log.forget_from(cursor_of(position).unit)

    def noted(self, position: State) -> State:
        """Returns a position without its deviations, which are in the log then."""
        self.note(position)
        return {name: value for name, value in position.items() if name != DEVIATIONS}

    def state_at(self, position: State) -> tuple[State, State]:
        """Returns (the position with what is over folded, the entry of the log) for a state of the loader."""
        position = self.noted(position)
        position = {**position, "cursor": cursor_entry(self._folded(cursor_of(position)))}
        return position, self._log.entry(self._reached(position))

    def _reached(self, position: State) -> int:
        """Returns the unit after the last that was delivered; of a step that was begun, the unit after it."""
        batches, cursor = self._batches, cursor_of(position)
        if not cursor.micro_batch:
            return cursor.unit
        step = batches.find_step(cursor.step)
        if step is None or step.first_unit != cursor.unit:  # of an epoch after the first, or before the tree begins
            step = batches.continued(cursor, batches.world_size, batches.workers).step_at(0, 0)
        return cursor.unit + step.size

    def _folded(self, cursor: Cursor) -> Cursor:
        """Returns a cursor without the weights that are over, which are in the log then."""
        limit = self.tree.rank_limit
        if limit is not None and limit.restart:
            return cursor  # the steps with these weights come again
        cursor, over = self._batches.folded(cursor)
        self._log.note_weights(over)
        return cursor

    # --- positions --------------------------------------------------------------------------------------------------

    def restored(self, state: State, position: State) -> State:
        """Returns the position of a state, with what was asked for before.

        Args:
            state: The state of the loader.
            position: Its position.

        Raises:
            ConfigError: A step with other weights has begun, and the job of the state did not set them.
        """
        batches, config, cursor = self._batches, self.tree.worker_config, cursor_of(position)
        asked = self._asked_again(cursor, history_of(state))
        self._blended = (0, 0)
        self._log = DeliveryLog.restored(state, config.rank, config.world_size, self._reached(position))
        old_size = state["global_batch"][0]
        if old_size != batches.step_size:
            self._log.change_size(cursor.step, cursor.unit, old_size)
        return self._moved(position, asked)

    def without_steps(self, position: State, first: int, stop: int, *, has_begun: bool) -> State:
        """Returns a position from which on steps are left out.

        Args:
            position: Where the job is.
            first: First step to leave out.
            stop: Step after the last one.
            has_begun: Whether the loader has; otherwise a state that is restored later changes nothing of it.
        """
        if not has_begun:
            self._asked_steps.append((first, stop))
        return self._moved(position, cursor_of(position).without_steps(first, stop))

    def with_weights(
        self,
        position: State,
        weights: Sequence[float] | Mapping[str, float],
        steps: tuple[int | None, int | None],
        samples: tuple[int | None, int | None],
        *,
        has_begun: bool,
    ) -> State:
        """Returns a position from which on a blend has other weights; see `SavableDataLoader.set_weights`.

        Args:
            position: Where the job is.
            weights: The weights.
            steps: `from_step` and `until_step`.
            samples: `from_sample` and `until_sample`.
            has_begun: Whether the loader has; otherwise a state that is restored later changes nothing of it.

        Raises:
            ConfigError: There is no blend by weight, the weights are invalid, or the step has begun.
        """
        batches = self._batches
        if not isinstance(batches.units, ScheduledBlendPlan):
            raise no_weights()
        over: Over = "steps" if samples[0] is None else "samples"
        begin, until = steps if over == "steps" else samples
        if begin is None or [*steps, *samples].count(None) < (3 if until is None else 2):
            raise ConfigError(
                f"from_step={steps[0]}, until_step={steps[1]}, from_sample={samples[0]} and until_sample={samples[1]} "
                "do not say from where on the weights change: give from_step, or from_step and until_step, or the same "
                "with samples."
            )
        for name, number in ((f"from_{over[:-1]}", begin), (f"until_{over[:-1]}", until)):
            _check_number(name, 0 if number is None else number)
        names = source_of(self.tree).names
        change = WeightChange(begin, _weights_of(weights, names), until)
        for name, weight, plan in zip(names, change.weights, batches.units.members, strict=False):
            if weight and not plan.num_samples:
                raise ConfigError(
                    f"set_weights gives {name} the weight {weight}, and it has no sample: its split part, or its "
                    "subset, is empty. Give it the weight 0."
                )
        cursor = batches.with_weights(self._folded(cursor_of(position)), change, over)
        if not has_begun:
            self._asked_weights.append((change, over, cursor.weights[-1]))
        return self._moved(position, cursor)

    def started_at(self, position: State, consumed_samples: int, step: int | None) -> State:
        """Returns the position after a number of samples; see `SavableDataLoader.start_at`.

        Args:
            position: Where the job is.
            consumed_samples: Samples of all steps so far.
            step: Number of the next step; None counts steps of the present size.

        Raises:
            ConfigError: The numbers are invalid or end within a step, the data begins again with every epoch (limit),
                or the weights of a blend changed over steps of different sizes.
        """
        for name, number in (("consumed_samples", consumed_samples), ("step", 0 if step is None else step)):
            _check_number(name, number)
        batches, limit, before = self._batches, self.tree.rank_limit, cursor_of(position)
        if limit is not None and limit.restart:
            raise ConfigError(
                "start_at was called for data that begins again with every epoch, because of limit. Leave limit out."
            )
        start = replace(batches.start, weights=before.weights, skipped=before.skipped)
        cursor = replace(batches, start=start).cursor_after(consumed_samples, step)
        given = cursor.step * batches.micro_batches_per_step
        config = self.tree.worker_config
        self._log = DeliveryLog(config.rank, config.world_size, cursor.unit)
        given = given if limit is None else given % limit.length
        moved = {**position, "given": given, "cursor": cursor_entry(cursor)}
        return {name: value for name, value in moved.items() if name != ENDS_EPOCH}

    def resized(self, position: State, rank: int, world_size: int) -> State:
        """Returns a position from which on there are other ranks; see `SavableDataLoader.resize`.

        Args:
            position: Where the job is.
            rank: Rank of this process among the new ones.
            world_size: Number of the new ranks.

        Raises:
            ConfigError: A step cannot be divided among that many ranks.
            StateError: The step is not over.
        """
        batches, cursor = self._batches, cursor_of(position)
        if cursor.micro_batch:
            raise StateError(
                f"resize was called within step {cursor.step}, of which {cursor.micro_batch} micro-batches were "
                "delivered. Call it after a batch whose is_last_of_step is true."
            )
        steps = position["given"] // batches.micro_batches_per_step
        resized = batches.continued(cursor, world_size, batches.workers)
        old_size, new_size = batches.step_size, resized.step_size  # raises ConfigError before anything changes
        self._log.continue_with(rank, world_size, cursor.unit)
        if old_size != new_size:
            self._log.change_size(cursor.step, cursor.unit, old_size)
        given = steps * resized.micro_batches_per_step
        return self._moved({**position, "given": given}, resized.rebased(cursor, old_size))

    def blended(self, position: State | None) -> tuple[list[float], list[int]] | None:
        """Returns (units that each dataset of a blend should have, units that it has) in the delivered steps.

        Args:
            position: Where the job is; None at its beginning.
        """
        batches = self._batches
        found = batches.blended_before(batches.start if position is None else cursor_of(position))
        if found is None:
            return None
        wanted, planned = (np.add(one, before).tolist() for one, before in zip(found, self._blended, strict=True))
        return wanted, planned

    def _moved(self, position: State, cursor: Cursor) -> State:
        """Returns a position at another cursor."""
        before = cursor_of(position)
        if cursor.base != before.base:
            found = self._batches.blended_before(before, cursor.base.unit)
            if found is not None:  # packs whose weights change over steps count no shares
                self._blended = np.add(found[0], self._blended[0]), np.add(found[1], self._blended[1])
        if before.micro_batch and not cursor.micro_batch:
            self._log.forget_from(cursor.unit)  # the step that was begun is left out
            position = {**position, "given": max(0, position["given"] - before.micro_batch)}
        return {**position, "cursor": cursor_entry(cursor)}

    def _asked_again(self, cursor: Cursor, history: History) -> Cursor:
        """Returns the cursor of a state with what was asked for before.

        Args:
            cursor: The cursor.
            history: That of the state.

        Raises:
            ConfigError: A step with other weights has begun, and the job of the state did not set them.
        """
        for first, stop in self._asked_steps:
            cursor = cursor.without_steps(first, stop)
        known = {replace(change, begin=None) for change in (*history.weights, *cursor.weights)}
        is_made = [made in known for _, _, made in self._asked_weights]
        # Calls come in an order: with one of them, those before it have been made as well.
        to_make = self._asked_weights[len(is_made) - is_made[::-1].index(True) if True in is_made else 0 :]
        for change, over, _ in to_make:
            if history.is_lost and change.at < cursor.step:
                continue  # nothing says whether the job set them
            try:
                cursor = self._batches.with_weights(cursor, change, over)
            except ConfigError as error:
                raise ConfigError(
                    "set_weights was called before the state was restored, and the job of the state has other weights: "
                    f"{error} Call it after the restore."
                ) from error
        return cursor


def _check_number(name: str, number: object) -> None:
    if type(number) is not int or not 0 <= number <= MAX_COUNT:
        raise ConfigError(f"{name}={number!r} is invalid: it must be a whole number from 0 to {MAX_COUNT:,}.")


def no_weights() -> ConfigError:
    """Returns the error of a loader without weights that can be set."""
    return ConfigError(
        "set_weights changes a blend by weight with global batches, and this loader has none. Give get_train_dataset a "
        "metadataset with `blend` and the option global_batch_size."
    )


def _weights_of(given: Sequence[float] | Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    """Returns one weight per dataset.

    Raises:
        ConfigError: A name is unknown or missing, the weights are too many or too few, or one is not a number.
    """
    if isinstance(given, Mapping):
        if set(given) != set(names):
            raise ConfigError(f"The weights are of {sorted(map(str, given))}: give one for each of {list(names)}.")
        given = [given[name] for name in names]
    try:
        weights = tuple(map(float, given))
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"The weights {excerpt(given)} are not numbers of at most 64 bits: give one for each of {list(names)}."
        ) from None
    if len(weights) != len(names):
        raise ConfigError(f"{len(weights)} weights were given for {len(names)} datasets: give one each.")
    return weights


def check_accumulation(dataset: SavableDataset[Any], given: int, name: str) -> None:
    """Checks that a step of the optimizer is a step of the job; without global batches it may be any.

    Args:
        dataset: What the trainer trains on.
        given: Batches over which the trainer accumulates gradients.
        name: What the trainer calls that number.

    Raises:
        ConfigError: It is not the number of batches that each rank has in a step.
    """
    batches = dataset.global_batches
    if batches is None or given == batches.micro_batches_per_step:
        return
    needed, size, ranks = batches.micro_batches_per_step, batches.step_size, batches.world_size
    other = "" if size % (ranks * given) else f", or batch_size={size // (ranks * given)}"
    raise ConfigError(
        f"{name}={given}, and a step of global_batch_size={size} is {needed} batches of at most "
        f"{batches.micro_batch_size} samples on each of {ranks} ranks. Give {name}={needed}{other}: then a step of the "
        "optimizer is a step of the job."
    )
