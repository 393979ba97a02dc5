"""The options of `get_train_dataset` and its counterparts for validation: what they mean, and their valid values."""

from __future__ import annotations

import copy
import inspect
import operator
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from energon_dali.calls import check_switches, refuse_async
from energon_dali.datasets.grouping.global_batch import ON_MISSING, OnMissing
from energon_dali.datasets.mixing.measured_blend import BlendBy
from energon_dali.datasets.native_source import DEFAULT_LANES
from energon_dali.decode import Decoder, SampleDecoder
from energon_dali.errors import ConfigError
from energon_dali.metadataset.reference import SourceReference
from energon_dali.plan.balance import Balance
from energon_dali.plan.global_batches import GLOBAL_LANES
from energon_dali.plan.global_step import MOST_UNITS, UNEVEN, Uneven
from energon_dali.plan.measured import TOKENS
from energon_dali.plan.packs import PackRule
from energon_dali.shards import PartList
from energon_dali.task_encoder.context import BUILD_HOOKS
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.task_encoder.encoder import HOOKS, MEASURE_HOOK, TaskEncoder, overridden
from energon_dali.task_encoder.misspelt_hooks import find_misspelt_hooks
from energon_dali.task_encoder.planned_packs import PlannedPacks
from energon_dali.worker_config import WorkerConfig

AnyEncoder = TaskEncoder[Any, Any, Any, Any]

_DECODER_OPTIONS = ("auto_decode", "image_decode", "av_decode", "video_decode_audio", "guess_content")

_MINIMUM = {
    "batch_size": 1,
    "packing_buffer_size": 1,
    "packing_first_buffer_size": 1,
    "shuffle_buffer_size": 0,
    "max_samples_per_sequence": 1,
    "limit": 0,
    "virtual_epoch_length": 0,
    "shuffle_over_epochs_multiplier": -1,
    "parallel_shard_iters": 1,
    "global_batch_size": 1,
}
_NEVER_NONE = ("virtual_epoch_length",)
_NO_GENERATORS = (
    "cook_crude_sample",
    "preencode_sample",
    "encode_sample",
    "postencode_sample",
    "batch",
    "encode_batch",
)
"""Hooks that give one result each with global batches."""

DEFAULT_STREAMS = 4
"""Streams per rank if no worker_config is given; fixed, so that the order does not depend on the machine."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of single datasets, which a call passes on to each of its datasets."""

    dataset_config: str | None = None
    """File in .nv-meta that defines the samples; None is dataset.yaml."""
    split_config: str | None = None
    """File in .nv-meta that divides the shards into parts; None is split.yaml or split.json."""
    parallel_shard_iters: int | None = None
    """Slices of a stream that are read in turn; None is 16 for training and 1 for validation."""
    window_in_slice: bool = False
    """Keep the sample shuffle inside slices, so that the order is made of runs; for feed="native" with a shuffle
    window. Cost: samples mix less: only with those of their slice."""
    sample_type: type[Any] | None = None
    """Overrides the sample type of dataset.yaml."""
    field_map: dict[str, str] | None = None
    """Overrides the field map of dataset.yaml."""
    subflavors: dict[str, Any] = field(default_factory=dict)
    """Added to those of dataset.yaml and of a metadataset, which they override."""
    subset: Any = None
    """Range of the samples of the split, such as ["0%", "25%"] or [100, 200]; of each dataset of a metadataset. Or
    {"where": "text_tokens < 4096"}: those whose measures fulfil a condition (docs/measures.md). Cost: with a condition,
    a pass of `energon-dali measure` before training."""
    part_filter: Callable[[str], bool] | None = None
    """Selects the parts that are read; None reads those that the fields need."""
    allow_imports: bool = False
    """Import the classes and functions of other packages that a dataset names: sample types, factories, joiners. They
    may be any that are installed, so allow it only if you trust whoever wrote the dataset. Cost: a dataset can run code
    that is installed."""
    allow_code: bool = False
    """Run code that is stored in a dataset: sample_loader.py, and pickled parts. Cost: a dataset can run any code."""

    def __post_init__(self) -> None:
        check_number("parallel_shard_iters", self.parallel_shard_iters)
        check_switches(
            window_in_slice=self.window_in_slice, allow_imports=self.allow_imports, allow_code=self.allow_code
        )
        kinds: dict[str, tuple[type, str]] = {
            "sample_type": (type, "a class, such as CaptioningSample"),
            "field_map": (Mapping, "a dict, such as {'image': 'jpg,png', 'caption': 'txt'}"),
            "subflavors": (Mapping, "a dict"),
        }
        for name, (kind, expected) in kinds.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"{name}={value!r} is invalid: give {expected}, or leave it out.")
        if self.part_filter is not None and not callable(self.part_filter):
            raise ConfigError(
                f"part_filter={self.part_filter!r} is invalid: give a function of a part's name, or a list of names."
            )


DATASET_OPTIONS = dict.fromkeys([*(option.name for option in fields(SourceOptions)), *_DECODER_OPTIONS, "handler"])
"""The options that are passed as **kwargs; those that are not fields of SourceOptions are deprecated."""


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Everything that a call says, apart from the path: one record for sources, mixture and stages.

    `get_train_dataset` and `get_val_dataset` describe the options.

    Raises:
        ConfigError: A size is out of range.
    """

    split_part: str
    encoder: AnyEncoder
    worker_config: WorkerConfig
    source: SourceOptions
    training: bool
    """Whether samples are shuffled, and datasets blended."""
    repeat: bool = False
    batch_size: int | None = None
    batch_drop_last: bool = False
    packing_buffer_size: int | None = None
    packing_first_buffer_size: int | None = None
    shuffle_buffer_size: int | None = None
    max_samples_per_sequence: int | None = None
    virtual_epoch_length: int = 0
    limit: int | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    blend_by: BlendBy | None = None
    global_batch_size: int | None = None
    uneven: Uneven = "error"
    on_missing: OnMissing = "spare"
    packs: PlannedPacks | None = None
    balance: Balance | None = None
    allow_estimates: bool = False

    def __post_init__(self) -> None:
        check_switches(repeat=self.repeat, batch_drop_last=self.batch_drop_last, allow_estimates=self.allow_estimates)
        for name, kind in (("packs", PlannedPacks), ("balance", Balance)):
            value = getattr(self, name)
            if not isinstance(value, (kind, type(None))):
                raise ConfigError(
                    f"{name}={value!r} is invalid: give energon_dali.{kind.__name__}(...), or leave it out."
                )
        for name in _MINIMUM:
            if name != "parallel_shard_iters":
                check_number(name, getattr(self, name))
        if self.limit == 0:  # no limit, as in Energon
            object.__setattr__(self, "limit", None)
        for name, allowed in (("uneven", UNEVEN), ("on_missing", ON_MISSING)):
            if getattr(self, name) not in allowed:
                given = ", ".join(map(repr, allowed))
                raise ConfigError(f"{name}={getattr(self, name)!r} is unknown: give one of {given}.")
        if self.global_batch_size is not None:
            self._check_global_batches()
            return
        defaults = {"uneven": "error", "on_missing": "spare", "packs": None, "balance": None, "allow_estimates": False}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} says how global batches are made, and there are none. Give "
                    f"global_batch_size, or leave {name} out."
                )

    def _check_global_batches(self) -> None:
        """Refuses what decides at run time which samples a batch holds, since a step holds fixed ones."""
        encoder, size = self.encoder, self.global_batch_size
        assert size is not None
        if size > MOST_UNITS:
            raise ConfigError(f"global_batch_size={size} is invalid: a step has at most {MOST_UNITS:,} samples.")
        if self.batch_size is None:
            raise ConfigError(
                f"global_batch_size={size} needs batch_size, the number of samples that a rank computes at once: give "
                "both."
            )
        hook = next((name for name in _NO_GENERATORS if inspect.isgeneratorfunction(getattr(encoder, name))), None)
        streams, built = self.worker_config.num_streams, overridden_build_hooks(encoder)
        problem = instead = ""
        if self.packing_buffer_size is not None:
            problem = "packing_buffer_size, as which samples make a pack is decided at run time"
            instead = "Give packs=PlannedPacks(max_length), which packs by lengths that were measured before"
        elif self.packs is not None and overridden(encoder, "select_samples_to_pack"):
            problem = (
                f"select_samples_to_pack of {type(encoder).__name__}, as packs=PlannedPacks(...) selects the samples"
            )
            instead = "Leave it out; pack_selected_samples builds the packs as before"
        elif overridden(encoder, "batch_group_criterion"):
            problem = "batch_group_criterion, which decides at run time what a batch holds"
            instead = "Let batch() take samples of all kinds, or make each kind a dataset of its own"
        elif hook is not None:
            one = "batch" if hook in ("batch", "encode_batch") else "sample"
            problem = f"a generator function as {hook}, which decides at run time how many {one}s it makes"
            instead = f"Let {hook} return one {one}"
        elif built:
            problem = f"{' and '.join(built)} of {type(encoder).__name__}, as datasets that it builds may drop samples"
            instead = "Use encode_sample and the other hooks, where SkipSample takes the place of a FilterDataset"
        elif self.blend_by not in (None, TOKENS):
            problem = f"blend_by={self.blend_by!r}, whose weights follow from what was measured at run time"
            instead = 'Give blend_by="tokens", which takes the tokens that `energon-dali measure` counted'
        elif getattr(encoder.decoder, "feed", "block") == "native":
            problem = 'feed="native", which reads runs of samples'
            instead = 'Use feed="block"'
        elif streams is not None:
            problem = f"num_streams={streams}: the job has one sequence of samples, and any number of workers"
            instead = "Leave num_streams out of WorkerConfig"
        elif self.packs is not None and not overridden(encoder, "pack_selected_samples"):
            raise ConfigError(
                f"packs={self.packs} asks for packing, but {type(encoder).__name__} does not override "
                "pack_selected_samples, which makes one sample of those of a pack. Override it, or leave packs out."
            )
        if problem:
            raise ConfigError(
                f"global_batch_size={size} cannot be combined with {problem}. {instead}, or leave global_batch_size "
                "out."
            )

    @property
    def pack_rule(self) -> PackRule | None:
        """How samples are packed by the plan; None if they are not."""
        return None if self.packs is None else self.packs.rule(cuts=overridden(self.encoder, "cut_sample"))

    @property
    def is_follower(self) -> bool:
        """Whether another rank reads the dataset for this one."""
        group = self.worker_config.share_group
        return group is not None and group.is_follower

    @classmethod
    def of_call(
        cls,
        task_encoder: AnyEncoder | None,
        worker_config: WorkerConfig | None,
        kwargs: Mapping[str, Any],
        **options: Any,
    ) -> DatasetOptions:
        """Returns the options of a call.

        Called by a helper of the function that `explain_call` wraps, so that warnings name the user's line.

        Args:
            task_encoder: The user's; None is DefaultTaskEncoder().
            worker_config: The user's; None is `default_worker_config()`.
            kwargs: Fields of SourceOptions, and deprecated options.
            **options: Other fields of this class.

        Raises:
            ConfigError: An option is invalid, or the decoder is set twice.
        """
        kwargs = dict(kwargs)
        encoder = check_encoder(task_encoder)
        for name, hook in find_misspelt_hooks(encoder).items():
            warnings.warn(
                f"{type(encoder).__name__}.{name} is not a hook, and nothing in the class calls it. Did you mean "
                f"{hook}? Rename it; a helper may begin with an underscore.",
                stacklevel=5,
            )
        old = take_decoder_options(kwargs, stacklevel=6)
        if kwargs.pop("handler", None) is not None:
            warnings.warn(
                "handler is ignored: set WorkerConfig(global_error_handler=...) instead.",
                DeprecationWarning,
                stacklevel=5,
            )
        if old:
            encoder = _with_old_decoder(encoder, old)
        if kwargs.get("subflavors") is None:
            kwargs.pop("subflavors", None)
        if isinstance(kwargs.get("part_filter"), (list, tuple, set, frozenset)):
            kwargs["part_filter"] = PartList(frozenset(kwargs["part_filter"]))
        config = default_worker_config() if worker_config is None else check_worker_config(worker_config)
        if options.get("global_batch_size") is not None and (worker_config is None or config.chose_streams):
            config = config.with_layout(rank=config.rank, world_size=config.world_size, num_workers=config.num_workers)
        return cls(encoder=encoder, worker_config=config, source=SourceOptions(**kwargs), **options)

    @property
    def decoder(self) -> Decoder | None:
        """The decoder of the parts of the datasets; it unpickles pickled ones if the user allows code."""
        decoder = self.encoder.decoder
        return decoder.trusting() if isinstance(decoder, Decoder) and self.source.allow_code else decoder

    def order(self, source: SourceReference) -> dict[str, Any]:
        """Returns how the samples of a source are ordered, as arguments of `SourcePlan`."""
        lanes = self.source.parallel_shard_iters
        default_lanes = DEFAULT_LANES if self.global_batch_size is None else GLOBAL_LANES
        if not self.training:
            return {"shuffle": False, "parallel_shard_iters": lanes or 1}
        epochs = source.shuffle_over_epochs_multiplier
        return {
            "shuffle": True,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "parallel_shard_iters": lanes or (1 if epochs is None else default_lanes),
            "shuffle_buffer_size": self.shuffle_buffer_size or 1,
            "shuffle_over_epochs": epochs,
            "window_in_slice": self.source.window_in_slice,
        }


def overridden_build_hooks(encoder: AnyEncoder) -> list[str]:
    """Returns the names of the build hooks that a task encoder overrides."""
    return [name for name in BUILD_HOOKS if getattr(type(encoder), name) is not getattr(TaskEncoder, name)]


def check_number(name: str, value: object) -> None:
    """Refuses sizes that are not whole numbers, or out of range.

    Args:
        name: Name of the option.
        value: Its value.

    Raises:
        ConfigError: It is neither a whole number in its range nor None where None is allowed.
    """
    if value is None and name not in _NEVER_NONE:
        return
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not _MINIMUM[name] <= number <= sys.maxsize:
        or_none = "" if name in _NEVER_NONE else ", or None"
        meaning = "; None yields single samples" if name == "batch_size" else ""
        raise ConfigError(
            f"{name}={value!r} is invalid: {name} must be a whole number of at least {_MINIMUM[name]}"
            f"{'' if number is None or number <= sys.maxsize else f' and at most {sys.maxsize}'}{or_none}{meaning}."
        )


def check_path(path: object) -> str | Mapping[str, Any]:
    """Returns a path as text, or a metadataset that is given as a dict.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(path, Mapping):
        return path
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{path!r} is not the path of a dataset. Give the folder that was prepared, or a metadataset (.yaml), "
            "as a path or URL."
        )
    return name


def check_worker_config(config: object) -> WorkerConfig:
    """Returns the configuration.

    Raises:
        ConfigError: It is not a WorkerConfig.
    """
    if not isinstance(config, WorkerConfig):
        raise ConfigError(
            f"worker_config={config!r} is not a WorkerConfig of energon_dali. Give WorkerConfig(rank=..., "
            "world_size=..., num_workers=...), WorkerConfig.default_worker_config(num_workers), or None."
        )
    return config


def default_worker_config() -> WorkerConfig:
    """Returns the configuration of a call without one: 4 streams per rank, on as many workers as the cores allow."""
    rank = WorkerConfig.default_worker_config(0)
    cores = len(os.sched_getaffinity(0))
    workers = max(count for count in (1, 2, 4) if count <= max(1, cores))
    return WorkerConfig.default_worker_config(workers, num_streams=rank.world_size * DEFAULT_STREAMS)


def check_encoder(task_encoder: AnyEncoder | None) -> AnyEncoder:
    """Returns the task encoder.

    Args:
        task_encoder: The user's; None is DefaultTaskEncoder().

    Raises:
        ConfigError: It is not a task encoder, has hooks that are async or never called, or its decoder is not one.
    """
    encoder: Any = DefaultTaskEncoder() if task_encoder is None else task_encoder
    if not isinstance(encoder, TaskEncoder):
        hint = " Give an instance: write parentheses after the class." if isinstance(encoder, type) else ""
        raise ConfigError(f"task_encoder={encoder!r} is not an instance of energon_dali.TaskEncoder.{hint}")
    for hook in (*HOOKS, MEASURE_HOOK):
        refuse_async(getattr(encoder, hook))
    decoder = encoder.decoder
    if decoder is not None and (isinstance(decoder, type) or not hasattr(decoder, "placement")):
        raise ConfigError(
            f"{type(encoder).__name__}.decoder is {decoder!r}, which is not a decoder. Give an instance such as "
            "SampleDecoder() or DaliDecoder(), or None for raw bytes."
        )
    return encoder


def take_decoder_options(options: dict[str, Any], stacklevel: int) -> dict[str, Any]:
    """Removes the deprecated options of decoders from those of a call, warns of them, and returns them.

    Args:
        options: Options of a call by name; changed.
        stacklevel: Of the user's line, for `warnings.warn` in this function.
    """
    old = {name: options.pop(name) for name in _DECODER_OPTIONS if name in options}
    if old:
        warnings.warn(
            f"{', '.join(old)} as arguments of the dataset are deprecated: set them on the task encoder, "
            "as in decoder = SampleDecoder(image_decode=...).",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
    return old


def keeps_decoder(old: Mapping[str, Any]) -> bool:
    """Returns whether deprecated options leave the decoder of any encoder as it is: `auto_decode=True` alone does."""
    return old.keys() == {"auto_decode"} and bool(old["auto_decode"])


def described_decoder(old: Mapping[str, Any]) -> Decoder | None:
    """Returns the decoder that deprecated options describe; None leaves raw bytes.

    Args:
        old: What `take_decoder_options` returned.

    Raises:
        ConfigError: An option has an unknown value.
    """
    options = {name: value for name, value in old.items() if name != "auto_decode"}
    return SampleDecoder(**options) if old.get("auto_decode", True) else None


def check_same_decoder(
    encoder: AnyEncoder, old: Mapping[str, Any], own: Decoder | None, described: Decoder | None
) -> None:
    """Checks that an encoder's own decoder is the one that deprecated options describe.

    Args:
        encoder: The task encoder.
        old: The deprecated options.
        own: Its decoder.
        described: The decoder of these options.

    Raises:
        ConfigError: They have different options.
    """
    configs = [one.config() if isinstance(one, Decoder) else one for one in (own, described)]
    if configs[0] != configs[1]:
        raise ConfigError(
            f"{', '.join(old)} would replace the decoder that {type(encoder).__name__} already has. Set the options "
            "on that decoder and leave the arguments out."
        )


def _with_old_decoder(encoder: AnyEncoder, old: Mapping[str, Any]) -> AnyEncoder:
    """Returns the encoder with the decoder that deprecated options describe.

    Raises:
        ConfigError: The encoder has another one of its own.
    """
    if keeps_decoder(old):
        return encoder
    described = described_decoder(old)
    if encoder.decoder is not TaskEncoder.decoder:
        check_same_decoder(encoder, old, encoder.decoder, described)
        return encoder
    encoder = copy.copy(encoder)
    encoder.decoder = described
    return encoder
