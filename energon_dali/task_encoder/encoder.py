"""The task encoder: what a user overrides to turn samples into batches."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Generic, TypeVar

from energon_dali.cache import CachePool, active_pool
from energon_dali.decode import Decoder, SampleDecoder
from energon_dali.errors import ConfigError
from energon_dali.samples.base import CrudeSample, construct
from energon_dali.task_encoder.batching import columns_of, default_action, generic_batch
from energon_dali.task_encoder.context import current_batch_index, current_sample_index
from energon_dali.task_encoder.cooking import Cooker
from energon_dali.task_encoder.packing import PackSelection
from energon_dali.task_encoder.stateless import stateless

T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")
R = TypeVar("R")

HOOKS = (
    "cook_crude_sample",
    "preencode_sample",
    "encode_sample",
    "select_samples_to_pack",
    "postencode_sample",
    "pack_selected_samples",
    "batch_group_criterion",
    "batch",
    "encode_batch",
)
"""The hooks, in the order in which a sample meets them."""


class TaskEncoder(ABC, Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """The hooks between the samples of a dataset and the batches of a task.

    Override what the task needs; a hook that is not overridden costs nothing. A hook may raise SkipSample to drop what
    it works on. `cook_crude_sample`, `encode_sample`, `preencode_sample`, `batch`, `encode_batch` and
    `pack_selected_samples` may be generator functions that give any number of results. Mark hooks with @stateless where
    `restore_sample` is to work. Task encoders travel to worker processes, so their attributes must be picklable.
    """

    cookers: Sequence[Cooker[Any]] = ()
    """How crude samples become samples; the first that matches a dataset's subflavors is taken."""

    decoder: Decoder | None = SampleDecoder()
    """How media are decoded: SampleDecoder() with PIL and PyAV, DaliDecoder() with DALI; None gives raw bytes."""

    __default_failure_tolerance__: int = 100
    """Consecutive failures of a hook after which the run ends, where the hook itself says nothing; 0 is unlimited."""

    @stateless
    def cook_crude_sample(self, sample: CrudeSample, cooker: Cooker[T_sample], aux: Mapping[str, Any]) -> T_sample:
        """Returns the sample that a cooker makes of a crude sample.

        Args:
            sample: The parts of the sample, decoded or as media handles, and its base fields.
            cooker: The one that was chosen for the dataset.
            aux: Stores by name, with `primary` and `cache` where the cooker asked for them.
        """
        return cooker.cook(sample, **aux)

    @stateless
    def preencode_sample(self, sample: T_sample) -> T_sample:
        """Returns the sample, prepared without its pixels: tokenised, measured, filtered.

        With DaliDecoder it runs in the workers, and media are handles. Use it with `postencode_sample`, in place of
        `encode_sample`.
        """
        return sample

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample:
        """Returns the sample in the form that the task needs; media are decoded."""
        return sample  # type: ignore[return-value]

    def select_samples_to_pack(
        self, samples: list[T_encoded_sample]
    ) -> list[list[T_encoded_sample]] | PackSelection[T_encoded_sample]:
        """Returns groups of samples that are to be packed into one each; a sample in no group is dropped.

        A PackSelection may also keep samples for the next buffer. `SequencePacker` chooses by length.

        Args:
            samples: A full packing buffer; smaller at the end of an epoch. A PackingBuffer, which knows what was kept.

        Raises:
            ConfigError: It is not overridden, and packing was asked for.
        """
        raise _not_overridden(self, "select_samples_to_pack", "packing_buffer_size")

    @stateless
    def postencode_sample(self, sample: T_sample) -> T_encoded_sample:
        """Returns the sample in the form that the task needs, after it was chosen for a pack; media are decoded."""
        return sample  # type: ignore[return-value]

    def pack_selected_samples(self, samples: list[T_encoded_sample]) -> T_encoded_sample:
        """Returns one sample made of a group of samples.

        Args:
            samples: A group that `select_samples_to_pack` chose.

        Raises:
            ConfigError: It is not overridden, and packing was asked for.
        """
        raise _not_overridden(self, "pack_selected_samples", "packing_buffer_size")

    def batch_group_criterion(self, sample: T_encoded_sample) -> tuple[Hashable, int | None]:
        """Returns (group, batch size of the group) of a sample: only samples of one group share a batch.

        The size is None where the dataset has a `batch_size`, and a number where that is None.

        Raises:
            ConfigError: It is not overridden.
        """
        raise _not_overridden(self, "batch_group_criterion", "grouping")

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Returns a batch of samples; by default the samples' own type with each field batched by `generic_batch`."""
        return self._batch(samples, type(samples[0]))  # type: ignore[return-value]

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        """Returns the batch in the form that the trainer takes."""
        return batch  # type: ignore[return-value]

    def _batch(
        self,
        samples: list[T_encoded_sample],
        result_type: type[R],
        actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        default_action: Callable[[list[Any]], Any] = generic_batch,
    ) -> R:
        """Returns a batch of `result_type`, each field made by its action from the list of the samples' values.

        Args:
            samples: Dataclasses, dicts or named tuples with the same fields.
            result_type: A dataclass or named tuple, which takes those fields that it has; or dict, which takes all.
            actions: By field name, such as {"image": batch_stack, "caption": batch_list}.
            default_action: For other fields; keys and the other base fields of samples stay lists or tuples.

        Raises:
            ConfigError: There are no samples, an action is for a field that is not there, or the result misses one.
        """
        return make_batch(samples, result_type, actions or {}, default_action)

    @property
    def current_sample_index(self) -> int:
        """Number of the sample that a hook works on, the same for every layout; known only inside a hook."""
        return current_sample_index()

    @property
    def current_batch_index(self) -> int:
        """Number of the batch that a hook works for, the same for every layout; known only inside a hook.

        Counted are the batches (packs or samples, where there are none) that came out of the stream before: those that
        were skipped are not. In `cook_crude_sample` and `preencode_sample`, which run ahead of the batches, it is the
        batch that the sample would be in if nothing was dropped, packed or grouped.
        """
        return current_batch_index()

    @property
    def cache(self) -> CachePool:
        """The pool that the loader was given, for references to files; one that fetches nothing ahead if it has none.

        Known inside hooks, in the process that runs them; see `FileStoreCachePool`.
        """
        return active_pool()

    def overrides(self, hook: str) -> bool:
        """Returns whether this encoder does anything in a hook; see `overridden`."""
        return hook in self.__dict__ or getattr(type(self), hook) is not getattr(TaskEncoder, hook)


def overridden(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> bool:
    """Returns whether a task encoder does anything in a hook, so that a stage is needed for it.

    Args:
        encoder: The task encoder.
        hook: Name of the hook, one of HOOKS.

    Raises:
        ConfigError: There is no such hook.
    """
    if hook not in HOOKS:
        raise ConfigError(f"{hook!r} is no hook of a task encoder. The hooks are {', '.join(HOOKS)}.")
    return encoder.overrides(hook)


def hook_names(encoder: TaskEncoder[Any, Any, Any, Any], *hooks: str) -> dict[str, str]:
    """Returns for each hook the class and name of the function that does the work, such as "Encoder.encode_sample".

    It is the class that defines the hook: a subclass that only has another decoder does the same in it.

    Args:
        encoder: The task encoder.
        *hooks: Names of hooks.
    """
    return {hook: function_name(getattr(encoder, hook)) for hook in hooks}


def function_name(function: Callable[..., Any]) -> str:
    """Returns the class and name of a function, the same in every run; of another callable the name of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def make_batch(
    samples: Sequence[Any],
    result_type: type[R],
    actions: Mapping[str, Callable[[list[Any]], Any]],
    other: Callable[[list[Any]], Any],
) -> R:
    """Returns a batch of samples; see `TaskEncoder._batch`.

    Raises:
        ConfigError: There are no samples, an action is for a field that is not there, or the result misses a field.
    """
    if not samples:
        raise ConfigError("A batch needs at least one sample, and none was given.")
    columns = columns_of(samples)
    taken, needed = _fields_of(result_type, columns)
    unknown = [name for name in actions if name not in columns or name not in taken]
    if unknown:
        raise ConfigError(
            f"_batch has actions for {unknown}, which are no fields of both the samples ({sorted(columns)}) and "
            f"{result_type.__name__} ({sorted(taken)}). Correct the names, or take the actions out."
        )
    missing = sorted(needed - columns.keys())
    if missing:
        raise ConfigError(
            f"{result_type.__name__} needs the fields {missing}, which the samples ({type(samples[0]).__name__}) do "
            "not have. Let encode_sample return them, give them defaults, or override batch()."
        )
    values = {
        name: actions[name](column) if name in actions else default_action(name, column, other)
        for name, column in columns.items()
        if name in taken
    }
    return construct(result_type, values) if is_dataclass(result_type) else result_type(**values)


def _fields_of(result_type: type[Any], columns: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Returns (fields that a type takes, fields that it needs).

    Raises:
        ConfigError: The type has no fields.
    """
    if is_dataclass(result_type):
        known = [field for field in fields(result_type) if field.init]
        needed = {field.name for field in known if field.default is MISSING and field.default_factory is MISSING}
        return {field.name for field in known}, needed
    if issubclass(result_type, dict):
        return set(columns), set()
    if hasattr(result_type, "_fields"):
        return set(result_type._fields), set(result_type._fields) - set(result_type._field_defaults)
    raise ConfigError(f"{result_type.__name__} has no fields. Give a dataclass, a NamedTuple, or dict.")


def _not_overridden(encoder: object, hook: str, option: str) -> ConfigError:
    return ConfigError(
        f"{type(encoder).__name__}.{hook} was called, but {type(encoder).__name__} does not override it. "
        f"Override {hook}, or do without {option}."
    )
