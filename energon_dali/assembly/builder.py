"""Puts datasets together for task encoders that override a build hook, such as `build_train_datasets`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from energon_dali.assembly.cook_stage import CookStage, cook, cook_stage, primary_store
from energon_dali.assembly.options import DatasetOptions
from energon_dali.assembly.pipeline import batch_stages, encode_stages
from energon_dali.cache import FileStore
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.blend import BlendDataset
from energon_dali.datasets.mixing.mixture_dataset import ConcatDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.datasets.wrappers.repeat import RepeatDataset
from energon_dali.datasets.wrappers.shuffle_buffer import ShuffleBufferDataset
from energon_dali.errors import ConfigError
from energon_dali.metadataset.loader import BLEND_MODES, LoadedDataset
from energon_dali.metadataset.reference import DatasetBlendMode, ResolvedBlend, SourceReference
from energon_dali.samples.base import CrudeSample
from energon_dali.task_encoder.context import builds_with
from energon_dali.worker_config import WorkerConfig

Dataset = SavableDataset[Any]


class SourceFactory:
    """One open dataset, as the build hooks of Energon take it.

    Args:
        source: Its samples, crude ones as they are, in one epoch.
        worker_config: The job.
    """

    def __init__(self, source: Source, worker_config: WorkerConfig) -> None:
        self._source = source
        self._worker_config = worker_config
        self.__sample_type__ = source.load.sample_type
        self.subflavors: dict[str, Any] = dict(source.load.subflavors)
        self.name = source.name

    def build(self, worker_rotation_offset: int = 0) -> Dataset:
        """Returns the dataset of loaded samples.

        Args:
            worker_rotation_offset: Has no effect: remainders are spread over the datasets of a tree in any case.
        """
        return SourceDataset(self._source.plan, [self._source], worker_config=self._worker_config)

    def as_file_store(self) -> FileStore[Any]:
        """Returns the parts of its samples as a store of files.

        Raises:
            ConfigError: It has no such store, as a join.
        """
        store = primary_store(self._source)
        if store is None:
            raise ConfigError(f"{self.name} is read from several datasets, so it is not one store of files.")
        return store

    def __len__(self) -> int:
        return self._source.num_samples

    def config(self) -> dict[str, Any]:
        """Returns what the source does, as plain values."""
        return self.build().config()


class Builder:
    """Puts the sources of one call together by the build hooks of its task encoder; see `DatasetBuilder`.

    Args:
        blend: The references of the sources, with their weights.
        sources: In the same order; they do not repeat.
        options: Options of the call.
    """

    def __init__(self, blend: ResolvedBlend, sources: Sequence[Source], options: DatasetOptions) -> None:
        numbers = [source.config.get("leaf", 0) for source in sources]
        self._references: dict[int, SourceReference] = dict(zip(numbers, blend.sources, strict=True))
        self._options = options
        self._mode = BLEND_MODES[blend.mode]
        self._loaded = [
            LoadedDataset(
                SourceFactory(source, options.worker_config),
                reference.weight,
                reference.repetitions,
                reference.aux or None,
            )
            for source, reference in zip(sources, blend.sources, strict=True)
        ]

    def build(self) -> Dataset:
        """Returns the dataset that the task encoder's hooks make.

        Raises:
            ConfigError: A hook returned something else.
        """
        options, encoder = self._options, self._options.encoder
        given: dict[str, Any] = {
            "datasets": list(self._loaded),
            "worker_config": options.worker_config,
            "batch_size": options.batch_size,
            "batch_drop_last": options.batch_drop_last,
            "packing_buffer_size": options.packing_buffer_size,
        }
        with builds_with(self):
            if options.training:
                name = "build_train_datasets"
                made = encoder.build_train_datasets(
                    **given,
                    virtual_epoch_length=options.virtual_epoch_length,
                    shuffle_buffer_size=options.shuffle_buffer_size,
                    blend_mode=self._mode,
                    repeat=options.repeat,
                )
            else:
                name = "build_val_datasets"
                made = encoder.build_val_datasets(**given, limit=options.limit)
        if not isinstance(made, SavableDataset):
            raise ConfigError(
                f"{type(encoder).__name__}.{name} returned {made!r}, which is not a dataset. Return the result of the "
                "last of its stages, such as self.build_batch(...)."
            )
        return made

    # --- the hooks as TaskEncoder has them -------------------------------------------------------------------------

    def load(self, dataset: LoadedDataset) -> Dataset:
        """Returns the loaded samples of one dataset, cooked if they are crude."""
        built: Dataset = dataset.dataset.build()
        return self._options.encoder.build_cook_crude_sample(built, worker_config=self._options.worker_config)  # type: ignore[no-any-return]

    def cook(self, dataset: Dataset) -> Dataset:
        """Returns a dataset whose crude sources are cooked, each by the cooker of its subflavors and its own stores."""
        if isinstance(dataset, SourceDataset):
            return cook(dataset, [self._cook_stage(source) for source in dataset.sources], self._options)
        children = [self.cook(child) for child in dataset.children]
        if all(one is other for one, other in zip(children, dataset.children, strict=True)):
            return dataset
        return dataset.with_children(*children)

    def _cook_stage(self, source: Source) -> CookStage | None:
        if source.load.sample_type is not CrudeSample:
            return None
        return cook_stage(source, self._options, self._references[source.config.get("leaf", 0)].aux)

    def encode(self, dataset: Dataset) -> Dataset:
        """Returns a dataset of encoded samples."""
        return encode_stages(dataset, self._options)

    def batch(
        self,
        dataset: Dataset,
        *,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> Dataset:
        """Returns a dataset of batches.

        Raises:
            ConfigError: It packs where the call of `get_train_dataset` does not, or the other way round.
        """
        if (packing_buffer_size is None) != (self._options.packing_buffer_size is None):
            raise ConfigError(
                f"build_batch was given packing_buffer_size={packing_buffer_size}, and the dataset is opened with "
                f"packing_buffer_size={self._options.packing_buffer_size}, on which the stages before depend. Give "
                "get_train_dataset a packing_buffer_size, or leave it out in both."
            )
        options = replace(
            self._options,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
        )
        return batch_stages(dataset, options)

    def train(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: DatasetBlendMode = DatasetBlendMode.NONE,
        repeat: bool = True,
        **stages: Any,
    ) -> Dataset:
        """Returns the mixture of training datasets, through the encoder's own stages.

        Raises:
            ConfigError: There is no dataset, or datasets that are blended by weight do not repeat.
        """
        by_weight = blend_mode is DatasetBlendMode.DATASET_WEIGHT
        if not datasets or (by_weight and not repeat):
            what = "no dataset" if not datasets else "repeat=False for datasets that are blended by weight"
            raise ConfigError(f"build_train_datasets was given {what}. Give datasets, which repeat, or repetitions.")
        parts: list[tuple[Dataset, float]] = []
        for one in datasets:
            loaded, times = self.load(one), 1 if one.repetitions is None else one.repetitions
            if by_weight:
                parts.append((RepeatDataset(loaded), 1.0 if one.weight is None else one.weight))
            else:
                parts.append((loaded if times == 1 else RepeatDataset(loaded, repeats=times), len(one.dataset) * times))
        tree: Dataset = BlendDataset(*parts) if len(parts) > 1 else parts[0][0]
        if repeat and not by_weight:
            tree = RepeatDataset(tree)
        if shuffle_buffer_size is not None and shuffle_buffer_size > 1:
            tree = ShuffleBufferDataset(tree, shuffle_buffer_size)
        tree = self._through_stages(tree, **stages)
        return EpochizeDataset(tree, virtual_epoch_length) if virtual_epoch_length > 0 else tree

    def validate(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        limit: int | None = None,
        **stages: Any,
    ) -> Dataset:
        """Returns the validation datasets one after the other, through the encoder's own stages.

        Raises:
            ConfigError: There is no dataset.
        """
        if not datasets:
            raise ConfigError("build_val_datasets was given no dataset. Give those that the hook received, or some.")
        parts = [self.load(one) for one in datasets]
        tree: Dataset = ConcatDataset(*parts) if len(parts) > 1 else parts[0]
        tree = self._through_stages(tree, **stages)
        return LimitDataset(tree, limit) if limit else tree  # as in Energon, 0 is no limit

    def _through_stages(
        self,
        tree: Dataset,
        *,
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
    ) -> Dataset:
        encoder = self._options.encoder
        encoded = encoder.build_encode_sample(tree, worker_config=worker_config)
        return encoder.build_batch(  # type: ignore[no-any-return]
            encoded,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
