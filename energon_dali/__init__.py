"""A data loader for multimodal training: tar shards in, media decoded by NVIDIA DALI, batches out.

The names below are the public interface. Each is imported from its module when it is first used (PEP 562), so that
`import energon_dali` touches neither CUDA nor DALI nor the network, and costs a program only what it uses.
"""

from __future__ import annotations

import importlib
import opcode
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.av import (
        AVData,
        AVDecoder,
        AVLimits,
        AVWebdatasetDecoder,
        get_clips_uniform,
        get_single_frames_uniform,
    )
    from energon_dali.build.datasets import get_train_dataset, get_val_dataset, get_val_datasets
    from energon_dali.cache import (
        CachePool,
        DecodeFileStore,
        DirectLazy,
        FileCacheLazy,
        FileStore,
        FileStoreCachePool,
        FileStoreDecoder,
        JsonlFileStore,
        Lazy,
        MockLazy,
        NoCachePool,
        PrimaryFileStore,
        SystemFileStore,
        WebdatasetFileStore,
    )
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.grouping.batch import BatchDataset
    from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
    from energon_dali.datasets.grouping.packing import PackingDataset
    from energon_dali.datasets.mixing.blend import BlendDataset
    from energon_dali.datasets.mixing.concat import ConcatDataset
    from energon_dali.datasets.mixing.concatenation import concat_pad, generic_concat, homogeneous_concat_mix
    from energon_dali.datasets.mixing.mix_batch import MixBatchDataset
    from energon_dali.datasets.wrappers.epochize import EpochizeDataset
    from energon_dali.datasets.wrappers.filter import FilterDataset
    from energon_dali.datasets.wrappers.gc import GcDataset
    from energon_dali.datasets.wrappers.iter_map import IterMapDataset
    from energon_dali.datasets.wrappers.limit import LimitDataset
    from energon_dali.datasets.wrappers.log_sample import LogSampleDataset
    from energon_dali.datasets.wrappers.map import MapDataset
    from energon_dali.datasets.wrappers.repeat import RepeatDataset
    from energon_dali.datasets.wrappers.shuffle_buffer import ShuffleBufferDataset
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
    from energon_dali.decode.clips import ClipAudio, VideoClips
    from energon_dali.decode.dali import DaliTuning
    from energon_dali.error_handlers import log_exception, reraise_exception
    from energon_dali.errors import (
        ArgumentError,
        ConfigError,
        DatasetError,
        DatasetFormatError,
        DecodeError,
        DeviceError,
        DeviceFailedError,
        EnergonDaliError,
        FatalSampleError,
        FileMissingError,
        IgnoreSample,
        LayoutError,
        ShardError,
        SkipSample,
        StateError,
        StorageError,
        StoreUnavailableError,
        UntrustedCodeError,
        WatchdogTimeoutError,
        WorkerDiedError,
        WorkerError,
    )
    from energon_dali.loader.basic_loader import BasicDataLoader, get_loader
    from energon_dali.loader.savable_loader import SavableDataLoader, get_savable_loader
    from energon_dali.metadataset.interface import DatasetLoader, DatasetLoaderInterface
    from energon_dali.metadataset.loader import (
        Metadataset,
        MetadatasetV2,
        load_dataset,
        prepare_metadataset,
        traverse_metadataset,
    )
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
    from energon_dali.samples.clips import Clips
    from energon_dali.shards import RetryPolicy
    from energon_dali.task_encoder import (
        AugmentTaskEncoder,
        Cooker,
        DefaultTaskEncoder,
        PackSelection,
        SequencePacker,
        TaskEncoder,
        basic_sample_keys,
        batch_list,
        batch_pad_stack,
        batch_stack,
        cooker,
        generic_batch,
    )
    from energon_dali.task_encoder.stateless import stateless
    from energon_dali.worker_config import WorkerConfig

__version__ = "0.1.0"

__all__ = [
    "AVData",
    "AVDecoder",
    "AVLimits",
    "AVWebdatasetDecoder",
    "ArgumentError",
    "AugmentTaskEncoder",
    "BasicDataLoader",
    "Batch",
    "BatchDataset",
    "BlendDataset",
    "CachePool",
    "CaptioningSample",
    "CenterCrop",
    "ClipAudio",
    "Clips",
    "ConcatDataset",
    "ConfigError",
    "Cooker",
    "CrudeSample",
    "DaliDecoder",
    "DaliTuning",
    "DatasetError",
    "DatasetFormatError",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DecodeError",
    "DecodeFileStore",
    "Decoder",
    "DefaultTaskEncoder",
    "DeviceError",
    "DeviceFailedError",
    "DirectLazy",
    "EnergonDaliError",
    "EpochizeDataset",
    "FatalSampleError",
    "FileCacheLazy",
    "FileMissingError",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "FilterDataset",
    "GcDataset",
    "GroupBatchDataset",
    "HorizontalFlip",
    "IgnoreSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "IterMapDataset",
    "JsonlFileStore",
    "LayoutError",
    "Lazy",
    "LimitDataset",
    "LogSampleDataset",
    "MapDataset",
    "MediaHandle",
    "Metadataset",
    "MetadatasetV2",
    "MixBatchDataset",
    "MockLazy",
    "MultiChoiceVQASample",
    "NoCachePool",
    "Normalize",
    "OCRSample",
    "PackSelection",
    "PackingDataset",
    "PrimaryFileStore",
    "RandomCrop",
    "RandomResizedCrop",
    "RepeatDataset",
    "Resize",
    "RetryPolicy",
    "Sample",
    "SampleDecoder",
    "SavableDataLoader",
    "SavableDataset",
    "SequencePacker",
    "ShardError",
    "ShuffleBufferDataset",
    "SimilarityInterleavedSample",
    "SkipSample",
    "SourceInfo",
    "StateError",
    "StorageError",
    "StoreUnavailableError",
    "SystemFileStore",
    "TaskEncoder",
    "TextSample",
    "UntrustedCodeError",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "VideoClips",
    "WatchdogTimeoutError",
    "WebdatasetFileStore",
    "WorkerConfig",
    "WorkerDiedError",
    "WorkerError",
    "__version__",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "concat_pad",
    "cooker",
    "edataclass",
    "generic_batch",
    "generic_concat",
    "get_clips_uniform",
    "get_loader",
    "get_savable_loader",
    "get_single_frames_uniform",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "homogeneous_concat_mix",
    "load_dataset",
    "log_exception",
    "prepare_metadataset",
    "reraise_exception",
    "stateless",
    "traverse_metadataset",
]

_HOMES = {
    "av": ("AVData", "AVDecoder", "AVLimits", "AVWebdatasetDecoder", "get_clips_uniform", "get_single_frames_uniform"),
    "cache": (
        "CachePool",
        "DecodeFileStore",
        "DirectLazy",
        "FileCacheLazy",
        "FileStore",
        "FileStoreCachePool",
        "FileStoreDecoder",
        "JsonlFileStore",
        "Lazy",
        "MockLazy",
        "NoCachePool",
        "PrimaryFileStore",
        "SystemFileStore",
        "WebdatasetFileStore",
    ),
    "datasets.base": ("SavableDataset",),
    "datasets.grouping.batch": ("BatchDataset",),
    "datasets.grouping.group_batch": ("GroupBatchDataset",),
    "datasets.grouping.packing": ("PackingDataset",),
    "datasets.mixing.blend": ("BlendDataset",),
    "datasets.mixing.concat": ("ConcatDataset",),
    "datasets.mixing.concatenation": ("concat_pad", "generic_concat", "homogeneous_concat_mix"),
    "datasets.mixing.mix_batch": ("MixBatchDataset",),
    "datasets.wrappers.epochize": ("EpochizeDataset",),
    "datasets.wrappers.filter": ("FilterDataset",),
    "datasets.wrappers.gc": ("GcDataset",),
    "datasets.wrappers.iter_map": ("IterMapDataset",),
    "datasets.wrappers.limit": ("LimitDataset",),
    "datasets.wrappers.log_sample": ("LogSampleDataset",),
    "datasets.wrappers.map": ("MapDataset",),
    "datasets.wrappers.repeat": ("RepeatDataset",),
    "datasets.wrappers.shuffle_buffer": ("ShuffleBufferDataset",),
    "decode": (
        "CenterCrop",
        "DaliDecoder",
        "Decoder",
        "HorizontalFlip",
        "MediaHandle",
        "Normalize",
        "RandomCrop",
        "RandomResizedCrop",
        "Resize",
        "SampleDecoder",
    ),
    "decode.clips": ("ClipAudio", "VideoClips"),
    "decode.dali": ("DaliTuning",),
    "error_handlers": ("log_exception", "reraise_exception"),
    "errors": (
        "ArgumentError",
        "ConfigError",
        "DatasetError",
        "DatasetFormatError",
        "DecodeError",
        "DeviceError",
        "DeviceFailedError",
        "EnergonDaliError",
        "FatalSampleError",
        "FileMissingError",
        "IgnoreSample",
        "LayoutError",
        "ShardError",
        "SkipSample",
        "StateError",
        "StorageError",
        "StoreUnavailableError",
        "UntrustedCodeError",
        "WatchdogTimeoutError",
        "WorkerDiedError",
        "WorkerError",
    ),
    "loader.basic_loader": ("BasicDataLoader", "get_loader"),
    "build.datasets": ("get_train_dataset", "get_val_dataset", "get_val_datasets"),
    "loader.savable_loader": ("SavableDataLoader", "get_savable_loader"),
    "metadataset.interface": ("DatasetLoader", "DatasetLoaderInterface"),
    "metadataset.loader": (
        "Metadataset",
        "MetadatasetV2",
        "load_dataset",
        "prepare_metadataset",
        "traverse_metadataset",
    ),
    "samples": (
        "Batch",
        "CaptioningSample",
        "CrudeSample",
        "ImageClassificationSample",
        "ImageSample",
        "InterleavedSample",
        "MultiChoiceVQASample",
        "OCRSample",
        "Sample",
        "SimilarityInterleavedSample",
        "SourceInfo",
        "TextSample",
        "VQAOCRSample",
        "VQASample",
        "VidQASample",
        "edataclass",
    ),
    "samples.clips": ("Clips",),
    "shards": ("RetryPolicy",),
    "task_encoder": (
        "AugmentTaskEncoder",
        "Cooker",
        "DefaultTaskEncoder",
        "PackSelection",
        "SequencePacker",
        "TaskEncoder",
        "basic_sample_keys",
        "batch_list",
        "batch_pad_stack",
        "batch_stack",
        "cooker",
        "generic_batch",
    ),
    "task_encoder.stateless": ("stateless",),
    "worker_config": ("WorkerConfig",),
}
"""Module of each public name."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise _unknown_name(name, sys._getframe(1)) from None
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def _unknown_name(name: str, frame: FrameType) -> Exception:
    """Returns the error for a name that is not public, with the nearest one that is.

    Args:
        name: What was asked for.
        frame: Who asked. Python replaces an AttributeError in `from energon_dali import NAME` by its own error.
    """
    from energon_dali.nearest import nearest_names

    near = [] if name.startswith("_") else nearest_names(name, __all__)
    hint = f". Did you mean {' or '.join(near)}?" if near else ""
    asked = frame.f_code.co_code[frame.f_lasti] if frame.f_lasti >= 0 else -1
    if near and opcode.opname[asked] == "IMPORT_FROM":
        return ImportError(f"cannot import name {name!r} from {__name__!r}{hint}", name=__name__, path=__file__)
    return AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
