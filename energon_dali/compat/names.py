"""The modules of Energon 7.4.1, their public names, and what each name is in this package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import energon_dali

_HOMES = """
energon_dali.av: get_clips_uniform get_single_frames_uniform
energon_dali.cache.dataset_stores: JsonlFileStore WebdatasetFileStore
energon_dali.compat.cli: main
energon_dali.compat.constants: AVDecoderType AVIndexMode AV_DECODE_AVAILABLE DEBUG_SHARD_PRINT FeatureBatcher
    GC_DEFAULT_EVERY_N_ITER GcFreezeError IJSONL_SUFFIX INDEX_BATCH_SIZE INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME
    INFO_JSON_FILENAME INFO_YAML_FILENAME ITAR_SUFFIX ImageDecoderType JOIN_INDEX_FILENAME LOCAL_COPY_TMP_DIR
    MAIN_FOLDER_NAME MISSING_DEPENDENCY MediaMetadataType SPLIT_YAML_FILENAME TTransform deprecated skip_meta_re
    split_name_re url_regex warn_deprecated
energon_dali.compat.documents: DatasetLoader FieldAccessError ModuleLoader collapse deserialize_media_metadata
    field_access get_dataset_from_config load_config load_dataset load_yaml load_yaml_json split_field_access
energon_dali.compat.epath: DEFAULT_PROFILE_NAME EPath NVDATASET_CACHE_DIR
energon_dali.compat.factories: BaseCoreDatasetFactory BaseWebdatasetFactory DEFAULT_DECODER
    DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory StandardWebdatasetFactory
energon_dali.compat.iterated: SavableDataset
energon_dali.compat.loading: BasicDataLoader SavableDataLoader get_loader get_savable_loader get_train_dataset
    get_val_dataset get_val_datasets
energon_dali.compat.media: AVDecoder GuessingHandlerWrapper VideoData
energon_dali.compat.other_factories: CaptioningWebdataset CrudeJsonlDatasetFactory CrudeWebdataset
    DefaultCrudeJsonlDatasetFactory ImageClassificationWebdataset ImageWebdataset InterleavedWebdataset
    JoinedWebdatasetFactory MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset TextWebdataset
    VQAOCRWebdataset VQAWebdataset VidQAWebdataset
energon_dali.compat.preparation: JsonlPreparator MediaFilterConfig MediaFilterStrategy WebdatasetPreparator
    prepare_filesystem_dataset
energon_dali.compat.samples: ErrorContext ExtendableDataclassMixin PinMemoryMixin SYSTEM_EXCEPTIONS
    add_sample_restore_key add_source_info default_get_batch_keys format_sample_compact format_sample_detailed
    get_sample_restore_key get_source_info handle_restore_errors legacy_handler set_sample_restore_key
energon_dali.compat.states: FlexState Savable SavableCheckpoint SavableDataLoaderState SavableDatasetCheckpoint
    SavableDatasetState SliceState State SystemRng SystemRngState WorkerRng
energon_dali.compat.structs: DatasetSubset EnergonDatasetType FilteredSample ShardInfo WebdatasetInfo WebdatasetMeta
    WebdatasetSplits check_dataset_info_present get_dataset_info get_dataset_type get_info_shard_files
energon_dali.compat.transforms: CenterCropMapper CustomTransform MergeTransform RandomCropMapper
    RandomHorizontalFlipMapper RandomPerspectiveMapper RandomResizedCropMapper RandomRotationMapper
    RandomVerticalFlipMapper ResizeMapper Sampling TransformMapper
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

TYPE_VARIABLE = re.compile(r"[BFPTV](?:_[a-z_]+)?|TType|TMetadata")
"""Names that are type variables in Energon's modules."""


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


MODULES: Mapping[str, list[str]] = {
    "" if name == "." else name: words
    for name, words in _parse(Path(__file__).with_name("energon_modules.txt").read_text(encoding="ascii")).items()
}
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
    if name == "logger" or TYPE_VARIABLE.fullmatch(name):
        return f"energon_dali.compat.constants:{name}"
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
