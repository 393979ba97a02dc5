"""What the page shows: the options of the command, and the datasets that its path names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from energon_dali.errors import DatasetError, DatasetFormatError, EnergonDaliError
from energon_dali.metadataset.document import YAML_SUFFIXES
from energon_dali.metadataset.loader import load_dataset
from energon_dali.metadataset.reference import SourceReference
from energon_dali.plan.scheduled import Schedule
from energon_dali.shards import StoragePath
from energon_dali.view.dataset import FolderDataset, JsonlDataset, ViewedDataset

JSONL_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options of the command; plain values."""

    path: str
    """A prepared folder, a `.jsonl` file, or a metadataset (`.yaml`)."""
    encoder: str = ""
    """`MODULE:CLASS` of a task encoder; a function or an instance is taken too; "" shows no encoded samples."""
    split_part: str = "train"
    """Part of the split whose first batch is shown."""
    batch_size: int | None = 4
    """Samples of that batch; None batches only if the encoder groups samples itself."""
    packing_buffer_size: int | None = None
    """Number of samples from which the encoder chooses packs; None packs nothing."""
    allow_imports: bool = False
    """Import classes and functions of other packages that the dataset names."""
    allow_code: bool = False
    """Run code that is in the dataset: sample_loader.py, pickled parts."""
    dataset_config: str | None = None
    """Name of dataset.yaml; only for a folder."""
    split_config: str | None = None
    """Name of the split file; only for a folder."""
    choose: str = ""
    """File of keys whose samples are chosen; only for a single dataset."""
    run: tuple[str, ...] = ()
    """Saved states or debug logs of a run, or folders of them."""
    loss: str = ""
    """CSV file, or file or folder of TensorBoard, with the loss of the run."""
    loss_name: str = ""
    """Column or tag of the loss; "" finds it."""


@dataclass(frozen=True, slots=True)
class Use:
    """How a metadataset uses one of its datasets."""

    split: str
    """Split of the metadataset."""
    split_part: str
    """Part of the dataset's own split."""
    weight: float | None
    """Share of the draws; None if datasets are not blended by weight."""
    repetitions: float | None
    """How often its samples are repeated in an epoch; None if that is not given."""
    location: str
    """File and line that name it."""
    subset: SourceReference | None = None
    """What names it, if it takes a subset of its samples; None if it takes all."""


@dataclass(slots=True)
class CatalogEntry:
    """A dataset of the page."""

    number: int
    """Its number, which its addresses on the page begin with."""
    path: str
    """Local path or URL."""
    dataset: ViewedDataset | None
    """The dataset; None if it cannot be opened."""
    error: str = ""
    """Why it cannot be opened."""
    dataset_config: str | None = None
    """Name of its dataset.yaml; None is the usual name."""
    split_config: str | None = None
    """Name of its split file; None is the usual names."""
    uses: list[Use] = field(default_factory=list)
    """How a metadataset uses it; empty if the user gave its path."""

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def count(self, split_part: str) -> int:
        """Returns the number of samples of a part of the split; of all samples if the dataset has no such part.

        Raises:
            DatasetError: It cannot be opened, or its split is damaged.
            StorageError: A file cannot be read.
        """
        known = split_part in self.opened.split_parts
        return len(self.opened.rows(split_part if known else None))

    @property
    def opened(self) -> ViewedDataset:
        """The dataset.

        Raises:
            DatasetError: It cannot be opened.
        """
        if self.dataset is None:
            raise DatasetError(self.error)
        return self.dataset


class Catalog:
    """The datasets that a path names. Thread-safe; reads no shard.

    A dataset that a metadataset names several times is shown once. One that cannot be opened stays in the list with the
    reason, unless it is the only one.

    Args:
        path: A prepared folder, a `.jsonl` file, or a metadataset (`.yaml`); a local path or a URL.
        dataset_config: Name of dataset.yaml; only for a folder.
        split_config: Name of the split file; only for a folder.

    Raises:
        DatasetError: The path cannot be understood.
        ConfigError: A nested metadataset lacks a split.
        StorageError: A file cannot be read.
    """

    def __init__(self, path: str, *, dataset_config: str | None = None, split_config: str | None = None) -> None:
        self.path = StoragePath.of(path).url
        self.is_metadataset = self.path.endswith(YAML_SUFFIXES)
        self.splits: tuple[str, ...] = ()
        """Splits of the metadataset."""
        self.schedules: dict[str, Schedule] = {}
        """By split, weights that change while a job runs."""
        self._uses: dict[str, list[Use]] = {}
        self.sources: dict[str, list[tuple[int, str]]] = {}
        """By split, (number of the entry, part of its split) of each dataset of the blend; of a join, the first one."""
        if not self.is_metadataset:
            dataset = open_dataset(self.path, dataset_config, split_config)
            self.entries: Sequence[CatalogEntry] = (
                CatalogEntry(0, self.path, dataset, "", dataset_config, split_config),
            )
            """The datasets, in the order of the files."""
            return
        self.entries = self._read_metadataset()
        if self.entries and all(entry.dataset is None for entry in self.entries):
            raise DatasetFormatError(f"No dataset of {self.path} can be opened. The first: {self.entries[0].error}")

    def entry(self, number: int) -> CatalogEntry | None:
        """Returns a dataset by its number; None if there is none."""
        return self.entries[number] if 0 <= number < len(self.entries) else None

    @property
    def first_opened(self) -> int:
        """Number of the first dataset that can be opened."""
        return next((entry.number for entry in self.entries if entry.dataset is not None), 0)

    def entry_of_source(self, split: str, number: int) -> CatalogEntry | None:
        """Returns the entry of a dataset of a blend; None if there is no such dataset.

        Args:
            split: Split of the metadataset.
            number: Number of the dataset in the blend, from 0.
        """
        if not self.is_metadataset:
            return self.entries[0] if number == 0 else None
        sources = self.sources.get(split, [])
        return self.entries[sources[number][0]] if 0 <= number < len(sources) else None

    def use_of_source(self, split: str, number: int) -> Use:
        """Returns how a blend uses one of its datasets; arguments as in `entry_of_source`."""
        return self._uses[split][number]

    def close(self) -> None:
        """Closes all files."""
        for entry in self.entries:
            if entry.dataset is not None:
                entry.dataset.close()

    def _read_metadataset(self) -> list[CatalogEntry]:
        loader = load_dataset(self.path)
        self.splits = tuple(getattr(loader, "split_parts", ()))
        entries: dict[tuple[str, str | None, str | None], CatalogEntry] = {}
        for split in self.splits:
            blend = loader.resolve(split)
            if blend.schedule is not None:
                self.schedules[split] = blend.schedule
            for source in blend.sources:
                where = "" if source.location is None else str(source.location)
                used: list[CatalogEntry] = []
                for one in [source] if source.join is None else source.join.columns:
                    key = (one.path, one.dataset_config, one.split_config)
                    if key not in entries:
                        entries[key] = _open_entry(len(entries), *key)
                    entries[key].uses.append(Use(split, one.split_part, source.weight, source.repetitions, where))
                    used.append(entries[key])
                part = source.split_part if source.join is None else source.join.columns[0].split_part
                self.sources.setdefault(split, []).append((used[0].number, part))
                chosen = source if source.join is None and source.subset is not None else None
                self._uses.setdefault(split, []).append(
                    Use(split, part, source.weight, source.repetitions, where, chosen),
                )
        return list(entries.values())


def _open_entry(number: int, path: str, dataset_config: str | None, split_config: str | None) -> CatalogEntry:
    try:
        dataset = open_dataset(path, dataset_config, split_config)
        return CatalogEntry(number, path, dataset, "", dataset_config, split_config)
    except (EnergonDaliError, OSError) as error:
        return CatalogEntry(number, path, None, str(error), dataset_config, split_config)


def open_dataset(path: str, dataset_config: str | None = None, split_config: str | None = None) -> ViewedDataset:
    """Returns one dataset.

    Args:
        path: A prepared folder or a `.jsonl` file.
        dataset_config: Name of dataset.yaml; None for the usual name.
        split_config: Name of the split file; None for the usual names.

    Raises:
        DatasetFormatError: It is not prepared.
        StorageError: It cannot be read.
    """
    if path.endswith(JSONL_SUFFIX):
        return JsonlDataset(path)
    return FolderDataset(path, dataset_config=dataset_config, split_config=split_config)
