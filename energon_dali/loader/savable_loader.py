"""A loader whose position can be saved and restored exactly, on this layout of ranks and workers and on others."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from typing_extensions import Unpack

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset, plan_obstacles
from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.step_entries import (
    SkipBy,
    SkippedSteps,
    as_entry,
    cursor_of,
    skipped_by_state,
    steps_to_skip,
)
from energon_dali.datasets.stream import State
from energon_dali.datasets.torch_workers import refuse_caller, refuse_resharding, refuse_worker_process
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.basic_loader import BasicDataLoader, LoaderIterator
from energon_dali.loader.failure_report import FailureReporter
from energon_dali.loader.global_job import GlobalJob, no_weights
from energon_dali.loader.loader_options import LoaderArguments, show_loader_options
from energon_dali.loader.loader_state import LoaderIdentity, merge_states
from energon_dali.loader.processes.signals import interrupts_deferred
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.shards.documents.state_entries import plain
from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")


logger = logging.getLogger("energon_dali.loader")


class SavableDataLoader(BasicDataLoader[T]):
    """A loader that keeps its position: the state is always that of the batches that were delivered.

    Other keyword arguments are those of `BasicDataLoader`.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        worker_config: Deprecated; must equal the dataset's.
        checkpoint_every_sec: Accepted for compatibility with Energon, without effect: every position is exact.
        checkpoint_every_min_n_samples: Likewise.
        n_checkpoints: Likewise.
        gc_collect_every_n_steps: Likewise: workers freeze what lives indefinitely, and Python collects the rest.
        gc_freeze_at_start: Likewise.

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
        self._skipped_before: list[SkippedSteps] = []
        """Steps of streams that were left out before the first batch: a state that is restored later undoes none."""

    def __iter__(self) -> SavableLoaderIterator[T]:
        refuse_worker_process()
        refuse_resharding(self.worker_config)
        return SavableLoaderIterator(self)

    # --- the state of a rank ---------------------------------------------------------------------------------------

    def save_state_rank(self) -> State:
        """Returns the state of this rank after the last delivered batch: plain values that survive JSON."""
        return self._make_state(self._delivered())

    def _plain_position(self) -> State:
        """Returns the position after the last delivered batch, in plain values."""
        return plain(self._snapshot) or RankIterator(self._tree).state_dict()

    def _delivered(self) -> State:
        """Returns the same without its deviations, which are in the log of the job then."""
        position = self._plain_position()
        return position if self._job is None else self._job.noted(position)

    def _make_state(self, position: State) -> State:
        """Returns the state of the loader at a position of its RankIterator."""
        return make_state(self._identity, self._job, self._reporter, self._metrics, position)

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
        with interrupts_deferred():
            if self._job is not None:
                self._go_on_at(self._job.restored(state, position))
                self._steps.clear()
            elif self._skipped_before:
                self._snapshot = {**position, **as_entry([*skipped_by_state(position), *self._skipped_before])}
            else:
                self._snapshot = position
            if self._reporter.earlier or "failures" in state:
                self._reporter.take_over(state)
            self._note_call("restore_state_rank", state=without_failures(state))

    def state_dict(self) -> State:
        """Same as save_state_rank, under the name that torch's tools use.

        Raises:
            ConfigError: A tool asks that writes the state of one rank for all; give it GlobalLoaderState(loader).
        """
        if self.worker_config.world_size > 1:
            refuse_caller("refuse_single_writer", self.worker_config)
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
            stop: Step after the last one to leave out. It does not change steps that were delivered.
            by: "plan" moves past the steps by integers and reads nothing for them. That is exact if no hook and no
                unreadable sample drops anything in the range; otherwise what follows is shifted by what they would have
                dropped. What decides at run time which elements it yields (packing, filters) runs all the same. "run"
                makes the batches and drops them, which is exact for all hooks. "auto" is "plan" where no hook can drop
                anything, otherwise "run"; the log says which, and why. With global batches all of them are exact and
                read nothing: no sample ever moves another.

        Raises:
            ConfigError: The numbers are not a range, or `by` is unknown.
        """
        if by not in ("auto", "plan", "run"):
            raise ConfigError(f'by={by!r} is unknown: give "auto", "plan" or "run".')
        if self._job is not None:
            steps_to_skip(first, stop, "plan", self.worker_config)  # checks the numbers
            with self._turn:
                position = self._delivered()
                self._stop()
                with interrupts_deferred():
                    self._go_on_at(self._job.without_steps(position, first, stop, has_begun=self._begun))
                    self._note_call("skip_steps", first=first, stop=stop, by=by)
            logger.info("Steps %d to %d of the job will be left out.", first, stop - 1)
            return
        unknown = plan_obstacles(self.dataset) if by == "auto" else []
        chosen: SkipBy = ("run" if unknown else "plan") if by == "auto" else by
        new = steps_to_skip(first, stop, chosen, self.worker_config)
        why = f", because {unknown[0]}" if unknown else ""
        logger.info("Steps %d to %d will be left out, by %s%s", first, stop - 1, chosen, why or ".")
        with self._turn:
            position = self._plain_position()
            passed = sum(entry["count"] for entry in position["streams"].values())
            if passed >= stop:
                logger.warning("skip_steps leaves nothing out: step %d comes next, after the range.", passed)
            self._stop()  # what was prefetched may belong to the range
            with interrupts_deferred():
                self._snapshot = {**position, **as_entry([*skipped_by_state(position), new])}
                if not self._begun:
                    self._skipped_before.append(new)
                self._note_call("skip_steps", first=first, stop=stop, by=by)

    def _note_call(self, name: str, **arguments: Any) -> None:
        """Notes a call that decides which batches come; ranks that share their batches compare them.

        Ctrl-C must not come between the change and its note: this rank would go on as if nobody had called.
        """

    def _go_on_at(self, position: State) -> None:
        """Continues global batches at a position; nothing may run meanwhile."""
        self._snapshot = position
        self._must_compare = self._options.check_plan

    # --- the steps of a job with global batches ---------------------------------------------------------------------

    @property
    def consumed_samples(self) -> int:
        """Samples of the whole job before its next step, or before the one that has begun. The same on all ranks.

        This is what Megatron calls consumed samples: those of all steps so far, also of steps that were left out and of
        samples that failed. With planned packs, it is the number of packs.

        Raises:
            ConfigError: There are no global batches.
        """
        _, batches = self._global_batches("consumed_samples counts the samples")
        return batches.consumed_at(cursor_of(self._plain_position()))

    @property
    def micro_batches_per_step(self) -> int:
        """Batches of each rank in a step of global batches: over as many a trainer accumulates gradients.

        Raises:
            ConfigError: There are no global batches.
        """
        return self._global_batches("micro_batches_per_step divides the steps")[1].micro_batches_per_step

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
        job, _ = self._global_batches("start_at continues after samples")
        if self._begun:
            raise StateError(
                "start_at was called after the first batch was taken. Make a new loader, and call it there first."
            )
        position = self._snapshot or RankIterator(self._tree).state_dict()
        with interrupts_deferred():
            self._snapshot = job.started_at(position, consumed_samples, step)
            self._note_call("start_at", consumed_samples=consumed_samples, step=step)

    def _global_batches(self, what: str) -> tuple[GlobalJob, GlobalBatchPlan]:
        batches = self._tree.global_batches
        if batches is None or self._job is None:
            raise ConfigError(
                f"{what} of global batches, and this loader has none. Give get_train_dataset the option "
                "global_batch_size."
            )
        return self._job, batches

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
        if self._job is None:
            raise ConfigError(
                "resize changes the ranks of global batches, and this loader has none. Give get_train_dataset the "
                "option global_batch_size; without it, restore a global state in a new loader."
            )
        old = self.worker_config
        config = old.with_layout(rank=rank, world_size=world_size, num_workers=old.num_workers)
        with self._turn:
            position = self._delivered()
            self._stop()
            with interrupts_deferred():
                self._go_on_at(self._job.resized(position, rank, world_size))
                self._continue_with(config)
                self._note_call("resize", rank=rank, world_size=world_size)

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
        if self._job is None:
            raise no_weights()
        with self._turn:
            position = self._delivered()
            self._stop()  # what was prefetched may have other weights
            steps, samples = (from_step, until_step), (from_sample, until_sample)
            with interrupts_deferred():
                self._go_on_at(self._job.with_weights(position, weights, steps, samples, has_begun=self._begun))
                self._note_call("set_weights", weights=weights, steps=steps, samples=samples)

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
        dist, members = self._distributed("save_state_global gathers")
        if global_dst_rank not in members:
            raise StateError(
                f"global_dst_rank={global_dst_rank} is not among the ranks {members} of this rank's data-parallel "
                "group. Give a global rank of the group; each group can have its own."
            )
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
            src_rank: Rank that has the state and sends it to the others, None if all ranks have it. It counts within
                the data-parallel group, as in Energon, while `global_dst_rank` is a global rank.
            allow_changed_hooks: As in restore_state_rank.

        Raises:
            StateError: Iteration has begun, the state is of another dataset or incomplete, or of other hooks that are
                not allowed, or torch.distributed is needed and not initialised, or the data-parallel group of this rank
                lacks the source or does not have `world_size` ranks, or the source has no state.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        if src_rank is not None and self.worker_config.world_size > 1:
            dist, members = self._distributed("restore_state_global with src_rank broadcasts")
            if src_rank not in range(len(members)):
                raise StateError(
                    f"src_rank={src_rank} is not a rank of this rank's data-parallel group. It counts within the group "
                    f"{members}: give 0 to {len(members) - 1}, not a global rank."
                )
            source = members[src_rank]
            box = [state]
            dist.broadcast_object_list(box, src=source, group=self.worker_config.data_parallel_group)
            if box[0] is None:
                raise StateError(
                    f"src_rank={src_rank} (global rank {source}) sent None instead of a state. Load the state on that "
                    "rank, or give the src_rank that has it. To start from the beginning, call restore_state_global on "
                    "no rank."
                )
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

    def _distributed(self, what: str) -> tuple[Any, list[int]]:
        """Returns torch.distributed, and the global ranks of this rank's data-parallel group in its order."""
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
        return dist, members


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


def without_failures(state: State) -> State:
    """Returns a state without the failures that it lists: they may differ between ranks that share their batches."""
    return {name: value for name, value in state.items() if name != "failures"}


def make_state(
    identity: LoaderIdentity, job: GlobalJob | None, reporter: FailureReporter, metrics: Metrics, position: State
) -> State:
    """Returns the state of a loader at a position.

    Args:
        identity: What all of its states say.
        job: With global batches, the log up to the position.
        reporter: The failures of earlier runs.
        metrics: Those of this run.
        position: The state of its RankIterator.
    """
    log = None
    if job is not None:
        position, log = job.state_at(position)
    state = identity.make_state(position, log)
    if reporter.earlier or metrics.kinds:
        state.update(reporter.state_entry())
    return state
