"""Makes batches of samples, field by field."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from energon_dali.errors import ConfigError
from energon_dali.samples.base import Batch, construct, get_field, has_field

if TYPE_CHECKING:
    import torch

    from energon_dali.kernels.pad_stack import Layout

R = TypeVar("R")

_MAX_CHANNELS = 4
"""An axis of at most this length may be the channels of images; the kernel handles them one by one."""
_MAX_KERNEL_PIXELS = 2**31 - 2048


def batch_list(batch: list[Any]) -> list[Any]:
    """Returns the list itself: a field that stays one value per sample."""
    return batch


def batch_stack(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tensors of one shape stacked along a new first dimension.

    If they are consecutive in one storage, as the rows of a decoded block are, the result is a **view** of them and
    nothing is copied: writing to the batch then writes to the samples. Otherwise it is a copy. On a device the copy
    runs on the current CUDA stream, without synchronisation.

    Args:
        batch: n >= 1 tensors (...) of one shape, dtype and device.

    Returns:
        Tensor (n, ...).

    Raises:
        ConfigError: There are no tensors, or their shapes differ.
    """
    if not batch:
        raise ConfigError("batch_stack was given no tensors; a batch needs at least one sample.")
    shape = batch[0].shape
    for tensor in batch:
        if tensor.shape != shape:
            raise ConfigError(
                f"batch_stack was given tensors of the shapes {_shapes(batch)}, but stacks only equal shapes. Resize "
                "the samples to one shape, pad them with batch_pad_stack, or keep them apart with batch_list."
            )
    import torch

    view = _consecutive_view(batch)
    return torch.stack(list(batch)) if view is None else view


def _consecutive_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Returns the stack of equal-shaped tensors as a view; None unless they are consecutive in one storage."""
    import torch

    first = tensors[0]
    step = first.numel()
    if step == 0 or type(first) is not torch.Tensor or first.layout is not torch.strided:
        return None
    step_bytes = step * first.element_size()
    address, dtype, device = first.data_ptr(), first.dtype, first.device
    for number, tensor in enumerate(tensors):
        if (
            tensor.data_ptr() != address + number * step_bytes
            or tensor.dtype != dtype
            or tensor.device != device
            or not tensor.is_contiguous()
            or tensor.requires_grad
        ):
            return None
    # Separate allocations may happen to be neighbours. If the first one's storage spans all of them, they can only be
    # parts of it.
    end_bytes = (first.storage_offset() + len(tensors) * step) * first.element_size()
    if first.untyped_storage().nbytes() < end_bytes:
        return None
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))


def batch_pad_stack(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tensors stacked along a new first dimension, padded with zeros at the end of each dimension.

    Tensors of one shape are stacked by `batch_stack`, as a view if they are consecutive in one storage. Images uint8
    (C, H, W) or (H, W, C) on a GPU are copied and padded by one kernel, with the same result.
    `energon_dali.kernels.pad_stack` also converts them to floats, normalised and flipped, in the same pass.

    Args:
        batch: n >= 1 tensors with the same number of dimensions.

    Returns:
        Tensor (n, ...), each dimension as long as the longest of the tensors.

    Raises:
        ConfigError: There are no tensors, or their numbers of dimensions differ.
    """
    if not batch:
        raise ConfigError("batch_pad_stack was given no tensors; a batch needs at least one sample.")
    first = batch[0]
    if all(tensor.shape == first.shape for tensor in batch):
        return batch_stack(batch)
    if any(tensor.ndim != first.ndim for tensor in batch):
        raise ConfigError(
            f"batch_pad_stack was given tensors of the shapes {_shapes(batch)}, but pads only if all have the "
            "same number of dimensions. Reshape the samples, or keep them apart with batch_list."
        )
    import torch

    layout = image_layout(batch) if first.is_cuda else None
    if layout is not None:
        from energon_dali.kernels.pad_stack import pad_stack

        padded: torch.Tensor = pad_stack(batch, layout=layout, input_layout=layout)
        return padded
    longest = [max(lengths) for lengths in zip(*(tensor.shape for tensor in batch), strict=True)]
    dtype = functools.reduce(torch.promote_types, {tensor.dtype for tensor in batch})
    whole = torch.zeros((len(batch), *longest), dtype=dtype, device=first.device)
    for row, tensor in zip(whole, batch, strict=True):
        row[tuple([slice(length) for length in tensor.shape])] = tensor
    return whole


def image_layout(batch: Sequence[torch.Tensor]) -> Layout | None:
    """Returns the layout of images, if the kernel that pads images accepts them; otherwise None.

    Args:
        batch: n >= 1 tensors with the same number of dimensions.

    Returns:
        "CHW" or "HWC" if the first or last axis is the same for all and at most 4. None if neither is, or if they are
        not plain uint8 tensors with 3 axes on one device, or are too large for the kernel.
    """
    import torch

    first = batch[0]
    channels_first = channels_last = first.ndim == 3
    for tensor in batch:
        if type(tensor) is not torch.Tensor or tensor.dtype != torch.uint8 or tensor.device != first.device:
            return None
        channels_first = channels_first and tensor.shape[0] == first.shape[0] <= _MAX_CHANNELS
        channels_last = channels_last and tensor.shape[-1] == first.shape[-1] <= _MAX_CHANNELS
    if not channels_first and not channels_last:
        return None
    height, width = (1, 2) if channels_first else (0, 1)
    pixels = max(tensor.shape[height] for tensor in batch) * max(tensor.shape[width] for tensor in batch)
    return None if pixels > _MAX_KERNEL_PIXELS else "CHW" if channels_first else "HWC"


def make_batch(
    samples: Sequence[Any],
    result_type: type[R],
    actions: Mapping[str, Callable[[list[Any]], Any]],
    other: Callable[[list[Any]], Any],
) -> R:
    """Returns a batch of samples; see `TaskEncoder._batch`.

    A dataclass with its own `from_samples` makes the batch itself; then `actions` and `other` are ignored, as in
    Energon. The one of `Batch` is not called, because it keeps tensors in lists.

    Raises:
        ConfigError: There are no samples, an action is for a missing field, or the result type needs a missing field.
    """
    if not samples:
        raise ConfigError("A batch needs at least one sample, and none was given.")
    from_samples = _own_from_samples(result_type)
    if from_samples is not None:
        return from_samples(samples)  # type: ignore[no-any-return]
    columns = columns_of(samples)
    taken, needed = _fields_of(result_type, columns)
    unknown = [name for name in actions if name not in columns or name not in taken]
    if unknown:
        raise ConfigError(
            f"_batch has actions for {unknown}, which are not fields of both the samples ({sorted(columns)}) and "
            f"{result_type.__name__} ({sorted(taken)}). Correct the names, or remove the actions."
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


def batch_alike(samples: list[Any]) -> Any:
    """Returns what `TaskEncoder._batch` makes of the samples' own type, by default.

    Raises:
        ConfigError: The samples have different fields.
    """
    return make_batch(samples, type(samples[0]), {}, generic_batch)


def _own_from_samples(kind: type[Any]) -> Callable[[Sequence[Any]], Any] | None:
    """Returns the `from_samples` of a dataclass; None if it has none, or that of `Batch`."""
    if not is_dataclass(kind):
        return None
    found: Callable[[Sequence[Any]], Any] | None = getattr(kind, "from_samples", None)
    of_batch = Batch.__dict__["from_samples"].__func__
    return None if getattr(found, "__func__", found) is of_batch else found


def _fields_of(result_type: type[Any], columns: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Returns (fields that a type takes, fields that it requires).

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


def generic_batch(batch: list[Any]) -> Any:
    """Returns a batch of values, made by their type.

    Tensors are stacked and padded. Dicts, dataclasses and named tuples are batched field by field: the base fields of
    samples become lists, and `__sources__` one tuple. A dataclass with `from_samples` batches itself. Everything else
    stays a list, and so do values of which some are None, unless the others have `batches_none` (`AudioInput`).

    Args:
        batch: One value per sample, all of one type or None.

    Raises:
        ConfigError: Dicts have different keys, or tensors different numbers of dimensions.
    """
    first = next((value for value in batch if value is not None), None)
    if first is None or (any(value is None for value in batch) and not getattr(first, "batches_none", False)):
        return batch
    torch = sys.modules.get("torch")  # if it was never imported, there are no tensors
    if torch is not None and all(isinstance(value, torch.Tensor) for value in batch):
        return batch_pad_stack(batch)
    if isinstance(first, dict):
        return {name: default_action(name, column) for name, column in columns_of(batch).items()}
    if hasattr(first, "__dataclass_fields__"):
        if hasattr(first, "from_samples"):
            return type(first).from_samples(batch)
        return type(first)(**{name: default_action(name, column) for name, column in columns_of(batch).items()})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(**{name: generic_batch(column) for name, column in columns_of(batch).items()})
    return batch


def default_action(name: str, column: list[Any], other: Any = generic_batch) -> Any:
    """Returns the batch of a field by its name: base fields of samples stay lists or tuples, `other` makes the rest."""
    if name == "__sources__":
        return tuple([source for sources in column for source in sources or ()]) or None
    if name == "__restore_key__":
        return tuple(column)
    if name.startswith("__") and name.endswith("__"):
        return column
    return other(column)


def columns_of(samples: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns the fields of samples as lists of one value per sample, by name.

    Args:
        samples: At least one dict, dataclass or named tuple; all have the fields of the first.

    Raises:
        ConfigError: A sample has no fields, or other fields than the first.
    """
    first = samples[0]
    if first is None:
        raise ConfigError("A sample to batch is None: let encode_sample, the hook before, return one.")
    if isinstance(first, dict):
        names = list(first)
    elif hasattr(first, "__dataclass_fields__"):
        names = [field.name for field in fields(first) if field.init]
    elif hasattr(first, "_fields"):
        names = list(first._fields)
    else:
        raise ConfigError(
            f"A {type(first).__name__} has no fields to batch. Give dataclasses, dicts or named tuples, "
            "or override batch()."
        )
    if not isinstance(first, dict) and len(set(map(type, samples))) == 1:
        with suppress(AttributeError):  # explained below
            return {name: [getattr(sample, name) for sample in samples] for name in names}
    for sample in samples:
        lost = [name for name in names if not has_field(sample, name)]
        if lost or (isinstance(sample, dict) and len(sample) != len(names)):
            other = sorted(sample) if isinstance(sample, dict) else type(sample).__name__
            raise ConfigError(
                f"The samples of a batch have different fields: the first has {sorted(names)}, another {other}. Make "
                "encode_sample return the same fields for all samples, or group them with batch_group_criterion."
            )
    return {name: [get_field(sample, name) for sample in samples] for name in names}


def _shapes(tensors: Sequence[torch.Tensor]) -> str:
    """Returns the distinct shapes of tensors, for a message."""
    shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
    return ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
