"""The modules of Energon 7.4.1, their public names, and what each name is in this package."""

from __future__ import annotations

import re
from collections.abc import Mapping

import energon_dali

_MODULES = """
.: AugmentTaskEncoder BaseCoreDatasetFactory BaseWebdatasetFactory Batch BatchDataset BlendDataset CachePool
    CaptioningSample CaptioningWebdataset ConcatDataset Cooker CrudeJsonlDatasetFactory CrudeSample CrudeWebdataset
    DatasetLoader DatasetLoaderInterface DecodeFileStore DefaultCrudeJsonlDatasetFactory
    DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory DefaultTaskEncoder DirectLazy EpochizeDataset
    FileCacheLazy FileStore FileStoreCachePool FileStoreDecoder FilterDataset GcDataset GroupBatchDataset
    ImageClassificationSample ImageClassificationWebdataset ImageSample ImageWebdataset InterleavedSample
    InterleavedWebdataset IterMapDataset JoinedWebdatasetFactory Lazy LimitDataset LogSampleDataset MapDataset
    Metadataset MetadatasetV2 MixBatchDataset MockLazy MultiChoiceVQASample MultiChoiceVQAWebdataset NoCachePool
    OCRSample OCRWebdataset PackingDataset PrimaryFileStore RepeatDataset Sample SampleDecoder SavableDataLoader
    SavableDataset ShuffleBufferDataset SimilarityInterleavedSample SimilarityInterleavedWebdataset SkipSample
    SourceInfo StandardWebdatasetFactory SystemFileStore TaskEncoder TextSample TextWebdataset VQAOCRWebdataset
    VQASample VQAWebdataset VidQASample VidQAWebdataset WorkerConfig basic_sample_keys batch_list batch_pad_stack
    batch_stack concat_pad cooker edataclass generic_batch generic_concat get_loader get_savable_loader
    get_train_dataset get_val_dataset get_val_datasets homogeneous_concat_mix load_dataset log_exception
    prepare_metadataset reraise_exception stateless traverse_metadataset
.av: AVData AVDecoder AVWebdatasetDecoder get_clips_uniform get_single_frames_uniform
.av.av_data: AVData
.av.av_decoder: AVDecoder AVIndexMode AVWebdatasetDecoder AV_DECODE_AVAILABLE MISSING_DEPENDENCY
.av.av_init:
.av.av_reader:
.av.utils: get_clips_uniform get_single_frames_uniform
.bracecollapse: collapse
.cache: CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore FileStoreCachePool FileStoreDecoder Lazy
    MockLazy NoCachePool PrimaryFileStore SystemFileStore
.cache.base: CachePool FileStore FileStoreDecoder Lazy MockLazy PrimaryFileStore
.cache.file_cache_pool: FileCacheLazy FileStoreCachePool
.cache.file_store: DecodeFileStore JsonlFileStore SystemFileStore WebdatasetFileStore
.cache.no_cache: DirectLazy NoCachePool
.cli:
.cli.main: main
.dataset_config: get_dataset_from_config load_config
.deprecation: deprecated warn_deprecated
.edataclass: edataclass
.epathlib: DEFAULT_PROFILE_NAME EPath
.epathlib.epath: DEFAULT_PROFILE_NAME EPath NVDATASET_CACHE_DIR
.epathlib.rclone_config:
.errors: ErrorContext FatalSampleError SYSTEM_EXCEPTIONS SampleException SkipSample handle_restore_errors
    log_exception reraise_exception
.eyaml: load_yaml load_yaml_json
.flavors: AVData AVDecoder AVDecoderType BaseCoreDatasetFactory BaseWebdatasetFactory CaptioningSample
    CaptioningWebdataset CrudeJsonlDatasetFactory CrudeSample CrudeWebdataset DefaultCrudeJsonlDatasetFactory
    DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory EmptyDatasetError ImageClassificationSample
    ImageClassificationWebdataset ImageDecoderType ImageSample ImageWebdataset InterleavedSample
    InterleavedWebdataset JoinedWebdatasetFactory MultiChoiceVQASample MultiChoiceVQAWebdataset OCRSample
    OCRWebdataset PinMemoryMixin Sample SampleDecoder SavableDataset SimilarityInterleavedSample
    SimilarityInterleavedWebdataset StandardWebdatasetFactory TextSample TextWebdataset VQAOCRWebdataset VQASample
    VQAWebdataset VidQASample VidQAWebdataset WebdatasetMeta
.flavors.base_dataset: BaseCoreDatasetFactory ExtendableDataclassMixin PinMemoryMixin Sample SavableDataset State
    add_sample_restore_key legacy_handler set_sample_restore_key
.flavors.captioning: CaptioningSample CaptioningWebdataset
.flavors.crude: CrudeSample CrudeWebdataset
.flavors.image: ImageSample ImageWebdataset
.flavors.image_classification: ImageClassificationSample ImageClassificationWebdataset
.flavors.interleaved: InterleavedSample InterleavedWebdataset
.flavors.jsonl: CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory
.flavors.jsonl.crude_jsonl_dataset: CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory
.flavors.jsonl.ijsonl: IJSONL_SUFFIX
.flavors.jsonl.ijsonl_reader:
.flavors.jsonl.jsonl_prepare: JsonlPreparator
.flavors.multichoice_vqa: MultiChoiceVQASample MultiChoiceVQAWebdataset
.flavors.ocr: OCRSample OCRWebdataset
.flavors.similarity_interleaved: SimilarityInterleavedSample SimilarityInterleavedWebdataset
.flavors.text: TextSample TextWebdataset
.flavors.vid_qa: VidQASample VidQAWebdataset
.flavors.vqa: VQASample VQAWebdataset
.flavors.vqa_and_ocr: VQAOCRSample VQAOCRWebdataset
.flavors.webdataset: AVData AVDecoder AVDecoderType BaseWebdatasetFactory DefaultDecoderWebdatasetFactory
    DefaultGenericWebdatasetFactory EmptyDatasetError ImageDecoderType JoinedWebdatasetFactory SampleDecoder
    StandardWebdatasetFactory WebdatasetMeta MAIN_FOLDER_NAME VideoData
.flavors.webdataset.aggregator_pool:
.flavors.webdataset.base_webdataset: BaseWebdatasetFactory DEBUG_SHARD_PRINT
.flavors.webdataset.config: INDEX_BATCH_SIZE INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME INFO_JSON_FILENAME
    INFO_YAML_FILENAME JOIN_INDEX_FILENAME MAIN_FOLDER_NAME SPLIT_YAML_FILENAME skip_meta_re split_name_re
.flavors.webdataset.default_decoder_webdataset: DefaultDecoderWebdatasetFactory
.flavors.webdataset.default_generic_webdataset: DefaultGenericWebdatasetFactory
.flavors.webdataset.empty_dataset_error: EmptyDatasetError
.flavors.webdataset.field_access: FieldAccessError field_access split_field_access
.flavors.webdataset.indexing: DuplicateSampleKeyError
.flavors.webdataset.itar: ITAR_SUFFIX
.flavors.webdataset.itar_reader:
.flavors.webdataset.joined_webdataset: DEBUG_SHARD_PRINT JoinedWebdatasetFactory
.flavors.webdataset.metadata: EnergonDatasetType WebdatasetMeta check_dataset_info_present get_dataset_info
    get_dataset_type get_info_shard_files
.flavors.webdataset.prepare: WebdatasetPreparator
.flavors.webdataset.sample_decoder: AVDecoderType DEFAULT_DECODER GuessingHandlerWrapper ImageDecoderType
    SampleDecoder
.flavors.webdataset.sample_loader: SliceState
.flavors.webdataset.sharder:
.flavors.webdataset.standard_webdataset: StandardWebdatasetFactory
.flavors.webdataset.structs: DatasetSubset FilteredSample ShardInfo WebdatasetInfo WebdatasetSplits
.flavors.webdataset.tar_patcher:
.flavors.webdataset.thread_local_sqlite: main
.fork_hook:
.loader: get_loader get_savable_loader
.local_copy: LOCAL_COPY_TMP_DIR
.media: AVMetadata ImageMetadata MediaMetadataBase MediaMetadataType deserialize_media_metadata
    serialize_media_metadata
.media.extractor: MediaFilterConfig MediaFilterStrategy
.media.filesystem_prepare: prepare_filesystem_dataset
.media.metadata: AVMetadata ImageMetadata MediaMetadataBase MediaMetadataType deserialize_media_metadata
    serialize_media_metadata
.metadataset: DatasetLoader DatasetLoaderInterface Metadataset MetadatasetV2 load_dataset prepare_metadataset
    traverse_metadataset
.metadataset.dataset_loader: DatasetLoader
.metadataset.join_dataset_loader:
.metadataset.loader: load_dataset prepare_metadataset traverse_metadataset
.metadataset.loader_interface: DatasetBlendMode DatasetLoaderInterface LoadedDataset LoadedDatasetList
    TraversedDatasetReference
.metadataset.metadataset: Metadataset
.metadataset.metadataset_v2: MetadatasetV2 Subset url_regex
.module_loader: ModuleLoader
.retry_stream:
.rng: SystemRng SystemRngState WorkerRng
.sample_utils: default_get_batch_keys format_sample_compact format_sample_detailed
.savable: Savable
.savable_loader: BasicDataLoader SavableCheckpoint SavableDataLoader SavableDataLoaderState SavableDatasetCheckpoint
    SavableDatasetState
.source_info: SourceInfo add_source_info get_source_info
.state: FlexState
.task_encoder: AugmentTaskEncoder Batch Cooker DefaultTaskEncoder TaskEncoder basic_sample_keys batch_list
    batch_pad_stack batch_stack cooker generic_batch get_train_dataset get_val_dataset get_val_datasets stateless
.task_encoder.base: AugmentTaskEncoder Batch DefaultTaskEncoder FeatureBatcher TaskEncoder batch_list
    batch_pad_stack batch_stack generic_batch get_failure_tolerance get_stateless stateless
.task_encoder.cooking: Cooker basic_sample_keys cooker get_cooker_need_cache get_cooker_need_primary
.task_encoder.loader: get_train_dataset get_val_dataset get_val_datasets
.tools:
.tools.analyze_debug:
.tools.checkpoint:
.tools.info:
.tools.lint:
.tools.mount:
.tools.prepare:
.tools.prepare_media:
.tools.preview:
.transforms: CenterCropMapper CustomTransform MergeTransform RandomCropMapper RandomHorizontalFlipMapper
    RandomPerspectiveMapper RandomResizedCropMapper RandomRotationMapper RandomVerticalFlipMapper ResizeMapper
    TransformMapper
.transforms.common: Sampling
.transforms.custom: CustomTransform
.transforms.mappers: CenterCropMapper RandomCropMapper RandomHorizontalFlipMapper RandomPerspectiveMapper
    RandomResizedCropMapper RandomRotationMapper RandomVerticalFlipMapper ResizeMapper TransformMapper
.transforms.merge: MergeTransform
.typed_converter:
.watchdog: Watchdog
.worker: WorkerConfig
.wrappers: BatchDataset BlendDataset ConcatDataset EpochizeDataset FilterDataset GcDataset GroupBatchDataset
    IterMapDataset LimitDataset LogSampleDataset MapDataset MixBatchDataset PackingDataset RepeatDataset
    ShuffleBufferDataset SkipSample concat_pad generic_concat homogeneous_concat_mix
.wrappers.base: BaseWrapperDataset SampleIndex get_sample_restore_key
.wrappers.batch_dataset: BatchDataset
.wrappers.blend_dataset: BlendDataset
.wrappers.buffer: SavableSampleBuffer
.wrappers.concat_dataset: ConcatDataset
.wrappers.epochize_dataset: EpochizeDataset
.wrappers.filter_dataset: FilterDataset
.wrappers.gc_dataset: GC_DEFAULT_EVERY_N_ITER GcDataset GcFreezeError
.wrappers.group_batch_dataset: GroupBatchDataset
.wrappers.iter_map_dataset: IterMapDataset
.wrappers.limit_dataset: LimitDataset
.wrappers.log_sample_dataset: LogSampleDataset
.wrappers.map_dataset: MapDataset
.wrappers.mix_batch_dataset: MixBatchDataset concat_pad generic_concat homogeneous_concat_mix
.wrappers.packing_dataset: PackingDataset
.wrappers.repeat_dataset: RepeatDataset
.wrappers.shuffle_buffer_dataset: ShuffleBufferDataset
.wrappers.skip: SkipSample
.wrappers.watchdog_dataset: WatchdogDataset
"""
"""Each module below `megatron.energon` ("." is the root) and its public names."""

_HOMES = """
energon_dali.av: get_clips_uniform get_single_frames_uniform
energon_dali.cache.jsonl_file_store: JsonlFileStore
energon_dali.cache.webdataset_file_store: WebdatasetFileStore
energon_dali.compat.cli: main
energon_dali.compat.constants: AVDecoderType AVIndexMode AV_DECODE_AVAILABLE DEBUG_SHARD_PRINT FeatureBatcher
    GC_DEFAULT_EVERY_N_ITER GcFreezeError IJSONL_SUFFIX INDEX_BATCH_SIZE INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME
    INFO_JSON_FILENAME INFO_YAML_FILENAME ITAR_SUFFIX ImageDecoderType JOIN_INDEX_FILENAME LOCAL_COPY_TMP_DIR
    MAIN_FOLDER_NAME MISSING_DEPENDENCY MediaMetadataType SPLIT_YAML_FILENAME TTransform skip_meta_re split_name_re
    url_regex
energon_dali.compat.deprecation: deprecated warn_deprecated
energon_dali.compat.documents: DatasetLoader FieldAccessError ModuleLoader collapse deserialize_media_metadata
    field_access get_dataset_from_config load_config load_dataset load_yaml load_yaml_json split_field_access
energon_dali.compat.epath: DEFAULT_PROFILE_NAME EPath NVDATASET_CACHE_DIR
energon_dali.compat.errors: ErrorContext SYSTEM_EXCEPTIONS handle_restore_errors
energon_dali.compat.factories: BaseCoreDatasetFactory BaseWebdatasetFactory DEFAULT_DECODER
    DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory StandardWebdatasetFactory
energon_dali.compat.joined_factory: JoinedWebdatasetFactory
energon_dali.compat.loaders: BasicDataLoader SavableDataLoader get_loader get_savable_loader
energon_dali.compat.loading: get_train_dataset get_val_dataset get_val_datasets
energon_dali.compat.media: AVDecoder GuessingHandlerWrapper VideoData
energon_dali.compat.preparation: JsonlPreparator MediaFilterConfig MediaFilterStrategy WebdatasetPreparator
    prepare_filesystem_dataset
energon_dali.compat.rng: SystemRng SystemRngState WorkerRng
energon_dali.compat.samples: ExtendableDataclassMixin PinMemoryMixin add_sample_restore_key add_source_info
    default_get_batch_keys format_sample_compact format_sample_detailed get_sample_restore_key get_source_info
    legacy_handler set_sample_restore_key
energon_dali.compat.states: FlexState Savable SavableCheckpoint SavableDataLoaderState SavableDatasetCheckpoint
    SavableDatasetState SliceState State
energon_dali.compat.structs: DatasetSubset EnergonDatasetType FilteredSample ShardInfo
    WebdatasetInfo WebdatasetMeta WebdatasetSplits check_dataset_info_present get_dataset_info get_dataset_type
    get_info_shard_files
energon_dali.compat.transforms: CenterCropMapper CustomTransform MergeTransform RandomCropMapper
    RandomHorizontalFlipMapper RandomPerspectiveMapper RandomResizedCropMapper RandomRotationMapper
    RandomVerticalFlipMapper ResizeMapper Sampling TransformMapper
energon_dali.compat.typed_factories: CaptioningWebdataset CrudeJsonlDatasetFactory CrudeWebdataset
    DefaultCrudeJsonlDatasetFactory ImageClassificationWebdataset ImageWebdataset InterleavedWebdataset
    MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset TextWebdataset VQAOCRWebdataset
    VQAWebdataset VidQAWebdataset
energon_dali.compat.wrappers: BaseWrapperDataset SampleIndex SavableSampleBuffer WatchdogDataset
energon_dali.errors: FatalSampleError SampleException
energon_dali.loader.watchdog: Watchdog
energon_dali.metadataset.loader: LoadedDataset LoadedDatasetList
energon_dali.metadataset.reference: DatasetBlendMode TraversedDatasetReference
energon_dali.metadataset.reference: Subset
energon_dali.samples.media_metadata: AVMetadata ImageMetadata MediaMetadataBase=MediaMetadata
    serialize_media_metadata=write_media_metadata
energon_dali.shards.prepare.duplicate_keys: DuplicateSampleKeyError=DuplicateKeysError
energon_dali.task_encoder.cooking: get_cooker_need_cache get_cooker_need_primary
energon_dali.task_encoder.stateless: get_failure_tolerance=failure_tolerance get_stateless=is_stateless
"""
"""Each module of this package, and the names of Energon in it that are not public here; NAME=NAME renames one."""

_REASONS = {
    "builds or reads Energon's index files; `energon_dali.shards` and `prepare_dataset` do so here": (
        ".flavors.jsonl.ijsonl",
        ".flavors.jsonl.ijsonl_reader",
        ".flavors.webdataset.aggregator_pool",
        ".flavors.webdataset.indexing",
        ".flavors.webdataset.itar",
        ".flavors.webdataset.itar_reader",
        ".flavors.webdataset.prepare",
        ".flavors.webdataset.tar_patcher",
        ".flavors.webdataset.thread_local_sqlite",
        ".local_copy",
        ".metadataset.join_dataset_loader",
        ".retry_stream",
    ),
    "plans the order of samples inside Energon; here the order is `energon_dali.plan`": (
        ".flavors.webdataset.sample_loader",
        ".flavors.webdataset.sharder",
    ),
    "parses Energon's documents; `load_dataset` reads metadatasets here": (
        ".metadataset.loader",
        ".metadataset.metadataset",
        ".metadataset.metadataset_v2",
        ".typed_converter",
    ),
    "belongs to how Energon forks its workers; here they start in another way": (
        ".fork_hook",
        ".savable_loader",
        ".wrappers.gc_dataset",
    ),
    "is inside a command line tool; run `energon-dali`": (".cli.main", ".tools"),
    "is inside Energon's video reader; use AVDecoder": (".av.av_init", ".av.av_reader"),
    "reads rclone's configuration, which Energon deprecated; use msc:// paths": (".epathlib.rclone_config",),
    "is inside a wrapper, store or decoder of Energon, or is left from its development": (
        ".bracecollapse",
        ".cache.base",
        ".cache.file_cache_pool",
        ".flavors.webdataset.sample_decoder",
        ".media.extractor",
        ".watchdog",
        ".wrappers.group_batch_dataset",
    ),
}
"""Why names are missing, by what they do: the modules that they are in."""

_TYPE_VARIABLE = re.compile(r"[BFPTV](?:_[a-z_]+)?|TType|TMetadata")


def _parse(text: str) -> dict[str, list[str]]:
    """Returns the words after each "NAME:", which indented lines continue."""
    found: dict[str, list[str]] = {}
    words: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            name, _, line = line.partition(":")
            words = found.setdefault(name.strip(), [])
        words += line.split()
    return found


MODULES: Mapping[str, list[str]] = {"" if name == "." else name: words for name, words in _parse(_MODULES).items()}
"""Public names of each module of Energon, by its name below `megatron.energon`, such as ".flavors.webdataset"."""

PACKAGES = frozenset(name.rpartition(".")[0] for name in MODULES if name)
"""Those modules that have modules below them."""

_TARGETS = {
    theirs: f"{module}:{ours or theirs}"
    for module, words in _parse(_HOMES).items()
    for theirs, _, ours in (word.partition("=") for word in words)
}


def target_of(module: str, name: str) -> str | None:
    """Returns what a name of a module of Energon is here, as "module:name"; None if there is nothing like it.

    Names are found in every module, since programs also take them from modules that only import them.

    Args:
        module: Name of the module below `megatron.energon`.
        name: The name.
    """
    if name in _TARGETS:
        return _TARGETS[name]
    if name in energon_dali.__all__ and name != "__version__":
        return f"energon_dali:{name}"
    if name == "logger" or _TYPE_VARIABLE.fullmatch(name):
        return f"energon_dali.compat.type_variables:{name}"
    return None


def explain_missing(full: str, module: str, name: str) -> str:
    """Returns the message for a name that a module of Energon does not have here.

    Args:
        full: Full name of the module.
        module: Its name below `megatron.energon`.
        name: The name.
    """
    message = f"module {full!r} (of energon_dali.compat) has no attribute {name!r}"
    if name.startswith("_"):
        return f"{message}: private names of Energon do not exist here"
    for reason, modules in _REASONS.items():
        if any(module == known or module.startswith(f"{known}.") for known in modules):
            return f"{message}: in Energon it {reason}. See docs/from-energon.md"
    return message
