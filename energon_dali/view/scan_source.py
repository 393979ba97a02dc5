"""One dataset that is scanned: its identity, its bytes, and how a loader would make samples of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_dali.assembly.opened_source import open_source
from energon_dali.assembly.options import DatasetOptions
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.decode import SampleDecoder
from energon_dali.errors import ConfigError, DatasetError, EnergonDaliError
from energon_dali.metadataset.reference import SourceReference
from energon_dali.samples.base import CrudeSample
from energon_dali.shards import RawSample, ShardReader, WebdatasetFolder
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.jsonl import JsonlFile, JsonlReader
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import INFO_NAMES
from energon_dali.shards.storage import StoragePath
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.worker_config import WorkerConfig

SCAN_VERSION = 2
"""Raised when a scan finds more than before, so that older scans are repeated."""


@dataclass(frozen=True, slots=True)
class ScanSource:
    """A prepared folder or JSONL file to scan; the whole of it, whatever the split. Picklable, and plain in JSON."""

    path: str
    """Local path or URL."""
    dataset_config: str | None = None
    """File in .nv-meta that defines the samples; None is dataset.yaml."""
    split_config: str | None = None
    """File in .nv-meta that divides the shards into parts; None is split.yaml or split.json."""
    allow_imports: bool = False
    """Import classes and functions of other packages that the dataset names."""
    allow_code: bool = False
    """Run code that is in the dataset: sample_loader.py, pickled parts."""

    @property
    def is_jsonl(self) -> bool:
        """Whether it is a JSONL file."""
        return self.path.endswith(".jsonl")

    def open(self) -> OpenedScanSource:
        """Opens the dataset.

        Raises:
            DatasetError: It is not prepared, or its index is damaged.
            StorageError: It cannot be read.
        """
        if self.is_jsonl:
            file = JsonlFile(self.path)
            load = SampleLoader(decoder=SampleDecoder(), sample_type=CrudeSample, dataset_path=file.path)
            return OpenedScanSource(file.num_samples, JsonlReader(file), load, None)
        folder = WebdatasetFolder(
            self.path,
            dataset_config=self.dataset_config or "dataset.yaml",
            split_config=self.split_config,
            allow_imports=self.allow_imports,
            allow_code=self.allow_code,
        )
        load, part_filter, note = self._recipe(folder)
        return OpenedScanSource(folder.num_samples, ShardReader(folder), load, part_filter, note)

    def _recipe(self, folder: WebdatasetFolder) -> tuple[Any, Callable[[str], bool] | None, str]:
        """Returns (what makes samples, which parts it takes, why that is not what dataset.yaml says)."""
        encoder: Any = DefaultTaskEncoder()
        encoder.decoder = SampleDecoder(image_decode="pilrgb")
        config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
        allowed = {"allow_imports": self.allow_imports, "allow_code": self.allow_code}
        try:
            part = folder.split_parts[0]
            options = DatasetOptions.of_call(encoder, config, allowed, split_part=part, training=False)
            reference = SourceReference(
                self.path, part, dataset_config=self.dataset_config, split_config=self.split_config
            )
            source = open_source(reference, 0, options, False)
        except (DatasetError, ConfigError, IndexError) as error:
            load = SampleLoader(decoder=encoder.decoder, sample_type=CrudeSample, dataset_path=folder.path)
            return load, None, f"Every part was decoded by its name, as no sample can be made: {error}"
        wanted = getattr(source.reader, "part_filter", None)
        source.reader.close()
        return source.load, wanted, ""

    def identity(self) -> str:
        """Returns a digest that changes when the data or what is made of it changes.

        It covers the index, the configuration, and for local files their sizes and times of change.

        Raises:
            DatasetError: It is not prepared.
            StorageError: It cannot be read.
        """
        root = StoragePath.of(self.path)
        facts: list[Any] = [SCAN_VERSION, root.url, self.dataset_config, self.split_config]
        facts += [self.allow_imports, self.allow_code]
        if self.is_jsonl:
            facts += [JsonlFile(self.path).uuid, _stamp(root)]
        else:
            folder = WebdatasetFolder(self.path, split_config=self.split_config)
            facts += [folder.uuid, folder.num_samples, _content(root / META / (self.dataset_config or "dataset.yaml"))]
            facts += [_content(root / META / name) for name in INFO_NAMES]
            if root.is_local:
                facts += [_stamp(root / name) for name in folder.shard_names]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _stamp(path: StoragePath) -> list[int] | None:
    """Returns size and time of change of a local file; None for others, and for one that is missing."""
    if not path.is_local:
        return None
    try:
        status = path.local.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _content(path: StoragePath) -> str:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except (OSError, EnergonDaliError):
        return ""


@dataclass(eq=False)
class OpenedScanSource:
    """A dataset that is open for reading, whole samples by index. Not thread-safe."""

    num_samples: int
    """Number of samples, whatever the split."""
    reader: ShardReader | JsonlReader
    """Reads all parts."""
    load: Any
    """Makes samples, as a loader does."""
    part_filter: Callable[[str], bool] | None
    """The parts that `load` takes; None takes all."""
    note: str = ""
    """Why `load` is not what dataset.yaml says; "" if it is."""

    def read(self, index: int) -> RawSample:
        """Returns all parts of a sample.

        Args:
            index: Index in the whole dataset.

        Raises:
            DatasetError: There is no such sample, or it cannot be read.
        """
        shard, inside = self.reader.locate(index)
        (raw,) = self.reader.read([shard], [inside])
        if isinstance(raw, DatasetError):
            raise raw
        return raw

    def make(self, raw: RawSample) -> Any:
        """Returns the sample that a loader makes of raw parts, before cookers and other hooks.

        Args:
            raw: All parts of the sample; it is not changed.

        Raises:
            Exception: What the loader would count as the failure of the sample.
        """
        wanted = self.part_filter
        kept = {name: part for name, part in raw.parts.items() if wanted is None or wanted(name)}
        (seed,) = self.load.seeds(np.zeros(1, np.int64), np.array([raw.index], np.int64))
        return self.load(RawSample(raw.key, raw.shard, raw.index, raw.shard_index, raw.sample_index, kept), seed)

    def close(self) -> None:
        """Closes its files."""
        self.reader.close()

    def __repr__(self) -> str:
        return f"OpenedScanSource({self.num_samples} samples, {excerpt(self.note)})"
