"""A loader whose position can be saved and restored exactly, on this layout of ranks and workers and on others."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from typing_extensions import Unpack

from energon_dali.calls import explain_call
from energon_dali.datasets.cursor_entry import cursor_entry, cursor_of
from energon_dali.datasets.deviations import DEVIATIONS
from energon_dali.datasets.planned import plan_obstacles
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.resharding import refuse_resharding, refuse_single_writer
from energon_dali.datasets.skipped_steps import SkipBy, SkippedSteps, as_entry, skipped_by_state, steps_to_skip
from energon_dali.datasets.source import source_of
from energon_dali.datasets.torch_workers import refuse_worker_process
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.basic_loader import BasicDataLoader, LoaderIterator
from energon_dali.loader.delivery_log import DeliveryLog, History, history_of
from energon_dali.loader.loader_options import LoaderArguments, show_loader_options
from energon_dali.loader.loader_state import LoaderIdentity, merge_states
from energon_dali.plan.scheduled import Over, ScheduledBlendPlan, WeightChange
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.state_entries import MAX_COUNT

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State
    from energon_dali.plan import Cursor, GlobalBatchPlan
    from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")


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


logger = logging.getLogger("energon_dali.loader")


@dataclass
class _Asked:
    """What a loader was asked for before its first batch: a state that is restored then does not undo it."""

    skipped: list[SkippedSteps] = field(default_factory=list)
    """Steps of streams that are left out."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Steps of global batches that are left out, as (first, step after the last)."""
    weights: list[tuple[WeightChange, Over, WeightChange]] = field(default_factory=list)
    """Weights that were set, what their points count, and what a state says of them."""

    def again(self, cursor: Cursor, batches: GlobalBatchPlan, history: History) -> Cursor:
        """Returns a cursor of global batches with all of this.

        Args:
            cursor: That of the state.
            batches: The plan that continues there.
            history: That of the state.

        Raises:
            ConfigError: A step with other weights has begun, and the job of the state did not set them.
        """
        for first, stop in self.steps:
            cursor = cursor.without_steps(first, stop)
        known = {replace(change, begin=None) for change in (*history.weights, *cursor.weights)}
        is_made = [made in known for _, _, made in self.weights]
        # Calls come in an order: with one of them, those before it have been made as well.
        to_make = self.weights[len(is_made) - is_made[::-1].index(True) if True in is_made else 0 :]
        for change, over, _ in to_make:
            if history.is_lost and change.at < cursor.step:
                continue  # nothing says whether the job set them
            try:
                cursor = batches.with_weights(cursor, change, over)
            except ConfigError as error:
                raise ConfigError(
                    "set_weights was called before the state was restored, and the job of the state has other weights: "
                    f"{error} Call it after the restore."
                ) from error
        return cursor


class SavableDataLoader(BasicDataLoader[T]):
    """A loader that knows its position: the state is always that of the batches that were delivered.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        worker_config: Deprecated; must equal the dataset's.
        checkpoint_every_sec: Accepted for compatibility with Energon, without effect: every position is exact.
        checkpoint_every_min_n_samples: Likewise.
        n_checkpoints: Likewise.
        gc_collect_every_n_steps: Likewise: workers freeze what lives indefinitely, and Python collects the rest.
        gc_freeze_at_start: Likewise.
        **options: The other arguments of BasicDataLoader.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """

    @explain_call
    @show_loader_options
    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        checkpoint_every_sec: float = 60,
        checkpoint_every_min_n_samples: int | None = None,
        n_checkpoints: int | None = None,
        gc_collect_every_n_steps: int = 10,
        gc_freeze_at_start: bool = True,
        **options: Unpack[LoaderArguments],
    ) -> None:
        super().__init__(dataset, worker_config=worker_config, **options)
        self._identity = LoaderIdentity(self._tree)
        config = self.worker_config
        self._log = None if self._tree.global_batches is None else DeliveryLog(config.rank, config.world_size)
        self._asked = _Asked()

    def __iter__(self) -> SavableLoaderIterator[T]:
        refuse_worker_process()
        refuse_resharding(self.worker_config)
        return SavableLoaderIterator(self)

    # --- the state of a rank ---------------------------------------------------------------------------------------

    def save_state_rank(self) -> State:
        """Returns the state of this rank after the last delivered batch: plain values that survive JSON."""
        return self._make_state(self._delivered())

    def _delivered(self) -> State:
        """Returns the position after the last delivered batch."""
        return self._noted(self._state or RankIterator(self._tree).state_dict())

    def _noted(self, position: State) -> State:
        """Returns a position without its deviations, which are in the log now."""
        self._note_delivered(position)
        return {name: value for name, value in position.items() if name != DEVIATIONS}

    def _note_delivered(self, snapshot: State) -> None:
        if self._log is not None:
            self._log.add(snapshot.get(DEVIATIONS, ()))

    def _note_end(self, snapshot: State) -> None:
        if self._log is not None:  # with `limit`, the same steps come again
            self._log.forget_from(cursor_of(snapshot).unit)

    def _reached(self, position: State) -> int:
        """Returns the unit after the last that was delivered; of a step that was begun, the unit after it."""
        batches, cursor = self._tree.global_batches, cursor_of(position)
        assert batches is not None
        if not cursor.micro_batch:
            return cursor.unit
        return cursor.unit + batches.continued(cursor, batches.world_size, batches.workers).step_at(0, 0).size

    def _folded(self, cursor: Cursor) -> Cursor:
        """Returns a cursor without the weights that are over, which are in the log then."""
        batches, limit = self._tree.global_batches, self._tree.rank_limit()
        assert batches is not None
        assert self._log is not None
        if limit is not None and limit.restart:
            return cursor  # the steps with these weights come again
        cursor, over = batches.folded(cursor)
        self._log.note_weights(over)
        return cursor

    def _make_state(self, position: State) -> State:
        """Returns the state of the loader at a position of its RankIterator."""
        position = self._noted(position)
        log = None
        if self._log is not None:
            position = {**position, "cursor": cursor_entry(self._folded(cursor_of(position)))}
            log = self._log.entry(self._reached(position))
        state = self._identity.make_state(position, log)
        if self._reporter.earlier or self._metrics.failure_kinds():
            state.update(self._reporter.state_entry())
        return state

    def restore_state_rank(self, state: State | None, *, allow_changed_hooks: bool = False) -> None:
        """Continues at a state. Call it before the first batch is taken.

        What `skip_steps` and `set_weights` asked for before holds after it as well.

        Args:
            state: What save_state_rank of the same rank, or save_state_global of any layout, returned. None changes
                nothing, as in Energon.
            allow_changed_hooks: Continue with the hooks of this loader's task encoder if they are not those that saved
                the state, and log what differs. Hooks that are new count their samples from 0. The order of the samples
                must be the same. `ENERGON_DALI_ALLOW_CHANGED_HOOKS=1` does the same for trainers that restore states.

        Raises:
            StateError: Iteration has begun, or the state is of another dataset, or of other hooks that are not allowed.
            LayoutError: The state does not fit this layout of ranks and workers.
            ConfigError: `set_weights` was called before for a step that the job of the state has begun, and that job
                had not set the same weights.
        """
        if state is None:
            return
        if self._begun:
            raise StateError(
                "A state can only be restored before the first batch is taken, and this loader has delivered some. "
                "Make a new loader and restore into that."
            )
        position = self._identity.position(state, allow_changed_hooks=allow_changed_hooks)
        batches = self._tree.global_batches
        if batches is None:
            self._snapshot = {**position, **as_entry([*skipped_by_state(position), *self._asked.skipped])}
        else:
            cursor, config, old_size = cursor_of(position), self.worker_config, state["global_batch"][0]
            asked = self._asked.again(cursor, batches, history_of(state))
            self._blended = (0, 0)
            self._log = DeliveryLog.restored(state, config.rank, config.world_size, self._reached(position))
            if old_size != batches.step_size:
                self._log.change_size(cursor.step, cursor.unit, old_size)
            self._continue_at(position, asked)
        if self._reporter.earlier or "failures" in state:
            self._reporter.take_over(state)

    def state_dict(self) -> State:
        """Same as save_state_rank, under the name that torch's tools use.

        Raises:
            ConfigError: A tool asks that writes the state of one rank for all; give it GlobalLoaderState(loader).
        """
        refuse_single_writer(self.worker_config)
        return self.save_state_rank()

    def load_state_dict(self, state: State) -> None:
        """Same as restore_state_rank, under the name that torch's tools use.

        Raises:
            StateError: Iteration has begun, or the state is of another dataset.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        self.restore_state_rank(state)

    def skip_steps(self, first: int, stop: int, *, by: Literal["auto", "plan", "run"] = "auto") -> None:
        """Leaves out the batches of a range of steps, as after a loss spike: all others come as they would have come.

        Call it on every rank with the same range, before the first batch or between two batches; before or after
        `restore_state_rank`. Epochs end where they would have ended, and states after the range equal those of a run
        that delivered it. A state that is saved before the end of the range holds the range, so that a restored loader
        leaves it out too, on any number of ranks.

        Args:
            first: First step to leave out. Steps count the batches of a rank from 0, over virtual epochs; where the
                data ends (repeat=False, validation), from the beginning of the current pass over it.
            stop: Step after the last one to leave out. Steps that were delivered before are not taken back.
            by: "plan" moves past the steps by integers and reads nothing for them. That is exact if no hook and no
                unreadable sample drops anything in the range; otherwise what follows is shifted by what they would have
                dropped. What decides at run time which elements it yields (packing, filters) runs all the same. "run"
                makes the batches and drops them, which is exact for all hooks. "auto" is "plan" where no hook can drop
                anything, otherwise "run"; the log says which, and why. With global batches all of them are exact and
                read nothing: no sample ever moves another.

        Raises:
            ConfigError: The numbers are no range, or `by` is unknown.
        """
        if by not in ("auto", "plan", "run"):
            raise ConfigError(f'by={by!r} is unknown: give "auto", "plan" or "run".')
        if self._tree.global_batches is not None:
            steps_to_skip(first, stop, "plan", self.worker_config)  # checks the numbers
            with self._turn:
                position = self._delivered()
                self._stop()
                self._continue_at(position, cursor_of(position).without_steps(first, stop))
                if not self._begun:
                    self._asked.steps.append((first, stop))
            logger.info("Steps %d to %d of the job will be left out.", first, stop - 1)
            return
        unknown = plan_obstacles(self.dataset) if by == "auto" else []
        chosen: SkipBy = ("run" if unknown else "plan") if by == "auto" else by
        new = steps_to_skip(first, stop, chosen, self.worker_config)
        why = f", because {unknown[0]}" if unknown else ""
        logger.info("Steps %d to %d will be left out, by %s%s", first, stop - 1, chosen, why or ".")
        with self._turn:
            position = self._state or RankIterator(self._tree).state_dict()
            passed = sum(entry["count"] for entry in position["streams"].values())
            if passed >= stop:
                logger.warning("skip_steps leaves nothing out: step %d comes next, after the range.", passed)
            self._stop()  # what was prefetched may belong to the range
            self._snapshot = {**position, **as_entry([*skipped_by_state(position), new])}
            if not self._begun:
                self._asked.skipped.append(new)

    def _continue_at(self, position: State, cursor: Cursor) -> None:
        """Continues global batches at another cursor than that of a position; nothing may run meanwhile."""
        before, batches = cursor_of(position), self._tree.global_batches
        assert batches is not None
        if cursor.base != before.base:
            found = batches.blended_before(before, cursor.base.unit)
            assert found is not None  # only a blend by weight has another base
            self._blended = np.add(found[0], self._blended[0]), np.add(found[1], self._blended[1])
        if self._log is not None and before.micro_batch and not cursor.micro_batch:
            self._log.forget_from(cursor.unit)  # the step that was begun is left out
            position = {**position, "given": max(0, position["given"] - before.micro_batch)}
        self._snapshot = {**position, "cursor": cursor_entry(cursor)}
        self._must_compare = self._options.check_plan

    # --- the steps of a job with global batches ---------------------------------------------------------------------

    @property
    def consumed_samples(self) -> int:
        """Samples of the whole job before its next step, or before the one that has begun. The same on all ranks.

        This is what Megatron calls consumed samples: those of all steps so far, also of steps that were left out and of
        samples that failed.

        Raises:
            ConfigError: There are no global batches.
        """
        self._global_batches("consumed_samples counts the samples")
        return cursor_of(self._state or RankIterator(self._tree).state_dict()).unit

    @property
    def micro_batches_per_step(self) -> int:
        """Batches of each rank in a step of global batches: over as many a trainer accumulates gradients.

        Raises:
            ConfigError: There are no global batches.
        """
        return self._global_batches("micro_batches_per_step divides the steps").micro_batches_per_step

    def start_at(self, consumed_samples: int, *, step: int | None = None) -> None:
        """Continues a job with global batches by numbers alone, as Megatron keeps them. Nothing is read for it.

        Call it on every rank with the same numbers, before the first batch is taken. A state says more: which weights
        were set, and which steps are left out. Call set_weights and skip_steps before, if the job did.

        Args:
            consumed_samples: Samples of all steps so far, as `consumed_samples` of the loader, or Megatron's
                `args.consumed_train_samples`, says.
            step: Number of the next step, such as Megatron's `args.iteration`. None divides the samples by the size of
                a step; give it if steps had other sizes before, as in a ramp-up of the batch size.

        Raises:
            ConfigError: There are no global batches, the numbers are invalid or end within a step, the data begins
                again with every epoch (limit), or the weights of a blend changed over steps of different sizes.
            StateError: Iteration has begun.
        """
        batches = self._global_batches("start_at continues after samples")
        for name, number in (("consumed_samples", consumed_samples), ("step", 0 if step is None else step)):
            if type(number) is not int or not 0 <= number <= MAX_COUNT:
                raise ConfigError(f"{name}={number!r} is no whole number from 0 to {MAX_COUNT}.")
        if self._begun:
            raise StateError(
                "start_at was called after the first batch was taken. Make a new loader, and call it there first."
            )
        limit = self._tree.rank_limit()
        if limit is not None and limit.restart:
            raise ConfigError(
                "start_at was called for data that begins again with every epoch, because of limit. Leave limit out."
            )
        position = self._snapshot or RankIterator(self._tree).state_dict()
        start = replace(batches.start, weights=cursor_of(position).weights, skipped=cursor_of(position).skipped)
        cursor = replace(batches, start=start).cursor_after(consumed_samples, step)
        given = cursor.step * batches.micro_batches_per_step
        given = given if limit is None else given % limit.length
        self._log = DeliveryLog(self.worker_config.rank, self.worker_config.world_size, cursor.unit)
        self._snapshot = {**position, "given": given, "cursor": cursor_entry(cursor)}

    def _global_batches(self, what: str) -> GlobalBatchPlan:
        batches = self._tree.global_batches
        if batches is None:
            raise ConfigError(
                f"{what} of global batches, and this loader has none. Give get_train_dataset the option "
                "global_batch_size."
            )
        return batches

    def _continue_with(self, config: WorkerConfig) -> None:
        super()._continue_with(config)
        self._identity = LoaderIdentity(self._tree)

    def resize(self, rank: int, world_size: int) -> None:
        """Goes on with another number of ranks, between two steps of global batches. No step changes.

        Call it on every rank, after the same step; ranks that are new restore a state of one of the others instead.

        Args:
            rank: Rank of this process among the new ones.
            world_size: Number of the new ranks.

        Raises:
            ConfigError: There are no global batches, or a step cannot be divided among that many ranks.
            StateError: The step is not over.
        """
        batches = self._tree.global_batches
        if batches is None:
            raise ConfigError(
                "resize changes the ranks of global batches, and this loader has none. Give get_train_dataset the "
                "option global_batch_size; without it, restore a global state in a new loader."
            )
        old = self.worker_config
        config = old.with_layout(rank=rank, world_size=world_size, num_workers=old.num_workers)
        with self._turn:
            position = self._delivered()
            cursor = cursor_of(position)
            if cursor.micro_batch:
                raise StateError(
                    f"resize was called within step {cursor.step}, of which {cursor.micro_batch} micro-batches were "
                    "delivered. Call it after a batch whose is_last_of_step is true."
                )
            steps = position["given"] // batches.micro_batches_per_step
            resized = batches.continued(cursor, world_size, batches.workers)
            old_size, new_size = batches.step_size, resized.step_size  # raises ConfigError before anything changes
            self._stop()
            if self._log is not None:
                self._log.continue_with(rank, world_size, cursor.unit)
                if old_size != new_size:
                    self._log.change_size(cursor.step, cursor.unit, old_size)
            cursor = resized.rebased(cursor, batches.step_size)
            given = steps * resized.micro_batches_per_step
            self._continue_at({**position, "given": given}, cursor)
            self._continue_with(config)

    def set_weights(
        self,
        weights: Sequence[float] | Mapping[str, float],
        *,
        from_step: int | None = None,
        until_step: int | None = None,
        from_sample: int | None = None,
        until_sample: int | None = None,
    ) -> None:
        """Lets the datasets of a blend have other weights from a step on, whatever a schedule says of later ones.

        Call it on every rank with the same arguments, before the first batch or between two batches; before or after
        `restore_state_rank`. The change is part of the state, so that a restored job makes it too; a script that sets
        the same weights and then restores changes nothing. Several calls, in the order of their steps, are phases of
        the job (docs/global-batches.md#weights-over-time).

        Args:
            weights: One finite number of at least 0 per dataset, in the order of the metadataset, or by the names that
                `stats()["blend"]` shows.
            from_step: First step with these weights. It must not have begun. If the weights of the job change over
                samples, the step is where it is with steps of the present size.
            until_step: Let the shares move linearly from those that `from_step` would have to these, which hold from
                this step on. None changes them at once.
            from_sample: First sample of the job with these weights, in place of `from_step`. No step that has begun may
                hold it. The change stays there if steps get another size.
            until_sample: As `until_step`, with `from_sample`.

        Raises:
            ConfigError: There are no global batches or no blend by weight, the weights are invalid, or the step has
                begun.
        """
        batches = self._tree.global_batches
        if batches is None or not isinstance(batches.units, ScheduledBlendPlan):
            raise ConfigError(
                "set_weights changes a blend by weight with global batches, and this loader has none. Give "
                "get_train_dataset a metadataset with `blend` and the option global_batch_size."
            )
        over: Over = "steps" if from_sample is None else "samples"
        begin, until = (from_step, until_step) if over == "steps" else (from_sample, until_sample)
        if begin is None or [from_step, until_step, from_sample, until_sample].count(None) < (
            3 if until is None else 2
        ):
            raise ConfigError(
                f"{from_step=}, {until_step=}, {from_sample=} and {until_sample=} do not say from where on the weights "
                "change: give from_step, or from_step and until_step, or the same with samples."
            )
        for name, number in ((f"from_{over[:-1]}", begin), (f"until_{over[:-1]}", until)):
            if number is not None and (type(number) is not int or not 0 <= number <= MAX_COUNT):
                raise ConfigError(f"{name}={number!r} is invalid: it must be a whole number from 0 to {MAX_COUNT:,}.")
        change = WeightChange(begin, _weights_of(weights, source_of(self._tree).names), until)
        with self._turn:
            position = self._delivered()
            cursor = batches.with_weights(self._folded(cursor_of(position)), change, over)
            self._stop()  # what was prefetched may have other weights
            self._continue_at(position, cursor)
            if not self._begun:
                self._asked.weights.append((change, over, cursor.weights[-1]))

    # --- the state of all ranks ------------------------------------------------------------------------------------

    def save_state_global(self, global_dst_rank: int) -> State | None:
        """Returns the state of all ranks on one of them, None on the others. A collective call with several ranks.

        Args:
            global_dst_rank: Global rank that receives it.

        Raises:
            StateError: There are several ranks, but torch.distributed is not initialised, or the data-parallel group of
                this rank lacks the destination or does not have `world_size` ranks.
        """
        own = self.save_state_rank()
        if self.worker_config.world_size == 1:
            return merge_states([own])
        dist = self._distributed("save_state_global gathers", "global_dst_rank", global_dst_rank)
        group = self.worker_config.data_parallel_group
        at_destination = dist.get_rank() == global_dst_rank
        gathered: list[Any] | None = [None] * self.worker_config.world_size if at_destination else None
        dist.gather_object(own, gathered, dst=global_dst_rank, group=group)
        return None if gathered is None else merge_states(gathered)

    def restore_state_global(
        self,
        state: State | Sequence[State] | None,
        *,
        src_rank: int | None = None,
        allow_changed_hooks: bool = False,
    ) -> None:
        """Continues at a global state. Call it before the first batch is taken.

        Args:
            state: What save_state_global returned, or the list of all ranks' states.
            src_rank: Global rank that has the state and sends it to the others; None if all ranks have it.
            allow_changed_hooks: As in restore_state_rank.

        Raises:
            StateError: Iteration has begun, the state is of another dataset or incomplete, or of other hooks that are
                not allowed, or torch.distributed is needed and not initialised, or the data-parallel group of this rank
                lacks the source or does not have `world_size` ranks.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        if src_rank is not None and self.worker_config.world_size > 1:
            dist = self._distributed("restore_state_global with src_rank broadcasts", "src_rank", src_rank)
            box = [state]
            dist.broadcast_object_list(box, src=src_rank, group=self.worker_config.data_parallel_group)
            state = box[0]
        if state is None:
            return
        whole: Any = merge_states(state) if isinstance(state, (list, tuple)) else state
        self.restore_state_rank(whole, allow_changed_hooks=allow_changed_hooks)

    def save_state(self, dst_rank: int) -> State | None:
        """Deprecated: use save_state_global(global_dst_rank=dst_rank).

        Raises:
            StateError: There are several ranks, but torch.distributed is not initialised.
        """
        warnings.warn("save_state is deprecated: use save_state_global.", DeprecationWarning, stacklevel=2)
        return self.save_state_global(dst_rank)

    def restore_state(self, state: State | Sequence[State] | None) -> None:
        """Deprecated: use restore_state_global(state).

        Raises:
            StateError: As restore_state_global.
            LayoutError: As restore_state_global.
        """
        warnings.warn("restore_state is deprecated: use restore_state_global.", DeprecationWarning, stacklevel=2)
        self.restore_state_global(state)

    def _distributed(self, what: str, name: str, member: int) -> Any:
        """Returns torch.distributed; `name` is the argument that must be a member of this rank's group."""
        import torch.distributed as dist

        config = self.worker_config
        if not (dist.is_available() and dist.is_initialized()):
            raise StateError(
                f"{what} over {config.world_size} ranks, and torch.distributed is not initialised. Call "
                "torch.distributed.init_process_group first, or save each rank with save_state_rank and merge them "
                "with energon_dali.loader.loader_state.merge_states."
            )
        group = config.data_parallel_group
        members = list(range(dist.get_world_size()) if group is None else dist.get_process_group_ranks(group))
        if len(members) != config.world_size:
            raise StateError(
                f"{what} over the ranks {members} of this rank's data-parallel group, and WorkerConfig has world_size "
                f"{config.world_size}. Pass the group of the ranks that read different data as data_parallel_group, "
                "and its size as world_size; WorkerConfig.default_worker_config(data_parallel_group=...) does both."
            )
        if member not in members:
            raise StateError(
                f"{name}={member} is not among the ranks {members} of this rank's data-parallel group. Give a global "
                "rank of the group; each group can have its own."
            )
        return dist


class SavableLoaderIterator(LoaderIterator[T]):
    """The live iteration of a savable loader, with the loader's state methods for tools that only see the iterator.

    Args:
        loader: The loader.
    """

    def __init__(self, loader: SavableDataLoader[T]) -> None:
        super().__init__(loader)
        self._savable = loader

    def save_state_rank(self) -> State:
        """Returns the state of this rank after the last delivered batch."""
        return self._savable.save_state_rank()

    def restore_state_rank(self, state: State | None, *, allow_changed_hooks: bool = False) -> None:
        """Continues at a state, see SavableDataLoader.restore_state_rank.

        Raises:
            StateError: Iteration has begun, or the state is of another dataset, or of other hooks that are not allowed.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        self._savable.restore_state_rank(state, allow_changed_hooks=allow_changed_hooks)

    def save_state_global(self, global_dst_rank: int) -> State | None:
        """Returns the state of all ranks on one of them, see SavableDataLoader.save_state_global.

        Raises:
            StateError: There are several ranks, but torch.distributed is not initialised.
        """
        return self._savable.save_state_global(global_dst_rank)

    state_dict = save_state_rank
    load_state_dict = restore_state_rank


@explain_call
@show_loader_options
def get_savable_loader(
    dataset: SavableDataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    checkpoint_every_sec: float = 60,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int = 10,
    gc_freeze_at_start: bool = True,
    **options: Unpack[LoaderArguments],
) -> SavableDataLoader[T]:
    """Returns a loader whose state can be saved; its arguments are those of `SavableDataLoader`.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """
    return SavableDataLoader(
        dataset,
        worker_config=worker_config,
        checkpoint_every_sec=checkpoint_every_sec,
        checkpoint_every_min_n_samples=checkpoint_every_min_n_samples,
        n_checkpoints=n_checkpoints,
        gc_collect_every_n_steps=gc_collect_every_n_steps,
        gc_freeze_at_start=gc_freeze_at_start,
        **options,
    )
