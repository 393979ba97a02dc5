"""A data loader for multimodal training: tar shards in, media decoded by NVIDIA DALI, batches out.

The names below are the public interface. Each is imported from its module when it is first used (PEP 562), so that
`import energon_dali` touches neither CUDA nor DALI nor the network, and a program pays only for what it uses. Type
checkers read `__init__.pyi`, which imports the same names.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from energon_dali.lazy_names import attach

__version__ = "0.1.0"

_import_name, __dir__, __all__ = attach(
    __name__,
    {
        "assembly.datasets": "get_train_dataset get_val_dataset get_val_datasets",
        "assembly.measuring": "MeasureResult measure_datasets",
        "av": "AVData AVDecoder AVLimits AVWebdatasetDecoder get_clips_uniform get_single_frames_uniform",
        "cache": (
            "CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore FileStoreCachePool FileStoreDecoder "
            "JsonlFileStore Lazy MockLazy NoCachePool PrimaryFileStore ShardCache SystemFileStore WebdatasetFileStore"
        ),
        "datasets.base": "SavableDataset",
        "datasets.grouping.batch": "BatchDataset",
        "datasets.grouping.group_batch": "GroupBatchDataset",
        "datasets.grouping.packing": "PackingDataset",
        "datasets.mixing.blend": "BlendDataset MixBatchDataset concat_pad generic_concat homogeneous_concat_mix",
        "datasets.mixing.mixture_dataset": "ConcatDataset",
        "datasets.wrappers.epochize": "EpochizeDataset LimitDataset",
        "datasets.wrappers.filter": "FilterDataset",
        "datasets.wrappers.gc": "GcDataset",
        "datasets.wrappers.iter_map": "IterMapDataset",
        "datasets.wrappers.log_sample": "LogSampleDataset",
        "datasets.wrappers.map": "MapDataset",
        "datasets.wrappers.repeat": "RepeatDataset",
        "datasets.wrappers.shuffle_buffer": "ShuffleBufferDataset",
        "decode": (
            "CenterCrop DaliDecoder Decoder HorizontalFlip MediaHandle Normalize RandomCrop RandomResizedCrop Resize "
            "SampleDecoder"
        ),
        "decode.audio_front_ends": "AudioFrontEnd AudioInput batch_audio",
        "decode.clips": "ClipAudio LogMel VideoClips",
        "decode.dali": "DaliTuning",
        "decode.front_ends": (
            "FrontEnd MultimodalRope VideoFrontEnd VideoInput VisionInput batch_vision register_front_end"
        ),
        "diagnosis.step_plan": "plan_steps",
        "error_handlers": "log_exception reraise_exception",
        "errors": (
            "ArgumentError ConfigError DatasetError DatasetFormatError DecodeError DeviceError DeviceFailedError "
            "EmptyDatasetError EnergonDaliError FatalSampleError FileMissingError IgnoreSample LayoutError "
            "SampleException ShardError SkipSample StateError StorageError StoreUnavailableError UntrustedCodeError "
            "WatchdogTimeoutError WorkerDiedError WorkerError"
        ),
        "integrations.global_state": "GlobalLoaderState",
        "integrations.iterable": "LoaderIterableDataset",
        "integrations.loader_log": "LoaderLog",
        "integrations.loader_panel": "LoaderPanel",
        "loader.basic_loader": "BasicDataLoader",
        "loader.get_loader": "get_loader get_savable_loader",
        "loader.processes.fork_server": "prepare_workers",
        "loader.savable_loader": "SavableDataLoader",
        "loader.statistics": "LoaderStatistics",
        "loader.upper_bound_loader": "UpperBoundLoader",
        "metadataset.loader": (
            "DatasetLoader DatasetLoaderInterface Metadataset MetadatasetV2 load_dataset prepare_metadataset "
            "traverse_metadataset"
        ),
        "plan.balance": "Balance",
        "plan.costs": "ColumnCost FittedCost TransformerCost fit_cost",
        "samples.base": "Batch CrudeSample Sample SourceInfo edataclass",
        "samples.batching": "batch_list batch_pad_stack batch_stack generic_batch",
        "samples.context_parallel": "ContextCut cut_sequence pad_lengths padding_multiple positions_of_rank",
        "samples.kinds": (
            "CaptioningSample Clips ImageClassificationSample ImageSample InterleavedSample MultiChoiceVQASample "
            "OCRSample SimilarityInterleavedSample TextSample VQAOCRSample VQASample VidQASample"
        ),
        "shards": "RetryPolicy",
        "task_encoder.chat_encoder": "ChatEncoder EncodedChat",
        "task_encoder.cooking": "Cooker basic_sample_keys cooker",
        "task_encoder.default": "AugmentTaskEncoder DefaultTaskEncoder",
        "task_encoder.encoder": "TaskEncoder",
        "task_encoder.packed_sequences": "PackedSequences pack_sequences",
        "task_encoder.packing": "PackSelection SequencePacker",
        "task_encoder.planned_packs": "PlannedPacks",
        "task_encoder.stateless": "stateless",
        "task_encoder.token_counts": "count_tokens",
        "worker_config": "WorkerConfig",
    },
)
__all__ += ["__version__"]
__all__.sort()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise _unknown_name(name, sys._getframe(1))
    return _import_name(name)


def _unknown_name(name: str, frame: FrameType) -> Exception:
    """Returns the error for a name that is not public, with the nearest one that is, or where factories are.

    Args:
        name: The name that was asked for.
        frame: The frame that asked. Python replaces an AttributeError in `from energon_dali import NAME` by its own
            error, so an ImportError is raised there.
    """
    import opcode

    from energon_dali.calls import nearest_names

    near = [] if name.startswith("_") else nearest_names(name, __all__)
    hint = f". Did you mean {' or '.join(near)}?" if near else ""
    if name.endswith(("DatasetFactory", "WebdatasetFactory", "Webdataset")):
        hint = (
            f". Energon's factories are for classes that derive from them: after `import energon_dali.compat`, use "
            f"`from megatron.energon import {name}`. To open a dataset, give its path to get_train_dataset or "
            "get_val_dataset"
        )
    instruction = frame.f_code.co_code[frame.f_lasti] if frame.f_lasti >= 0 else -1
    if hint and opcode.opname[instruction] == "IMPORT_FROM":
        return ImportError(f"cannot import name {name!r} from {__name__!r}{hint}", name=__name__, path=__file__)
    return AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
