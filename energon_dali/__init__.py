"""A data loader for multimodal training: tar shards in, media decoded by NVIDIA DALI, batches out.

The names below are the public interface. Each is imported from its module when it is first used (PEP 562), so that
`import energon_dali` touches neither CUDA nor DALI nor the network, and costs a program only what it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.decode import (
        CenterCrop,
        DaliDecoder,
        Decoder,
        HorizontalFlip,
        MediaHandle,
        Normalize,
        RandomCrop,
        RandomResizedCrop,
        Resize,
        SampleDecoder,
    )
    from energon_dali.error_handlers import log_exception, reraise_exception
    from energon_dali.errors import (
        ConfigError,
        DatasetError,
        DatasetFormatError,
        DecodeError,
        DeviceError,
        DeviceFailedError,
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
    from energon_dali.loader.basic_loader import BasicDataLoader, get_loader
    from energon_dali.loader.datasets import get_train_dataset, get_val_dataset, get_val_datasets
    from energon_dali.loader.savable_loader import SavableDataLoader, get_savable_loader
    from energon_dali.samples import (
        Batch,
        CaptioningSample,
        CrudeSample,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        Sample,
        SimilarityInterleavedSample,
        SourceInfo,
        TextSample,
        VidQASample,
        VQAOCRSample,
        VQASample,
        edataclass,
    )
    from energon_dali.task_encoder import (
        AugmentTaskEncoder,
        Cooker,
        DefaultTaskEncoder,
        TaskEncoder,
        basic_sample_keys,
        batch_list,
        batch_pad_stack,
        batch_stack,
        cooker,
        generic_batch,
        stateless,
    )
    from energon_dali.worker_config import WorkerConfig

__version__ = "0.1.0"

__all__ = [
    "AugmentTaskEncoder",
    "BasicDataLoader",
    "Batch",
    "CaptioningSample",
    "CenterCrop",
    "ConfigError",
    "Cooker",
    "CrudeSample",
    "DaliDecoder",
    "DatasetError",
    "DatasetFormatError",
    "DecodeError",
    "Decoder",
    "DefaultTaskEncoder",
    "DeviceError",
    "DeviceFailedError",
    "EnergonDaliError",
    "FatalSampleError",
    "HorizontalFlip",
    "IgnoreSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "LayoutError",
    "MediaHandle",
    "MultiChoiceVQASample",
    "Normalize",
    "OCRSample",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "Sample",
    "SampleDecoder",
    "SavableDataLoader",
    "SavableDataset",
    "ShardError",
    "SimilarityInterleavedSample",
    "SkipSample",
    "SourceInfo",
    "StateError",
    "StorageError",
    "TaskEncoder",
    "TextSample",
    "UntrustedCodeError",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "WatchdogTimeoutError",
    "WorkerConfig",
    "WorkerDiedError",
    "WorkerError",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "cooker",
    "edataclass",
    "generic_batch",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "log_exception",
    "reraise_exception",
    "stateless",
]

_HOMES = {
    "datasets.base": ("SavableDataset",),
    "decode": (
        "CenterCrop", "DaliDecoder", "Decoder", "HorizontalFlip", "MediaHandle", "Normalize", "RandomCrop",
        "RandomResizedCrop", "Resize", "SampleDecoder",
    ),
    "error_handlers": ("log_exception", "reraise_exception"),
    "errors": (
        "ConfigError", "DatasetError", "DatasetFormatError", "DecodeError", "DeviceError", "DeviceFailedError",
        "EnergonDaliError", "FatalSampleError", "IgnoreSample", "LayoutError", "ShardError", "SkipSample",
        "StateError", "StorageError", "UntrustedCodeError", "WatchdogTimeoutError", "WorkerDiedError", "WorkerError",
    ),
    "loader.basic_loader": ("BasicDataLoader", "get_loader"),
    "loader.datasets": ("get_train_dataset", "get_val_dataset", "get_val_datasets"),
    "loader.savable_loader": ("SavableDataLoader", "get_savable_loader"),
    "samples": (
        "Batch", "CaptioningSample", "CrudeSample", "ImageClassificationSample", "ImageSample", "InterleavedSample",
        "MultiChoiceVQASample", "OCRSample", "Sample", "SimilarityInterleavedSample", "SourceInfo", "TextSample",
        "VQAOCRSample", "VQASample", "VidQASample", "edataclass",
    ),
    "task_encoder": (
        "AugmentTaskEncoder", "Cooker", "DefaultTaskEncoder", "TaskEncoder", "basic_sample_keys", "batch_list",
        "batch_pad_stack", "batch_stack", "cooker", "generic_batch", "stateless",
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
