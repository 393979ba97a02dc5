"""The public names, as type checkers see them; `__init__.py` imports each from its module when it is first used."""

from energon_dali.assembly.datasets import (
    get_train_dataset as get_train_dataset,
    get_val_dataset as get_val_dataset,
    get_val_datasets as get_val_datasets,
)
from energon_dali.assembly.measuring import (
    MeasureResult as MeasureResult,
    measure_datasets as measure_datasets,
)
from energon_dali.av import (
    AVData as AVData,
    AVDecoder as AVDecoder,
    AVLimits as AVLimits,
    AVWebdatasetDecoder as AVWebdatasetDecoder,
    get_clips_uniform as get_clips_uniform,
    get_single_frames_uniform as get_single_frames_uniform,
)
from energon_dali.cache import (
    CachePool as CachePool,
    DecodeFileStore as DecodeFileStore,
    DirectLazy as DirectLazy,
    FileCacheLazy as FileCacheLazy,
    FileStore as FileStore,
    FileStoreCachePool as FileStoreCachePool,
    FileStoreDecoder as FileStoreDecoder,
    JsonlFileStore as JsonlFileStore,
    Lazy as Lazy,
    MockLazy as MockLazy,
    NoCachePool as NoCachePool,
    PrimaryFileStore as PrimaryFileStore,
    ShardCache as ShardCache,
    SystemFileStore as SystemFileStore,
    WebdatasetFileStore as WebdatasetFileStore,
)
from energon_dali.datasets.base import (
    SavableDataset as SavableDataset,
)
from energon_dali.datasets.grouping.batch import (
    BatchDataset as BatchDataset,
)
from energon_dali.datasets.grouping.group_batch import (
    GroupBatchDataset as GroupBatchDataset,
)
from energon_dali.datasets.grouping.packing import (
    PackingDataset as PackingDataset,
)
from energon_dali.datasets.mixing.blend import (
    BlendDataset as BlendDataset,
    MixBatchDataset as MixBatchDataset,
    concat_pad as concat_pad,
    generic_concat as generic_concat,
    homogeneous_concat_mix as homogeneous_concat_mix,
)
from energon_dali.datasets.mixing.mixture_dataset import (
    ConcatDataset as ConcatDataset,
)
from energon_dali.datasets.wrappers.epochize import (
    EpochizeDataset as EpochizeDataset,
    LimitDataset as LimitDataset,
)
from energon_dali.datasets.wrappers.filter import (
    FilterDataset as FilterDataset,
)
from energon_dali.datasets.wrappers.gc import (
    GcDataset as GcDataset,
)
from energon_dali.datasets.wrappers.iter_map import (
    IterMapDataset as IterMapDataset,
)
from energon_dali.datasets.wrappers.log_sample import (
    LogSampleDataset as LogSampleDataset,
)
from energon_dali.datasets.wrappers.map import (
    MapDataset as MapDataset,
)
from energon_dali.datasets.wrappers.repeat import (
    RepeatDataset as RepeatDataset,
)
from energon_dali.datasets.wrappers.shuffle_buffer import (
    ShuffleBufferDataset as ShuffleBufferDataset,
)
from energon_dali.decode import (
    CenterCrop as CenterCrop,
    DaliDecoder as DaliDecoder,
    Decoder as Decoder,
    HorizontalFlip as HorizontalFlip,
    MediaHandle as MediaHandle,
    Normalize as Normalize,
    RandomCrop as RandomCrop,
    RandomResizedCrop as RandomResizedCrop,
    Resize as Resize,
    SampleDecoder as SampleDecoder,
)
from energon_dali.decode.audio_front_ends import (
    AudioFrontEnd as AudioFrontEnd,
    AudioInput as AudioInput,
    batch_audio as batch_audio,
)
from energon_dali.decode.clips import (
    ClipAudio as ClipAudio,
    LogMel as LogMel,
    VideoClips as VideoClips,
)
from energon_dali.decode.dali import (
    DaliTuning as DaliTuning,
)
from energon_dali.decode.front_ends import (
    FrontEnd as FrontEnd,
    MultimodalRope as MultimodalRope,
    VideoFrontEnd as VideoFrontEnd,
    VideoInput as VideoInput,
    VisionInput as VisionInput,
    batch_vision as batch_vision,
    register_front_end as register_front_end,
)
from energon_dali.diagnosis.step_plan import (
    plan_steps as plan_steps,
)
from energon_dali.error_handlers import (
    log_exception as log_exception,
    reraise_exception as reraise_exception,
)
from energon_dali.errors import (
    ArgumentError as ArgumentError,
    ConfigError as ConfigError,
    DatasetError as DatasetError,
    DatasetFormatError as DatasetFormatError,
    DecodeError as DecodeError,
    DeviceError as DeviceError,
    DeviceFailedError as DeviceFailedError,
    EmptyDatasetError as EmptyDatasetError,
    EnergonDaliError as EnergonDaliError,
    FatalSampleError as FatalSampleError,
    FileMissingError as FileMissingError,
    IgnoreSample as IgnoreSample,
    LayoutError as LayoutError,
    SampleException as SampleException,
    ShardError as ShardError,
    SkipSample as SkipSample,
    StateError as StateError,
    StorageError as StorageError,
    StoreUnavailableError as StoreUnavailableError,
    UntrustedCodeError as UntrustedCodeError,
    WatchdogTimeoutError as WatchdogTimeoutError,
    WorkerDiedError as WorkerDiedError,
    WorkerError as WorkerError,
)
from energon_dali.integrations.global_state import (
    GlobalLoaderState as GlobalLoaderState,
)
from energon_dali.integrations.iterable import (
    LoaderIterableDataset as LoaderIterableDataset,
)
from energon_dali.integrations.loader_log import (
    LoaderLog as LoaderLog,
)
from energon_dali.integrations.loader_panel import (
    LoaderPanel as LoaderPanel,
)
from energon_dali.loader.basic_loader import (
    BasicDataLoader as BasicDataLoader,
)
from energon_dali.loader.get_loader import (
    get_loader as get_loader,
    get_savable_loader as get_savable_loader,
)
from energon_dali.loader.processes.fork_server import (
    prepare_workers as prepare_workers,
)
from energon_dali.loader.savable_loader import (
    SavableDataLoader as SavableDataLoader,
)
from energon_dali.loader.statistics import (
    LoaderStatistics as LoaderStatistics,
)
from energon_dali.loader.upper_bound_loader import (
    UpperBoundLoader as UpperBoundLoader,
)
from energon_dali.metadataset.loader import (
    DatasetLoader as DatasetLoader,
    DatasetLoaderInterface as DatasetLoaderInterface,
    Metadataset as Metadataset,
    MetadatasetV2 as MetadatasetV2,
    load_dataset as load_dataset,
    prepare_metadataset as prepare_metadataset,
    traverse_metadataset as traverse_metadataset,
)
from energon_dali.plan.balance import (
    Balance as Balance,
)
from energon_dali.plan.costs import (
    ColumnCost as ColumnCost,
)
from energon_dali.plan.costs import (
    FittedCost as FittedCost,
)
from energon_dali.plan.costs import (
    TransformerCost as TransformerCost,
)
from energon_dali.plan.costs import (
    fit_cost as fit_cost,
)
from energon_dali.samples.base import (
    Batch as Batch,
    CrudeSample as CrudeSample,
    Sample as Sample,
    SourceInfo as SourceInfo,
    edataclass as edataclass,
)
from energon_dali.samples.batching import (
    batch_list as batch_list,
    batch_pad_stack as batch_pad_stack,
    batch_stack as batch_stack,
    generic_batch as generic_batch,
)
from energon_dali.samples.kinds import (
    CaptioningSample as CaptioningSample,
    Clips as Clips,
    ImageClassificationSample as ImageClassificationSample,
    ImageSample as ImageSample,
    InterleavedSample as InterleavedSample,
    MultiChoiceVQASample as MultiChoiceVQASample,
    OCRSample as OCRSample,
    SimilarityInterleavedSample as SimilarityInterleavedSample,
    TextSample as TextSample,
    VQAOCRSample as VQAOCRSample,
    VQASample as VQASample,
    VidQASample as VidQASample,
)
from energon_dali.samples.context_parallel import (
    ContextCut as ContextCut,
    cut_sequence as cut_sequence,
    pad_lengths as pad_lengths,
    padding_multiple as padding_multiple,
    positions_of_rank as positions_of_rank,
)
from energon_dali.shards import (
    RetryPolicy as RetryPolicy,
)
from energon_dali.task_encoder.chat_encoder import (
    ChatEncoder as ChatEncoder,
    EncodedChat as EncodedChat,
)
from energon_dali.task_encoder.cooking import (
    Cooker as Cooker,
    basic_sample_keys as basic_sample_keys,
    cooker as cooker,
)
from energon_dali.task_encoder.default import (
    AugmentTaskEncoder as AugmentTaskEncoder,
    DefaultTaskEncoder as DefaultTaskEncoder,
)
from energon_dali.task_encoder.encoder import (
    TaskEncoder as TaskEncoder,
)
from energon_dali.task_encoder.packed_sequences import (
    PackedSequences as PackedSequences,
    pack_sequences as pack_sequences,
)
from energon_dali.task_encoder.packing import (
    PackSelection as PackSelection,
    SequencePacker as SequencePacker,
)
from energon_dali.task_encoder.planned_packs import (
    PlannedPacks as PlannedPacks,
)
from energon_dali.task_encoder.stateless import (
    stateless as stateless,
)
from energon_dali.task_encoder.token_counts import (
    count_tokens as count_tokens,
)
from energon_dali.worker_config import (
    WorkerConfig as WorkerConfig,
)

__all__: list[str]
__version__: str
