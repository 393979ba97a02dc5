"""Tests in this folder need a GPU: left out without one, but a failure with FAIL_WITHOUT_CUDA=1 (where one must be)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def _gpu_is_usable() -> bool:
    from energon_dali.decode.dali.device import has_dali, sees_gpu

    if not has_dali() or not sees_gpu():
        return False
    import torch

    return bool(torch.cuda.is_available())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks this folder's tests as gpu tests and leaves them out where there is no GPU."""
    mine = [item for item in items if _HERE in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
    if mine and os.environ.get("FAIL_WITHOUT_CUDA") != "1" and not _gpu_is_usable():
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="no usable GPU; FAIL_WITHOUT_CUDA=1 makes this a failure"))
