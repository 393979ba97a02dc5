"""The base classes of all datasets: recipes that open one iterator per stream, whose position can be saved."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from torch.utils.data import IterableDataset
from typing_extensions import Self

from energon_dali.datasets.rank_iterator import RankIterator, RankLimit
from energon_dali.datasets.restore_key import try_restore
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.datasets.torch_workers import (
    is_sent_to_torch_workers,
    refuse_caller,
    refuse_indexing,
    refuse_resharding,
    refuse_restarts,
    state_for_worker,
    torch_worker,
)
from energon_dali.errors import ConfigError, StateError
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor
from energon_dali.plan.rng import mix
from energon_dali.samples.base import Key
from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")

_POSITION = "_position"
"""Attribute of a dataset that was sent to a worker process of a torch `DataLoader`: where its iteration was."""


class SavableDataset(IterableDataset[T], ABC, Generic[T]):
    """A dataset: an immutable, picklable recipe. `open` returns an iterator over one of its streams.

    Iterating the dataset itself runs the streams of this rank in this process, round robin; `state_dict` is the state
    of that iteration. A loader does the same with worker processes. In a worker process of a torch `DataLoader`,
    iteration and state are those of the streams of this worker: give the `DataLoader` the number of workers of the
    WorkerConfig, and each sample is delivered once.
    """

    runs_in_rank = False
    """Whether this dataset has to run in the rank's process, because it uses the device or the order of the rank."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config

    @abstractmethod
    def open(self, context: StreamContext) -> StreamIterator[T]:
        """Returns a new iterator over the elements of `context.stream`, from its beginning."""

    @property
    @abstractmethod
    def children(self) -> tuple[SavableDataset[Any], ...]:
        """The datasets that this one reads from."""

    @abstractmethod
    def len_stream(self, stream: int) -> int:
        """Returns the number of elements of a stream in one epoch, as far as it is known before hooks run."""

    def with_children(self, *children: SavableDataset[Any]) -> Self:
        """Returns a copy that reads from other datasets; the dataset itself if it reads from none.

        Args:
            *children: As many datasets as in `children`.

        Raises:
            TypeError: This class has children and does not override this method.
        """
        if self.children:
            raise TypeError(f"{type(self).__name__} must override with_children, since it has children.")
        return self

    mixture_position = 0
    """Number of this dataset's position in the mixtures above it, on which its random draws depend."""

    def at_position(self, number: int) -> Self:
        """Returns a copy for one position in a mixture: the same data has another order at another position.

        Args:
            number: Number of the position. Nested positions are ordered: 2 within 1 differs from 1 within 2.
        """
        twin = self.with_children(*(child.at_position(number) for child in self.children))
        if twin is not self:
            twin.mixture_position = mix(self.mixture_position, number)
        return twin

    @property
    def hook_seed(self) -> int:
        """Seed for what hooks of this dataset draw: that of the job, or another for each position in a mixture."""
        seed = self.worker_config.seed_offset
        return mix(seed, self.mixture_position) if self.mixture_position else seed

    @property
    def global_batches(self) -> GlobalBatchPlan | None:
        """The plan of the steps of the job; None without global batches.

        Raises:
            ConfigError: Datasets with global batches are mixed.
        """
        plans = [child.global_batches for child in self.children]
        found = next((plan for plan in plans if plan is not None), None)
        if found is not None and len(plans) > 1:
            raise ConfigError(
                f"{self.describe()} mixes datasets with global batches, and a step is a fixed set of samples of one of "
                "them. Mix the datasets in a metadataset, and give global_batch_size for that."
            )
        return found

    holds_elements = True
    """Whether its states hold elements that hooks below made, so that these hooks cannot be added or removed."""

    counts_batches = False
    """Whether the stages of a pipeline, up to its batches, are below."""

    keeps_steps = False
    """Whether each element below gives one element here, as steps of global batches need it."""

    def continued(self, start: Cursor, config: WorkerConfig) -> Self:
        """Returns a copy whose global batches begin at a cursor.

        Args:
            start: Where the job continues.
            config: The ranks and workers with which it does.
        """
        twin = self.with_children(*(child.continued(start, config) for child in self.children))
        twin.worker_config = config
        return twin

    rank_limit: RankLimit | None = None
    """After how many elements an epoch of a rank ends; None if the streams end it.

    With a limit, the rank runs the dataset below instead and counts the elements of all its streams together.
    """

    @property
    def plan_obstacle(self) -> str | None:
        """Why the elements of this dataset cannot be planned, in a sentence.

        None if integers alone decide which samples each element holds.
        """
        return f"{self.describe()} decides at run time which elements it yields."

    shown_in_config = True
    """Whether configs name this dataset. False where it changes neither the elements nor their order."""

    def describe(self) -> str:
        """Returns one line about this dataset alone, for `str()`."""
        return type(self).__name__

    def config(self) -> dict[str, Any]:
        """Returns what this dataset does, as plain values. Datasets with equal configs have equal orders."""
        if not self.shown_in_config:
            (child,) = self.children
            return child.config()
        inner = [inner_config(child) for child in self.children]
        return {"type": type(self).__name__, **({"inner": inner[0] if len(inner) == 1 else inner} if inner else {})}

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Returns the number of elements per epoch in one worker (default 0) of this rank."""
        config = self.worker_config
        return sum(self.len_stream(s) for s in config.layout.worker_streams(config.rank, worker_idx or 0))

    def len_rank(self) -> int:
        """Returns the number of elements per epoch in this rank."""
        return sum(self.len_stream(stream) for stream in self.worker_config.streams)

    def __len__(self) -> int:
        return self.len_rank()

    def worker_has_samples(self) -> bool:
        """Returns whether any stream of this rank has an element."""
        return any(self.len_stream(stream) for stream in self.worker_config.streams)

    def can_restore_sample(self) -> bool:
        """Returns whether `restore_sample` works, which needs every hook below to be marked stateless."""
        return all(child.can_restore_sample() for child in self.children)

    def assert_can_restore(self) -> None:
        """Raises StateError with the name of the dataset that prevents `restore_sample`, if there is one."""
        if not self.can_restore_sample():
            raise StateError(
                f"{self.describe()} cannot restore single samples, because a hook below is not marked "
                f"@stateless:\n{self}\n"
                "Mark the hook with @stateless (or @stateless(restore_seeds=True) if it draws random numbers)."
            )

    def restore_sample(self, restore_key: tuple[Any, ...]) -> T:
        """Returns the element of a `__restore_key__`, made again.

        Args:
            restore_key: The `__restore_key__` of an element of this dataset; lists are accepted in place of tuples.

        Raises:
            StateError: The key is not of this dataset, or a hook is not stateless.
        """
        raise StateError(f"{self.describe()} cannot restore single samples.")

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        """Returns the elements of several keys, read together if that is cheaper; errors in place of lost ones.

        Raises:
            StateError: A key is not of this dataset, or a hook is not stateless.
        """
        return [try_restore(self.restore_sample, key) for key in keys]

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def _repr_html_(self) -> str:
        from energon_dali.samples.cards import card

        config = self.worker_config
        rows = [
            ("rank", f"{config.rank} of {config.world_size}"),
            ("workers", f"{config.num_workers}" if config.num_workers else "0: in this process"),
            ("streams of this rank", f"{len(config.streams)}"),
        ]
        return card("Dataset", rows, note=self.describe(), text=("Tree, outermost first", str(self)), opened=True)

    def __str__(self) -> str:
        lines = [self.describe()]
        for child in self.children:
            lines += ["  " + line for line in str(child).splitlines()]
        return "\n".join(lines)

    # --- iteration in this process ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:
        refuse_caller("refuse_trainer", self)
        refuse_resharding(self.worker_config)
        return iter(self._live())

    def __getitem__(self, index: object) -> NoReturn:
        refuse_indexing(self)

    def state_dict(self) -> State:
        """Returns the state of the live iteration in this process."""
        return self._live().state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continues the iteration in this process at `state`. Call it before iterating.

        Raises:
            StateError: The state is of another dataset, or iteration has begun.
        """
        self._live().load_state_dict(state)

    def save_state(self) -> State:
        """Returns the same as `state_dict`."""
        return self.state_dict()

    def restore_state(self, state: State) -> None:
        """Does the same as `load_state_dict`.

        Raises:
            StateError: The state is of another dataset, or iteration has begun.
        """
        self.load_state_dict(state)

    def reset_state_own(self) -> None:
        """Does nothing: each stream begins with a new iterator. Energon's datasets define it."""

    def reset_state_deep(self) -> None:
        """Does nothing: each stream begins with a new iterator. Energon's programs call it."""

    def _live(self) -> RankIterator[T]:
        worker = torch_worker(self.worker_config)
        live: RankIterator[T] | None = self.__dict__.get("_live_iteration")
        if live is None or live.worker != worker:
            position = self.__dict__.pop(_POSITION, None) if live is None else live.state_dict()
            live = self.__dict__["_live_iteration"] = RankIterator(self, worker=worker)
            if worker is not None:
                _refuse_rank_decoders(self)
                limit = self.rank_limit
                if limit is not None and not limit.restart:
                    refuse_restarts(self)
                if position is not None:  # the process that started this one had begun, or restored a state
                    live.load_state_dict(state_for_worker(position, worker, self.worker_config))
        return live

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        live: RankIterator[T] | None = state.pop("_live_iteration", None)
        if live is not None and is_sent_to_torch_workers():
            state[_POSITION] = live.state_dict()
        return state


class WrapperDataset(SavableDataset[T]):
    """A dataset that reads from one other."""

    def __init__(self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None) -> None:
        if not isinstance(dataset, SavableDataset):
            raise ConfigError(
                f"{type(self).__name__} was given {dataset!r}, which is not a dataset of energon_dali. Give what "
                "get_train_dataset or get_val_dataset returns, or another dataset of this package around it."
            )
        super().__init__(worker_config=worker_config or dataset.worker_config)
        if worker_config is not None and worker_config != dataset.worker_config:
            raise ConfigError(
                f"{type(self).__name__} was given {worker_config}, but the dataset below has {dataset.worker_config}. "
                "All datasets of a tree share one WorkerConfig; leave it out to use that of the inner dataset."
            )
        self.dataset = dataset

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return (self.dataset,)

    def with_children(self, *children: SavableDataset[Any]) -> Self:
        twin = copy.copy(self)
        (twin.dataset,) = children
        return twin

    def len_stream(self, stream: int) -> int:
        return self.dataset.len_stream(stream)


class PassThroughDataset(WrapperDataset[T]):
    """A wrapper that gives elements of the dataset below as they are, so that their restore keys are restored there."""

    def restore_sample(self, restore_key: Key) -> T:
        """Returns the element of a key of the dataset below, made again.

        Raises:
            StateError: The key is not of the dataset below, or a hook is not stateless.
        """
        return self.dataset.restore_sample(restore_key)  # type: ignore[no-any-return]

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        return self.dataset.restore_samples(keys)


def walk(dataset: SavableDataset[Any]) -> Iterator[SavableDataset[Any]]:
    """Yields the datasets of a tree, each before those that it reads from.

    Args:
        dataset: The outermost dataset.
    """
    yield dataset
    for child in dataset.children:
        yield from walk(child)


def plan_obstacles(dataset: SavableDataset[Any]) -> list[str]:
    """Returns what a plan cannot predict about the elements of a tree, a sentence for each dataset; [] for nothing."""
    found = [one.plan_obstacle for one in walk(dataset)]
    return list(dict.fromkeys(text for text in found if text is not None))


def inner_config(dataset: SavableDataset[Any]) -> dict[str, Any]:
    """Returns the config of a dataset inside another, with the length of its epochs, on which the order above depends.

    The config itself has no length: it only says where epochs end, and may change from run to run.
    """
    config = dataset.config()
    while not dataset.shown_in_config:
        (dataset,) = dataset.children
    return config if dataset.rank_limit is None else {**config, "length": dataset.rank_limit.length}


def _refuse_rank_decoders(dataset: SavableDataset[Any]) -> None:
    """Checks that no decoder of a tree belongs in the process that trains.

    Args:
        dataset: The outermost dataset.

    Raises:
        ConfigError: One does: worker processes may be copies of a process that uses the GPU.
    """
    for one in walk(dataset):
        decoder = getattr(one, "decoder", None)
        if decoder is not None and decoder.placement == "rank":
            kind = type(decoder).__name__
            raise ConfigError(
                f"A {kind} decodes in the process that trains, and a worker process of a torch DataLoader would run "
                f"it. Use get_savable_loader(dataset), whose workers leave decoding to the {kind}, or a SampleDecoder."
            )
