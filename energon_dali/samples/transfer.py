"""Moves the tensors within samples and batches, which are among their fields and among what hooks added."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import UserDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of a dataclass instance by name: the fields that are set, then what was added."""
    own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}
    return {**own, **getattr(value, "__dict__", {})}


def map_tensors(value: T, function: Callable[[torch.Tensor], torch.Tensor], *, method: str | None = None) -> T:
    """Applies `function` to every tensor within a value; containers without a changed tensor are returned as they are.

    Containers with a changed tensor are copied shallowly, with their class and attributes: no constructor is called.

    Args:
        value: A tensor, dataclass, dict, list, tuple, or anything else (returned as it is).
        function: Returns the new tensor, or the same one.
        method: Inner objects that have a method of this name are replaced by its result.
    """
    return _mapped(value, function, method, top=True)  # type: ignore[no-any-return]


def _mapped(
    value: Any, function: Callable[[torch.Tensor], torch.Tensor], method: str | None, *, top: bool = False
) -> Any:
    loaded = sys.modules.get("torch")  # if torch was never imported, there are no tensors
    if loaded is not None and isinstance(value, loaded.Tensor):
        return function(value)
    if method is not None and not top and callable(own := getattr(value, method, None)):
        return own()
    if isinstance(value, (dict, UserDict)):
        new = {key: _mapped(inner, function, method) for key, inner in value.items()}
        if all(new[key] is inner for key, inner in value.items()):
            return value
        changed_dict = copy.copy(value)
        changed_dict.update(new)
        return changed_dict
    if isinstance(value, (list, tuple)):
        items = [_mapped(inner, function, method) for inner in value]
        if all(item is inner for item, inner in zip(items, value, strict=True)):
            return value
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        changed_list = copy.copy(value)
        changed_list[:] = items
        return changed_list
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return _mapped_dataclass(value, function, method)
    return value


def _mapped_dataclass(value: Any, function: Callable[[torch.Tensor], torch.Tensor], method: str | None) -> Any:
    changed = None
    for name, old in attributes_of(value).items():
        if name.startswith("__"):  # keys and sources have no tensors, and may be long
            continue
        new = _mapped(old, function, method)
        if new is not old:
            changed = copy.copy(value) if changed is None else changed
            object.__setattr__(changed, name, new)  # frozen dataclasses as well
    return value if changed is None else changed


def pin(value: T) -> T:
    """Returns a value with its CPU tensors copied to pinned memory; as it is if there is no CUDA device.

    Tensors on another device and pinned tensors are not copied.
    """
    import torch

    if not torch.cuda.is_available():
        return value
    return map_tensors(value, pin_tensor)


def pin_batch(value: T) -> T:
    """Returns a batch with its CPU tensors in page-locked memory, so that their copy to the GPU overlaps a step.

    Args:
        value: A batch: a tensor, something with a `pin_memory` method, a dataclass, dict, list or tuple of these.
    """
    import torch

    if not torch.cuda.is_available():  # GPUs were counted, and CUDA does not work
        return value
    own = getattr(value, "pin_memory", None)
    if callable(own) and not isinstance(value, torch.Tensor):
        return own()  # type: ignore[no-any-return]
    return map_tensors(value, pin_tensor, method="pin_memory")


def pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor in pinned memory; tensors on a device, and sparse and jagged ones, as they are."""
    import torch

    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()


def move(value: T, device: torch.device | str | int, non_blocking: bool = True) -> T:
    """Returns a value with its tensors on a device.

    Args:
        value: A sample, a batch, or anything that contains tensors.
        device: Device to move to.
        non_blocking: Copy from pinned memory on the current CUDA stream without synchronizing.
    """
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=non_blocking))
