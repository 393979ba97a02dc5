"""The arguments of `get_train_dataset` and its kin: what is allowed, and what they mean."""

from __future__ import annotations

import copy
import operator
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from energon_dali.decode import SampleDecoder
from energon_dali.errors import ConfigError
from energon_dali.shards import PartList
from energon_dali.task_encoder import DefaultTaskEncoder, TaskEncoder
from energon_dali.worker_config import WorkerConfig

AnyEncoder = TaskEncoder[Any, Any, Any, Any]

_DECODER_OPTIONS = ("auto_decode", "image_decode", "av_decode", "video_decode_audio", "guess_content")

_BUILD_HOOKS = (
    "build_train_datasets",
    "build_val_datasets",
    "build_batch",
    "build_encode_sample",
    "build_cook_crude_sample",
)
"""Methods by which Energon's task encoders plug datasets together themselves."""

_LEAST = {
    "batch_size": 1,
    "packing_buffer_size": 1,
    "packing_first_buffer_size": 1,
    "shuffle_buffer_size": 0,
    "max_samples_per_sequence": 1,
    "limit": 1,
    "virtual_epoch_length": 0,
    "shuffle_over_epochs_multiplier": -1,
    "parallel_shard_iters": 1,
}
_NEVER_NONE = ("virtual_epoch_length",)


@dataclass(frozen=True, kw_only=True)
class LeafOptions:
    """What may be said of a single dataset, in the call or in its dataset.yaml."""

    dataset_config: str | None = None
    """File in .nv-meta that says what a sample is; None is dataset.yaml."""
    split_config: str | None = None
    """File in .nv-meta that says which shards belong to which split; None is split.yaml or split.json."""
    parallel_shard_iters: int | None = None
    """Places of a stream that are read in turn; None is 16 for training and 1 for validation."""
    window_in_slice: bool = False
    """Keep the sample shuffle inside slices, so that the order is made of runs; for feed="native" with a shuffle
    window."""
    sample_type: type[Any] | None = None
    """Overrides the sample type of dataset.yaml."""
    field_map: dict[str, str] | None = None
    """Overrides the field map of dataset.yaml."""
    subflavors: dict[str, Any] = field(default_factory=dict)
    """Added to those of dataset.yaml and of a metadataset; these win."""
    subset: Any = None
    """Range of the samples of the split, such as ["0%", "25%"] or [100, 200]; of each dataset of a metadataset."""
    part_filter: Callable[[str], bool] | None = None
    """Which parts are read; None are those that the fields need."""
    trust_dataset_code: bool = False
    """Allow code that the dataset brings (sample_loader.py, classes of other packages) to run."""


DATASET_OPTIONS = dict.fromkeys([*(option.name for option in fields(LeafOptions)), *_DECODER_OPTIONS, "handler"])
"""What `get_train_dataset` and its kin take beside their named arguments; the last ones are deprecated."""


def check_numbers(**values: object) -> None:
    """Refuses sizes that are no whole numbers, or too small.

    Args:
        **values: Arguments of `get_train_dataset` or `get_val_dataset`, by name.

    Raises:
        ConfigError: One is neither a whole number in its range nor None where that is allowed.
    """
    for name, value in values.items():
        if value is None and name not in _NEVER_NONE:
            continue
        try:
            number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
        if number is None or number < _LEAST[name]:
            nothing = "" if name in _NEVER_NONE else ", or None"
            meaning = "; None gives single samples" if name == "batch_size" else ""
            raise ConfigError(
                f"{name}={value!r} cannot be: {name} must be a whole number of at least {_LEAST[name]}{nothing}"
                f"{meaning}."
            )


def check_path(path: object) -> str | Mapping[str, Any]:
    """Returns a path as text, or a metadataset as the dict that it is.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(path, Mapping):
        return path
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{path!r} is no path of a dataset. Give the folder that was prepared, or a metadataset (.yaml), as a path "
            "or URL."
        )
    return name


def check_worker_config(config: object) -> WorkerConfig:
    """Returns the configuration.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(config, WorkerConfig):
        raise ConfigError(
            f"worker_config={config!r} is no WorkerConfig of energon_dali. Give WorkerConfig(rank=..., world_size=..., "
            "num_workers=...), WorkerConfig.default_worker_config(num_workers), or None."
        )
    return config


def take_options(
    task_encoder: AnyEncoder | None, kwargs: dict[str, Any], *, stacklevel: int = 4
) -> tuple[AnyEncoder, LeafOptions]:
    """Returns (task encoder, options of the dataset) from the keyword arguments that are left.

    Args:
        task_encoder: The user's; None is DefaultTaskEncoder().
        kwargs: Fields of LeafOptions, and deprecated arguments.
        stacklevel: Of warnings, so that they name the user's line: 4 where the user called the caller of this, which
            explain_call wraps.

    Raises:
        ConfigError: A keyword cannot work, or the decoder is set twice.
    """
    kwargs = dict(kwargs)
    encoder: Any = DefaultTaskEncoder() if task_encoder is None else task_encoder
    if not isinstance(encoder, TaskEncoder):
        hint = " Give an instance: write parentheses behind the class." if isinstance(encoder, type) else ""
        raise ConfigError(f"task_encoder={encoder!r} is no instance of energon_dali.TaskEncoder.{hint}")
    builds = [name for name in _BUILD_HOOKS if hasattr(encoder, name)]
    if builds:
        raise ConfigError(
            f"{type(encoder).__name__} defines {', '.join(builds)}, and no hook of that name is called here: what it "
            "does would be lost. Open the datasets one by one and put them together with BlendDataset, MapDataset, "
            "EpochizeDataset and the other wrappers, or say it in a metadataset."
        )
    decoder = encoder.decoder
    if decoder is not None and (isinstance(decoder, type) or not hasattr(decoder, "placement")):
        raise ConfigError(
            f"{type(encoder).__name__}.decoder is {decoder!r}, which is no decoder. Give an instance such as "
            "SampleDecoder() or DaliDecoder(), or None for raw bytes."
        )
    old = {name: kwargs.pop(name) for name in _DECODER_OPTIONS if name in kwargs}
    if kwargs.pop("handler", None) is not None:
        warnings.warn(
            "handler is ignored: set WorkerConfig(global_error_handler=...) instead.",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
    if old:
        encoder = _with_old_decoder(encoder, old, stacklevel + 1)
    if kwargs.get("subflavors") is None:
        kwargs.pop("subflavors", None)
    return encoder, _checked(kwargs)


def _checked(kwargs: dict[str, Any]) -> LeafOptions:
    """Returns the options of a dataset, of keyword arguments with known names."""
    check_numbers(parallel_shard_iters=kwargs.get("parallel_shard_iters"))
    kinds: dict[str, tuple[type, str]] = {
        "sample_type": (type, "a class, such as CaptioningSample"),
        "field_map": (Mapping, "a dict, such as {'image': 'jpg,png', 'caption': 'txt'}"),
        "subflavors": (Mapping, "a dict"),
    }
    for name, (kind, wanted) in kinds.items():
        value = kwargs.get(name)
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}={value!r} cannot be: give {wanted}, or leave it out.")
    wanted_parts = kwargs.get("part_filter")
    if isinstance(wanted_parts, (list, tuple, set, frozenset)):
        kwargs["part_filter"] = PartList(frozenset(wanted_parts))
    elif wanted_parts is not None and not callable(wanted_parts):
        raise ConfigError(
            f"part_filter={wanted_parts!r} cannot be: give a function of a part's name, or a list of names."
        )
    return LeafOptions(**kwargs)


def _with_old_decoder(encoder: AnyEncoder, old: dict[str, Any], stacklevel: int) -> AnyEncoder:
    """Returns the encoder with the decoder that older keyword arguments describe."""
    warnings.warn(
        f"{', '.join(old)} as arguments of the dataset are deprecated: set them on the task encoder, "
        "as in decoder = SampleDecoder(image_decode=...).",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    if encoder.decoder is not TaskEncoder.decoder:
        raise ConfigError(
            f"{', '.join(old)} would replace the decoder that {type(encoder).__name__} already has. Set the options "
            "on that decoder and leave the arguments out."
        )
    encoder = copy.copy(encoder)
    encoder.decoder = SampleDecoder(**old) if old.pop("auto_decode", True) else None
    return encoder
