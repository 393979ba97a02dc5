"""Opens the sources of a path, and mixes the datasets of a metadataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_dali.build.cook_stage import cook
from energon_dali.build.identities import Identities
from energon_dali.build.options import DatasetOptions, check_path
from energon_dali.build.pipeline import block_size
from energon_dali.build.source import located, open_source, read_ahead
from energon_dali.cache import open_store
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.blend import BlendSourceDataset
from energon_dali.datasets.mixing.concat import ConcatSourceDataset
from energon_dali.datasets.mixing.epochized_blend import EpochizedBlendDataset
from energon_dali.datasets.native_source import NativeSourceDataset
from energon_dali.datasets.source import SourceDataset
from energon_dali.decode import DaliDecoder
from energon_dali.errors import ConfigError
from energon_dali.metadataset.document import YAML_SUFFIXES
from energon_dali.metadataset.files import files_of_source, files_of_stores
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.metadataset.resolve import resolve
from energon_dali.samples import CrudeSample
from energon_dali.shards.documents.opening import Opening, opening_files


def open_sources(
    path: object, options: DatasetOptions
) -> tuple[ResolvedBlend, list[tuple[SavableDataset[Any], SourceDataset]]]:
    """Returns (the references of a path's datasets, for each (dataset of loaded samples, its source)).

    A dataset of loaded samples is the source itself, a cook stage for crude samples, or a source that DALI reads.

    Args:
        path: The path that the user gave.
        options: Options of the call.

    Raises:
        ConfigError: It is not a path, has no such split, or an option is invalid for it.
        DatasetError: A dataset cannot be read. For a metadataset the message names file, line and key.
        UntrustedCodeError: A dataset brings code that the user did not allow.
        StorageError: A file cannot be read.
    """
    with opening_files() as opening:
        return _open_sources(_resolve(path, options), options, opening)


def open_plain_sources(path: object, options: DatasetOptions) -> tuple[ResolvedBlend, list[SourceDataset]]:
    """Returns (the references of a path's datasets, their sources), for a task encoder that puts them together itself.

    The sources do not repeat, and shuffle over no window: the task encoder adds both. Crude samples are not cooked.

    Args:
        path: The path that the user gave.
        options: Options of the call.

    Raises:
        ConfigError: It is not a path, has no such split, or an option is invalid for it.
        DatasetError: A dataset cannot be read. For a metadataset the message names file, line and key.
        UntrustedCodeError: A dataset brings code that the user did not allow.
        StorageError: A file cannot be read.
    """
    with opening_files() as opening:
        blend = _resolve(path, options)
        return blend, _sources(blend, replace(options, shuffle_buffer_size=None), opening, repeat=False)


def _open_sources(
    blend: ResolvedBlend, options: DatasetOptions, opening: Opening
) -> tuple[ResolvedBlend, list[tuple[SavableDataset[Any], SourceDataset]]]:
    if len(blend.sources) > 1:
        mixed: str | None = "one of several datasets"
    else:
        mixed = "repeated by blend_epochized" if blend.is_epochized else None
    repeat = options.training and options.repeat and not blend.is_epochized
    sources = _sources(blend, options, opening, repeat)
    datasets = []
    for reference, source in zip(blend.sources, sources, strict=True):
        with located(reference):
            datasets.append(_loaded(source, reference, options, mixed))
    return blend, list(zip(datasets, sources, strict=True))


def _sources(blend: ResolvedBlend, options: DatasetOptions, opening: Opening, repeat: bool) -> list[SourceDataset]:
    trust = options.source.trust_dataset_code
    opening.ahead(file for source in blend.sources for file in files_of_source(source, trust_dataset_code=trust))
    opening.ahead(file for source in blend.sources for file in files_of_stores(source))
    files = [read_ahead(reference, options, opening) for reference in blend.sources]
    identities = Identities()
    return [
        open_source(reference, number, options, repeat, read, identities)
        for number, (reference, read) in enumerate(zip(blend.sources, files, strict=True))
    ]


def _resolve(path: object, options: DatasetOptions) -> ResolvedBlend:
    """Returns the references of the datasets that a path names."""
    checked = check_path(path)
    blend = resolve(
        checked,
        options.split_part,
        subflavors=options.source.subflavors,
        shuffle_over_epochs_multiplier=options.shuffle_over_epochs_multiplier,
        subset=options.source.subset,
    )
    files = {"dataset_config": options.source.dataset_config, "split_config": options.source.split_config}
    given = {name: value for name, value in files.items() if value is not None}
    if not given:
        return blend
    if isinstance(checked, Mapping) or checked.endswith(YAML_SUFFIXES):
        raise ConfigError(
            f"{', '.join(given)} was given for a metadataset, whose file has it at each of its datasets. Write it into "
            "the file."
        )
    return replace(blend, sources=tuple(replace(source, **given) for source in blend.sources))  # type: ignore[arg-type]


def _loaded(
    source: SourceDataset, reference: SourceReference, options: DatasetOptions, mixed: str | None
) -> SavableDataset[Any]:
    """Returns a dataset of loaded samples.

    Args:
        source: Yields samples, or crude samples.
        reference: The dataset that it reads.
        options: Options of the call.
        mixed: How a mixture uses the dataset, in words; None if there is no mixture.

    Raises:
        ConfigError: feed="native" cannot read the dataset, or it has auxiliary stores and no cookers.
    """
    load, decoder = source.load, options.encoder.decoder
    crude = load.sample_type is CrudeSample
    if isinstance(decoder, DaliDecoder) and decoder.feed == "native" and decoder.placement == "rank":
        if crude or mixed:
            what = "a crude dataset, whose cookers see media before they are decoded" if crude else mixed
            raise ConfigError(
                f'{source.name} is {what}; feed="native" reads one dataset and yields decoded media. Use feed="block".'
            )
        return NativeSourceDataset(source, decoder, batch_size=block_size(options.batch_size))
    if not crude and reference.aux:
        raise ConfigError(
            f"{source.name} has the auxiliary stores {', '.join(reference.aux)}, which cookers read from, and its "
            "samples are not crude. Make it a CrudeWebdataset in dataset.yaml, or leave aux out."
        )
    if not crude:
        return source
    stores = {name: open_store(store.form) for name, store in reference.aux.items()}
    return cook(source, options, load.subflavors, stores)


def blend_sources(
    blend: ResolvedBlend, datasets: Sequence[SavableDataset[Any]], *, repeat: bool
) -> SavableDataset[Any]:
    """Returns the mixture for training: draws from the datasets by weight, or epoch by epoch.

    Args:
        blend: Weights or repetitions of the datasets.
        datasets: The datasets, in the same order.
        repeat: Start again after each epoch.

    Raises:
        ConfigError: `repeat` is False, and datasets are blended by weight, which has no epochs.
    """
    if blend.mode == "weights" and not repeat:
        raise ConfigError(
            "repeat=False asks for epochs, but datasets that are blended by weight repeat indefinitely, each at its "
            "own pace. Leave it out, or use blend_epochized in the metadataset."
        )
    if len(datasets) == 1 and not blend.is_epochized:
        return datasets[0]
    if blend.mode == "weights":
        return BlendSourceDataset(datasets, [source.weight or 0.0 for source in blend.sources])
    return EpochizedBlendDataset(datasets, [source.repetitions or 0.0 for source in blend.sources], repeat=repeat)


def chain_sources(datasets: Sequence[SavableDataset[Any]]) -> SavableDataset[Any]:
    """Returns the mixture for validation: the datasets one after the other."""
    return datasets[0] if len(datasets) == 1 else ConcatSourceDataset(datasets)
