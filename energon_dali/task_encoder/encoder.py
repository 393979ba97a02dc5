"""The task encoder: the hooks that a user overrides to turn samples into batches."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from energon_dali.cache import CachePool, active_pool
from energon_dali.decode import Decoder, SampleDecoder
from energon_dali.errors import ConfigError
from energon_dali.samples.base import CrudeSample
from energon_dali.samples.batching import batch_alike, generic_batch, make_batch
from energon_dali.task_encoder.context import current_batch_index, current_builder, current_sample_index
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
    "cut_sample",
    "pack_selected_samples",
    "batch_group_criterion",
    "batch",
    "encode_batch",
)
"""The hooks, in the order in which a sample passes them."""
MEASURE_HOOK = "measure_sample"
"""The hook that no sample of a training run passes."""


class TaskEncoder(ABC, Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """The hooks between the samples of a dataset and the batches of a task.

    Override the hooks that the task needs; a hook that is not overridden costs nothing. A hook may raise SkipSample to
    drop its input. `cook_crude_sample`, `encode_sample`, `preencode_sample`, `batch`, `encode_batch`,
    `pack_selected_samples` and, without packing, `postencode_sample` may be generator functions that yield any number
    of results. `restore_sample` needs hooks that are marked with @stateless. Task encoders travel to worker processes,
    so their attributes must be picklable.
    """

    cookers: Sequence[Cooker[Any]] = ()
    """How crude samples become samples; the first cooker that matches a dataset's subflavors is used."""

    decoder: Decoder | None = SampleDecoder()
    """How media are decoded: SampleDecoder() with PIL and PyAV, DaliDecoder() with DALI; None keeps raw bytes."""

    measure_version: int = 0
    """Raise it to have samples measured again although nothing changed that `energon-dali measure` looks at."""

    __default_failure_tolerance__: int = 100
    """Consecutive failures of a hook after which the run ends, unless the hook has its own limit; 0 is unlimited."""

    @stateless
    def cook_crude_sample(self, sample: CrudeSample, cooker: Cooker[T_sample], aux: Mapping[str, Any]) -> T_sample:
        """Returns the sample that a cooker makes of a crude sample.

        Args:
            sample: The parts of the sample, decoded or as media handles, and its base fields.
            cooker: The cooker that was chosen for the dataset.
            aux: Stores by name, with `primary` and `cache` if the cooker asks for them.
        """
        return cooker.cook(sample, **aux)

    @stateless
    def preencode_sample(self, sample: T_sample) -> T_sample:
        """Returns the sample after steps that need no pixels, such as tokenising, measuring and filtering.

        With DaliDecoder it runs in the workers, and media are handles. Use it with `postencode_sample`, instead of
        `encode_sample`.
        """
        return sample

    def measure_sample(self, sample: T_sample) -> Mapping[str, int]:
        """Returns further measures of a sample by name, or other values for the built-in ones; 0 or larger.

        `energon-dali measure` calls it once per sample, before training: with what `preencode_sample` returned, or with
        the loaded sample where that is not overridden. With a front end or DaliDecoder media are handles, which know
        their size and layout. All samples must have the same names. If what trains draws at random, return the largest
        value that it can draw.

        The built-in values are text_tokens, vision_tokens, vision_patches and vision_squares.
        """
        return {}

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample:
        """Returns the sample in the form that the task needs; media are decoded."""
        return sample  # type: ignore[return-value]

    def select_samples_to_pack(
        self, samples: list[T_encoded_sample]
    ) -> list[list[T_encoded_sample]] | PackSelection[T_encoded_sample]:
        """Returns groups of samples, each of which is packed into one sample; a sample in no group is dropped.

        A PackSelection can also keep samples for the next buffer. `SequencePacker` selects by length.

        Args:
            samples: A full packing buffer; smaller at the end of an epoch. A PackingBuffer, which records kept samples.

        Raises:
            ConfigError: It is not overridden, and packing is on.
        """
        raise _not_overridden(self, "select_samples_to_pack", "packing_buffer_size")

    @stateless
    def postencode_sample(self, sample: T_sample) -> T_encoded_sample:
        """Returns the sample in the form that the task needs, after it was selected for a pack; media are decoded."""
        return sample  # type: ignore[return-value]

    def cut_sample(self, sample: T_encoded_sample, length: int) -> T_encoded_sample:
        """Returns an encoded sample of at most a length. With PlannedPacks, long samples are cut if it is overridden.

        Args:
            sample: An encoded sample that is longer than its place in a pack.
            length: The length that it may have, in the measure of the packs.

        Raises:
            ConfigError: It is not overridden.
        """
        raise _not_overridden(self, "cut_sample", "PlannedPacks")

    def pack_selected_samples(self, samples: list[T_encoded_sample]) -> T_encoded_sample:
        """Returns one sample made of a group of samples.

        Args:
            samples: A group that `select_samples_to_pack` selected.

        Raises:
            ConfigError: It is not overridden, and packing is on.
        """
        raise _not_overridden(self, "pack_selected_samples", "packing_buffer_size")

    def batch_group_criterion(self, sample: T_encoded_sample) -> tuple[Hashable, int | None]:
        """Returns (group, batch size of the group) of a sample: only samples of one group share a batch.

        The size is None if the dataset has a `batch_size`, and a number if it has none.

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
        """Returns the batch in the form that the trainer needs."""
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
            result_type: A dataclass or named tuple, which takes the fields that it has; or dict, which takes all.
            actions: By field name, such as {"image": batch_stack, "caption": batch_list}.
            default_action: For other fields; keys and the other base fields of samples stay lists or tuples.

        Raises:
            ConfigError: There are no samples, an action is for a missing field, or the type needs a missing field.
        """
        return make_batch(samples, result_type, actions or {}, default_action)

    @property
    def current_sample_index(self) -> int:
        """Number of the sample that a hook works on, the same for every layout of workers; known only inside a hook."""
        return current_sample_index()

    @property
    def current_batch_index(self) -> int:
        """Number of the batch that a hook works for, the same for every layout of workers; known only inside a hook.

        Counts the batches (or packs, or samples, without batches) that the stream has yielded before; skipped ones do
        not count. In hooks that run ahead of the batches, it is the batch that the sample would be in if nothing was
        dropped, packed or grouped: in `cook_crude_sample` and `preencode_sample`, and in `encode_sample` (or
        `postencode_sample`) where samples then wait to be packed or grouped, or `batch` is a generator function.
        """
        return current_batch_index()

    @property
    def cache(self) -> CachePool:
        """The loader's cache pool, for lazy references to files; one that does not prefetch if the loader has none.

        Known inside hooks, in the process that runs them; see `FileStoreCachePool`.
        """
        return active_pool()

    # --- putting datasets together, as in Energon ------------------------------------------------------------------

    def build_train_datasets(self, *, datasets: Sequence[Any], **options: Any) -> Any:
        """Returns the whole training dataset. Override it to put stages of your own between those of this class.

        It is called while `get_train_dataset` opens a dataset, if it or another build hook is overridden. The interface
        is Energon's, which does not promise to keep it.

        Args:
            datasets: A LoadedDataset each: a factory whose `build()` returns the loaded samples of one epoch, and its
                weight or repetitions.
            **options: worker_config, batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length,
                shuffle_buffer_size, blend_mode and repeat.

        Raises:
            ConfigError: No dataset is being opened, or the options do not fit each other.
        """
        return current_builder().train(datasets=datasets, **options)

    def build_val_datasets(self, *, datasets: Sequence[Any], **options: Any) -> Any:
        """Returns the whole validation dataset, as `build_train_datasets` does for training.

        Args:
            datasets: A LoadedDataset each.
            **options: worker_config, batch_size, batch_drop_last, packing_buffer_size and limit.

        Raises:
            ConfigError: No dataset is being opened, or the options do not fit each other.
        """
        return current_builder().validate(datasets=datasets, **options)

    def build_cook_crude_sample(self, dataset: Any, **options: Any) -> Any:
        """Returns a dataset whose crude samples are cooked by the cookers of this class; other samples pass.

        Args:
            dataset: Loaded samples, also several datasets in a mixture.
            **options: worker_config, and Energon's subflavors, get_primary_aux and aux, which each dataset has itself.

        Raises:
            ConfigError: No dataset is being opened, or no cooker matches.
        """
        return current_builder().cook(dataset)

    def build_encode_sample(self, dataset: Any, *, worker_config: Any = None) -> Any:
        """Returns a dataset of encoded samples.

        Args:
            dataset: Loaded samples.
            worker_config: That of the dataset.

        Raises:
            ConfigError: No dataset is being opened, or the hooks exclude each other.
        """
        return current_builder().encode(dataset)

    def build_batch(self, dataset: Any, **options: Any) -> Any:
        """Returns a dataset of batches, packed if that is asked for.

        Args:
            dataset: Encoded samples.
            **options: worker_config, batch_size, batch_drop_last and packing_buffer_size.

        Raises:
            ConfigError: No dataset is being opened, or the hooks do not fit the options.
        """
        return current_builder().batch(dataset, **options)

    def _load_dataset(self, dataset: Any, worker_rotation_offset: int = 0, worker_config: Any = None) -> Any:
        """Returns the loaded samples of a LoadedDataset, cooked; programs call it in `build_train_datasets`."""
        return current_builder().load(dataset)

    def overrides(self, hook: str) -> bool:
        """Returns whether this encoder does anything in a hook; see `overridden`."""
        return hook in self.__dict__ or getattr(type(self), hook) is not getattr(TaskEncoder, hook)


def overridden(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> bool:
    """Returns whether a task encoder does anything in a hook, so that the hook needs a stage.

    Args:
        encoder: The task encoder.
        hook: Name of the hook, one of HOOKS or MEASURE_HOOK.

    Raises:
        ConfigError: There is no such hook.
    """
    if hook not in (*HOOKS, MEASURE_HOOK):
        raise ConfigError(f"{hook!r} is not a hook of a task encoder. The hooks are {', '.join(HOOKS)}.")
    return encoder.overrides(hook)


def batch_function(encoder: TaskEncoder[Any, Any, Any, Any]) -> Callable[[list[Any]], Any]:
    """Returns what makes a batch: the hook, or the function that it comes down to if nobody overrides it."""
    hook: Any = encoder.batch
    methods = (hook, getattr(hook, "__self__", encoder)._batch)
    own = [getattr(method, "__func__", None) for method in methods]
    return batch_alike if own == [TaskEncoder.batch, TaskEncoder._batch] else hook


def hook_names(encoder: TaskEncoder[Any, Any, Any, Any], *hooks: str) -> dict[str, str]:
    """Returns, for each hook, the qualified name of the function that runs, such as "Encoder.encode_sample".

    It names the class that defines the hook: a subclass that only changes the decoder does the same work.

    Args:
        encoder: The task encoder.
        *hooks: Names of hooks.
    """
    return {hook: function_name(getattr(encoder, hook)) for hook in hooks}


def function_name(function: Callable[..., Any]) -> str:
    """Returns the qualified name of a function, the same in every run; for another callable, that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _not_overridden(encoder: object, hook: str, option: str) -> ConfigError:
    return ConfigError(
        f"{type(encoder).__name__}.{hook} was called, but {type(encoder).__name__} does not override it. "
        f"Override {hook}, or leave {option} out."
    )
