"""A data loader for multimodal training: tar shards in, media decoded by NVIDIA DALI, batches out.

The names below are the public interface. Each is imported from its module when it is first used (PEP 562), so that
`import energon_dali` touches neither CUDA nor DALI nor the network, and costs a program only what it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.errors import (
        ConfigError,
        DatasetError,
        DatasetFormatError,
        DecodeError,
        DeviceError,
        EnergonDaliError,
        FatalSampleError,
        IgnoreSample,
        LayoutError,
        ShardError,
        SkipSample,
        StateError,
        StorageError,
        UntrustedCodeError,
        WatchdogTimeoutError,
        WorkerDiedError,
        WorkerError,
    )
    from energon_dali.worker_config import WorkerConfig

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DatasetError",
    "DatasetFormatError",
    "DecodeError",
    "DeviceError",
    "EnergonDaliError",
    "FatalSampleError",
    "IgnoreSample",
    "LayoutError",
    "ShardError",
    "SkipSample",
    "StateError",
    "StorageError",
    "UntrustedCodeError",
    "WatchdogTimeoutError",
    "WorkerConfig",
    "WorkerDiedError",
    "WorkerError",
]

_HOMES = {
    "errors": (
        "ConfigError", "DatasetError", "DatasetFormatError", "DecodeError", "DeviceError", "EnergonDaliError",
        "FatalSampleError", "IgnoreSample", "LayoutError", "ShardError", "SkipSample", "StateError", "StorageError",
        "UntrustedCodeError", "WatchdogTimeoutError", "WorkerDiedError", "WorkerError",
    ),
    "worker_config": ("WorkerConfig",),
}  # fmt: skip
"""Module of each public name."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
