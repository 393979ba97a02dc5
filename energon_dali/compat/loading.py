"""Opens datasets and makes loaders as Energon's functions do.

Datasets come with factories next to them, and with decoders replaced on request. Loaders are torch `DataLoader`s by
their class: programs ask `isinstance(loader, DataLoader)`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from energon_dali.assembly import builder, datasets
from energon_dali.assembly.options import (
    AnyEncoder,
    check_same_decoder,
    described_decoder,
    keeps_decoder,
    take_decoder_options,
)
from energon_dali.compat import chosen_decoder, trusts_datasets
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import BaseCoreDatasetFactory
from energon_dali.compat.media import with_energons_clips
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.decode import DaliDecoder, Decoder, SampleDecoder
from energon_dali.decode.media_decoder import options_of
from energon_dali.loader import basic_loader, savable_loader
from energon_dali.loader.get_loader import kind_of_loader
from energon_dali.loader.sharing import follower, reader
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.task_encoder.encoder import TaskEncoder
from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")

_DEFAULT_WITH_CLIPS = with_energons_clips(TaskEncoder.decoder)
"""What takes the place of the decoder of encoders that set none."""


class BasicDataLoader(basic_loader.BasicDataLoader[T], DataLoader[T]):  # type: ignore[misc, override]  # read-only
    """A loader without saved state. Nothing of `DataLoader` runs: iteration and attributes are those of the loader."""

    _is_accelerate_prepared = True  # Accelerate would make another loader of the dataset, without a position


class SavableDataLoader(savable_loader.SavableDataLoader[T], DataLoader[T]):  # type: ignore[misc, override]
    """A loader whose position can be saved. Nothing of `DataLoader` runs, as in `BasicDataLoader`."""

    _is_accelerate_prepared = True


class ReaderLoader(reader.ReaderLoader[T], DataLoader[T]):  # type: ignore[misc, override]
    """A loader that also gives its batches to the ranks that follow this one."""

    _is_accelerate_prepared = True


class FollowerLoader(follower.FollowerLoader[T], DataLoader[T]):  # type: ignore[misc, override]
    """A loader whose batches another rank of the node reads."""

    _is_accelerate_prepared = True


class RelayLoader(follower.RelayLoader[T], DataLoader[T]):  # type: ignore[misc, override]
    """A loader that takes the batches of a rank on another node, and gives them to the ranks of its own."""

    _is_accelerate_prepared = True


_SHARING: dict[Any, Any] = {
    reader.ReaderLoader: ReaderLoader,
    follower.FollowerLoader: FollowerLoader,
    follower.RelayLoader: RelayLoader,
}


def get_loader(dataset: SavableDataset[T], **options: Any) -> BasicDataLoader[T]:
    """Returns a loader without state saving.

    Args:
        dataset: What get_train_dataset or get_val_dataset returned.
        **options: As in `energon_dali.get_loader`.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """
    kind: Any = _SHARING.get(kind_of_loader(dataset), BasicDataLoader)
    return kind(dataset, **options)  # type: ignore[no-any-return]


def get_savable_loader(dataset: SavableDataset[T], **options: Any) -> SavableDataLoader[T]:
    """Returns a loader whose state can be saved.

    Args:
        dataset: What get_train_dataset or get_val_dataset returned.
        **options: As in `energon_dali.get_savable_loader`.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """
    kind: Any = _SHARING.get(kind_of_loader(dataset), SavableDataLoader)
    return kind(dataset, **options)  # type: ignore[no-any-return]


logger = logging.getLogger("energon_dali.compat")
_logged: set[str] = set()


def get_train_dataset(path: Any, **options: Any) -> SavableDataset[Any]:
    """Returns what `energon_dali.get_train_dataset` returns, with the decoder that was chosen for the program.

    Args:
        path: Path, URL or metadataset.
        **options: As there.
    """
    return datasets.get_train_dataset(path, **_options(options))


def get_val_dataset(path: Any, **options: Any) -> SavableDataset[Any]:
    """Returns what `energon_dali.get_val_dataset` returns, with the decoder that was chosen for the program.

    Args:
        path: Path, URL or metadataset.
        **options: As there.
    """
    return datasets.get_val_dataset(path, **_options(options))


def get_val_datasets(path: Any, **options: Any) -> list[tuple[SavableDataset[Any], BaseCoreDatasetFactory[Any]]]:
    """Returns (dataset, factory) of each validation dataset of a path.

    Args:
        path: Path, URL or metadataset.
        **options: As in `energon_dali.get_val_datasets`.
    """
    found = datasets.get_val_datasets(path, **_options(options))
    return [(dataset, SourceFactory(source, dataset.worker_config)) for dataset, source in found]


class SourceFactory(builder.SourceFactory, BaseCoreDatasetFactory[Any]):
    """The factory that `get_val_datasets` returns next to a dataset.

    Args:
        source: The source of the dataset.
        worker_config: The job.
    """

    def __init__(self, source: Source, worker_config: WorkerConfig) -> None:
        super().__init__(source, worker_config)
        self.path = EPath(source.name)
        self.paths = [self.path]
        self.name = self.path.display_name


def _options(options: dict[str, Any]) -> dict[str, Any]:
    options = dict(options)
    if trusts_datasets():
        options.setdefault("allow_imports", True)
        options.setdefault("allow_code", True)
    encoder = options.get("task_encoder")
    if encoder is None or isinstance(encoder, TaskEncoder):
        encoder = DefaultTaskEncoder() if encoder is None else encoder
        old = take_decoder_options(options, stacklevel=4)
        if old:
            _set_old_decoder(encoder, old)
        swapped = swap_decoder(encoder.decoder) if chosen_decoder() == "dali" else encoder.decoder
        if swapped is not encoder.decoder:
            encoder = copy.copy(encoder)
            encoder.decoder = swapped
        with_clips = _DEFAULT_WITH_CLIPS if swapped is TaskEncoder.decoder else with_energons_clips(swapped)
        if with_clips is not swapped:
            encoder.decoder = with_clips  # not on a copy: the program may read what its hooks note on the encoder
        options["task_encoder"] = encoder
    return options


def _set_old_decoder(encoder: AnyEncoder, old: Mapping[str, Any]) -> None:
    """Sets the decoder that deprecated options describe on the program's encoder, where later calls find it.

    Args:
        encoder: The encoder.
        old: The deprecated options.

    Raises:
        ConfigError: The encoder has another one of its own.
    """
    if keeps_decoder(old):
        return
    own, described = encoder.decoder, described_decoder(old)
    # Energon's order: auto_decode=False replaces any decoder, and the other options only the default.
    if described is None or own is TaskEncoder.decoder or own is _DEFAULT_WITH_CLIPS:
        encoder.decoder = described
    else:
        check_same_decoder(encoder, old, with_energons_clips(own), with_energons_clips(described))


def swap_decoder(decoder: Decoder | None) -> Decoder | None:
    """Returns a DaliDecoder with the options of a SampleDecoder; other decoders, and those of PIL images, unchanged.

    Args:
        decoder: The decoder of a task encoder.
    """
    if type(decoder) is not SampleDecoder:
        if isinstance(decoder, SampleDecoder):
            _say(f"{type(decoder).__name__} derives from SampleDecoder and stays, so that its methods run.")
        return decoder
    name = decoder.spec.image_decode
    if not name.startswith("torch"):
        kind = "PIL images" if name.startswith("pil") else "arrays"
        _say(f"SampleDecoder(image_decode={name!r}) stays: its results are {kind}, and DaliDecoder's are tensors.")
        return decoder
    return DaliDecoder(**options_of(decoder))


def _say(message: str) -> None:
    if message not in _logged:
        _logged.add(message)
        logger.warning("The decoder is not replaced by DALI: %s", message)
