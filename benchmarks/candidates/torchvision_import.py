"""Imports torchvision's transforms with a torch that its wheel was not built for."""

from __future__ import annotations

import importlib
from typing import Any

import torch

_kept: list[Any] = []
"""The definitions exist as long as their library object."""


def import_torchvision_transforms() -> Any:
    """Returns the module torchvision.transforms.v2.

    Where torch is built without CUDA, the wheel of torchvision cannot load its native operators, and importing it
    fails on the two that it describes to torch. The transforms use none of them, so that naming both is enough.
    """
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    return importlib.import_module("torchvision.transforms.v2")
