"""Runs the user's task encoder on one sample, and on the first batch, as a loader would."""

from __future__ import annotations

import copy
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from energon_dali.assembly.datasets import get_train_dataset
from energon_dali.assembly.mixture import LoadedSource, dataset_of, open_sources
from energon_dali.assembly.options import DatasetOptions
from energon_dali.assembly.pipeline import build_stages
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import MIXTURE_NAME, NAME
from energon_dali.decode import Normalize
from energon_dali.errors import ConfigError, DatasetError, EnergonDaliError
from energon_dali.loader.get_loader import get_savable_loader
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.plan.slices import Slices
from energon_dali.shards.index.tar_index import read_tar_index
from energon_dali.task_encoder.encoder import TaskEncoder, overridden
from energon_dali.view.catalog import ViewOptions
from energon_dali.view.encoded_fields import FieldDescriber, ShownField
from energon_dali.view.pixels import Normalisation, ShownImage
from energon_dali.worker_config import WorkerConfig

MAX_ELEMENTS = 8
"""Encoded samples that are shown of one sample, if hooks make several of it."""
_TOKENIZERS = ("tokenizer", "text_tokenizer", "processor.tokenizer", "processor", "tok")


@dataclass(slots=True)
class EncodedElement:
    """One encoded sample or batch."""

    type_name: str
    """Name of its class."""
    keys: list[str]
    """Keys of its samples."""
    fields: list[ShownField]
    """Its fields, without those that every sample has."""
    places: list[list[tuple[int, int]]] = field(default_factory=list)
    """(number of the dataset, index) of the samples that each row of a batch is made of; of a sample, one such row."""


@dataclass(slots=True)
class EncodedView:
    """What came of encoding one sample or batch."""

    name: str = ""
    """Its name in addresses."""
    elements: list[EncodedElement] = field(default_factory=list)
    """What the encoder made; several for a sample if a hook is a generator, none if it was skipped or failed."""
    error: str = ""
    """What went wrong, in one line; "" if nothing did."""
    trace: str = ""
    """The traceback."""
    note: str = ""
    """What the user should know about it; "" if nothing."""

    @property
    def images(self) -> list[ShownImage]:
        """The images of all fields, in their order."""
        return [image for element in self.elements for field in element.fields for image in field.images]


def load_encoder(name: str) -> TaskEncoder[Any, Any, Any, Any]:
    """Returns the task encoder of `MODULE:CLASS`. This runs code, which the user named.

    Args:
        name: Module and class, or a function or instance in its place; modules of the current folder are found.

    Raises:
        ConfigError: It is not `MODULE:CLASS`, or does not name a task encoder that can be made without arguments.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"--encoder {name} is invalid: write MODULE:CLASS, such as my_project.encoders:Captions.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = pkgutil.resolve_name(name)
        made = found() if callable(found) and not isinstance(found, TaskEncoder) else found
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"--encoder {name} cannot be used: {type(error).__name__}: {error}") from error
    if not isinstance(made, TaskEncoder):
        raise ConfigError(
            f"--encoder {name} is a {type(made).__name__}, and not a TaskEncoder. Name a class derived from "
            "TaskEncoder or DefaultTaskEncoder that takes no arguments, or a function that returns an instance."
        )
    return made


class EncoderSession:
    """A task encoder and a dataset. Not thread-safe.

    Args:
        options: What is encoded, and how.

    Raises:
        ConfigError: The encoder cannot be used.
    """

    def __init__(self, options: ViewOptions) -> None:
        self.options = options
        self.encoder = load_encoder(options.encoder)
        self._describer = FieldDescriber(find_token_text(self.encoder), find_normalisation(self.encoder))
        self._trees: dict[tuple[str, str], tuple[LoadedSource, int | None]] = {}
        self._errors: list[BaseException] = []

    def sample(self, path: str, index: int, split_part: str = "train") -> EncodedView:
        """Returns what the encoder makes of one sample, before samples are packed and batched.

        Args:
            path: Path of the dataset: that of the options, or one that the metadataset names.
            index: Index of the sample in the whole dataset.
            split_part: Part of the split of the options' path that reads the dataset.
        """
        view = EncodedView()
        with self._failures(view):
            loaded, column = self._loaded(path, split_part)
            source = loaded.source
            if column is not None:
                assert isinstance(source.reader, JoinedReader), "it has columns"
                row = find_row(source.reader, column, index)
                if row is None:
                    view.note = f"The join of {split_part!r} does not use this sample."
                    return view
                index = row
            shard, inside = source.reader.locate(index)
            one = Slices(np.array([shard]), np.array([inside]), np.array([inside + 1]))
            plan = replace(source.plan, base=one, shuffle=False, repeat=False, num_streams=1, range_offset=0)
            options = self._options(split_part)
            self._take(build_stages(dataset_of(plan, [loaded], options), options), view, MAX_ELEMENTS)
            if not view.elements and not self._errors:
                view.note = "The encoder skips this sample."
        return view

    def batch(self) -> EncodedView:
        """Returns the first batch of training, in the order of a job with one stream."""
        view, options = EncodedView(), self.options
        packs = overridden(self.encoder, "select_samples_to_pack")
        if packs and options.packing_buffer_size is None:
            view.note = "This encoder packs samples. Give --packing-buffer-size to see its packs."
        with self._failures(view):
            dataset = get_train_dataset(
                options.path,
                split_part=options.split_part,
                worker_config=self._config(),
                batch_size=options.batch_size,
                packing_buffer_size=options.packing_buffer_size,
                task_encoder=self.encoder,
                **self._source_options(),
            )
            self._take(dataset, view, 1)
            if not view.elements and not self._errors:
                view.note = "The encoder makes no batch of this dataset."
        return view

    def _config(self) -> WorkerConfig:
        def note(error: Exception, *_: Any) -> None:
            self._errors.append(error)

        return WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1, global_error_handler=note)

    def _source_options(self) -> dict[str, Any]:
        names = ("dataset_config", "split_config", "allow_imports", "allow_code")
        return {name: value for name in names if (value := getattr(self.options, name))}

    def _options(self, split_part: str) -> DatasetOptions:
        """Returns the options for single samples."""
        return DatasetOptions.of_call(
            _unbatched(self.encoder), self._config(), self._source_options(), split_part=split_part, training=False
        )

    def _loaded(self, path: str, split_part: str) -> tuple[LoadedSource, int | None]:
        """Returns (a dataset of the options' path, which of the joined datasets it is; None without a join)."""
        if (path, split_part) not in self._trees:
            _, opened = open_sources(self.options.path, self._options(split_part))
            for loaded in opened:
                source = loaded.source
                if isinstance(source.reader, JoinedReader):
                    for column, reader in enumerate(source.reader.readers):
                        self._trees.setdefault((reader.folder.path, split_part), (loaded, column))
                else:
                    self._trees.setdefault((source.name, split_part), (loaded, None))
        if (path, split_part) not in self._trees:
            known = sorted(name for name, part in self._trees if part == split_part)
            raise DatasetError(f"The split part {split_part!r} does not read {path}, only {', '.join(known)}.")
        return self._trees[path, split_part]

    def _take(self, dataset: SavableDataset[Any], view: EncodedView, most: int) -> None:
        with get_savable_loader(dataset, watchdog_timeout_seconds=None) as loader:
            for element in loader:
                view.elements.append(self._element(element))
                if len(view.elements) == most:
                    break

    def _element(self, element: Any) -> EncodedElement:
        keys = (element.get("__key__") if isinstance(element, dict) else getattr(element, "__key__", None)) or []
        shown = [one for one in self._describer.describe(element) if not one.name.startswith("__")]
        texts = [str(key) for key in keys] if isinstance(keys, (list, tuple)) else [str(keys)]
        is_dict = isinstance(element, dict)
        key = element.get("__restore_key__") if is_dict else getattr(element, "__restore_key__", None)
        return EncodedElement(type(element).__name__, texts[:64], shown, find_places(key))

    @contextmanager
    def _failures(self, view: EncodedView) -> Iterator[None]:
        """Notes in a view what goes wrong inside."""
        self._errors.clear()
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._errors.append(error)
        if self._errors:
            # A fatal error is chained to the one that the encoder raised.
            first = self._errors[0]
            view.error = f"{type(first).__name__}: {first}"
            is_ours = isinstance(first, EnergonDaliError) and first.__cause__ is None
            view.trace = "" if is_ours else "".join(traceback.format_exception(first))
            if view.elements:
                view.note = f"{len(self._errors):,} samples failed before it; the first of them is shown."


def find_places(restore_key: Any) -> list[list[tuple[int, int]]]:
    """Returns, for each row of a batch or for one sample, (number of the dataset, index) of what it is made of.

    Args:
        restore_key: Key by which a loader restores it; anything else has no places.
    """
    if not isinstance(restore_key, tuple):
        return []
    rows = [one for one in restore_key if isinstance(one, tuple)]
    is_batch = bool(rows) and restore_key[0] == "BatchDataset"
    found = [list(_places(row)) for row in (rows if is_batch else [restore_key])]
    return found if all(found) else []


def _places(key: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    source = 0
    for one, following in zip(key, [*key[1:], None], strict=False):
        if isinstance(one, tuple):
            yield from _places(one)
        elif one == MIXTURE_NAME and isinstance(following, int):
            source = following
        elif one == NAME and isinstance(following, int):
            yield source, following


def find_row(reader: JoinedReader, column: int, index: int) -> int | None:
    """Returns the first row of a join that uses a sample of one of its datasets; None if there is none.

    Args:
        reader: The join.
        column: Number of the dataset.
        index: Index of the sample in the whole dataset.

    Raises:
        DatasetError: There is no such sample.
        StorageError: An index cannot be read.
    """
    own = reader.readers[column]
    shard, inside = own.locate(index)
    splits = np.flatnonzero(reader.shards[column] == shard)
    offsets = read_tar_index(own.folder.root, own.folder.shard_names[shard])
    table = reader.index.table[:, column]
    places = table[:, 1]
    is_it = places < int(offsets[1]) if inside == 0 else places == int(offsets[inside])
    rows = np.flatnonzero(np.isin(table[:, 0], splits) & (places >= 0) & is_it)
    return int(rows[0]) if len(rows) else None


def _unbatched(encoder: TaskEncoder[Any, Any, Any, Any]) -> TaskEncoder[Any, Any, Any, Any]:
    """Returns an encoder whose samples are not grouped into batches, which happens without a batch size as well."""
    if not overridden(encoder, "batch_group_criterion"):
        return encoder
    kind = type(encoder)
    twin = copy.copy(encoder)
    twin.__class__ = type(kind.__name__, (kind,), {"batch_group_criterion": TaskEncoder.batch_group_criterion})
    return twin


def find_token_text(encoder: object) -> Callable[[int], str] | None:
    """Returns a function from a token to its text, from the tokenizer of an encoder; None if it has none.

    Args:
        encoder: Looked at: its attributes `tokenizer`, `text_tokenizer`, `processor` and `tok`.
    """
    for name in _TOKENIZERS:
        found: Any = encoder
        for step in name.split("."):
            found = getattr(found, step, None)
        if found is None:
            continue
        for method in ("decode", "detokenize"):
            if callable(getattr(found, method, None)):
                return _single(getattr(found, method), getattr(found, "convert_ids_to_tokens", None))
        if callable(getattr(found, "id_to_token", None)):
            text_of = found.id_to_token
            return lambda token: str(text_of(token))
    return None


def _single(decode: Callable[[list[int]], Any], convert: Any) -> Callable[[int], str]:
    def text(token: int) -> str:
        decoded = str(decode([token]))
        if convert is not None and ("\ufffd" in decoded or not decoded):  # part of a character
            return str(convert([token])[0])
        return decoded

    return text


def find_normalisation(encoder: TaskEncoder[Any, Any, Any, Any]) -> Normalisation | None:
    """Returns mean and standard deviation by which the encoder's decoder normalises images; None if it does not."""
    spec = getattr(encoder.decoder, "spec", None)
    for operation in getattr(spec, "operations", ()):
        if isinstance(operation, Normalize):
            return operation.mean, operation.std
    return None


class ViewEncoder:
    """Makes the views of a task encoder, in the process that runs it.

    An encoder that cannot be made is tried again with each view. Whatever goes wrong is part of the view.

    Args:
        options: What is encoded, and how.
    """

    def __init__(self, options: ViewOptions) -> None:
        self._options = options
        self._session: EncoderSession | None = None

    def __call__(self, place: tuple[str, int, str] | None) -> EncodedView:
        """Returns a view.

        Args:
            place: Arguments of `EncoderSession.sample`; None for the first batch.
        """
        try:
            self._session = self._session or EncoderSession(self._options)
            return self._session.batch() if place is None else self._session.sample(*place)
        except EnergonDaliError as error:
            cause = error.__cause__
            trace = "" if cause is None else "".join(traceback.format_exception(cause))
            return EncodedView(error=str(error), trace=trace)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            trace = "".join(traceback.format_exception(error))
            return EncodedView(error=f"{type(error).__name__}: {error}", trace=trace)
