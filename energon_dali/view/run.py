"""A training run on the page: what its steps delivered, by its saved states or debug logs, and its loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from energon_dali.diagnosis.dataset_of_state import open_dataset_of, open_streams_of
from energon_dali.diagnosis.debug_logs import find_logs
from energon_dali.diagnosis.delivered_steps import DeliveredSteps, StepSample
from energon_dali.diagnosis.logged_steps import LoggedSteps
from energon_dali.diagnosis.planned_steps import PlannedSteps
from energon_dali.errors import ConfigError
from energon_dali.loader.loader_state import merge_states
from energon_dali.loader.state_file import SUFFIXES, find_state_files, read_state_file
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.shards.sample_keys import find_samples
from energon_dali.shards.subset_file import SampleName
from energon_dali.view.catalog import Catalog, CatalogEntry
from energon_dali.view.dataset import JsonlDataset
from energon_dali.view.loss import Loss, read_loss
from energon_dali.view.viewed_sample import ViewedSample

_LOG_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class RunSample:
    """A sample of a step."""

    key: str
    """Its key; "" if it is not known."""
    entry: CatalogEntry | None
    """Its dataset; None if it is not among those of the page."""
    sample: ViewedSample | None
    """The sample; None if its dataset does not have it."""
    outcome: str
    """"delivered", "planned", "spare", "failed", "left out"; of a debug log always "delivered"."""
    failed: ViewedSample | None = None
    """The sample that failed, and whose place this one took; None if none did."""
    others: tuple[tuple[CatalogEntry, int], ...] = ()
    """(dataset, number) of other samples with this key, any of which may be meant."""


@dataclass(frozen=True, slots=True)
class RunBatch:
    """What a rank received at once."""

    rank: int | None
    """Its rank; None if it is not known."""
    micro_batch: int | None
    """Its number among the micro-batches of the rank in the step; None if it is not known."""
    samples: list[RunSample]
    """Its samples, in order."""


@dataclass(slots=True)
class Run:
    """A training run. Not thread-safe.

    `open_run` makes it.
    """

    catalog: Catalog
    """The datasets of the page."""
    origin: str
    """What it was read from, in words."""
    steps: DeliveredSteps | PlannedSteps | LoggedSteps | None
    """Its steps; None if only a loss was given."""
    loss: Loss | None
    """Its loss, if one was given."""
    notes: list[str] = field(default_factory=list)
    """What is not exact, in sentences."""

    @property
    def num_steps(self) -> int:
        """Number of steps that were delivered, or have a loss."""
        found = 0 if self.loss is None else int(self.loss.steps[-1]) + 1
        if isinstance(self.steps, LoggedSteps):
            return max(found, self.steps.num_steps)
        return found if self.steps is None else max(found, self.steps.num_delivered)

    def has_step(self, number: int) -> bool:
        """Returns whether a step was delivered, is planned, or has a loss; arguments and errors as in `step`."""
        if number < self.num_steps:
            return True
        planned = None if isinstance(self.steps, LoggedSteps) else self.steps
        return planned is not None and planned.step(number) is not None

    def step(self, number: int) -> list[RunBatch] | None:
        """Returns what a step had, by rank and micro-batch; None if there is no such step.

        Args:
            number: Number of the step, from 0.

        Raises:
            DatasetError: An index is damaged, or the dataset changed.
            StateError: The plan does not fit the state.
            StorageError: A file cannot be read.
        """
        if self.steps is None:
            return None
        if isinstance(self.steps, LoggedSteps):
            logged = self.steps.step(number)
            return None if logged is None else [RunBatch(rank, None, self._named(keys)) for rank, keys in logged]
        planned = self.steps.step(number)
        if planned is None:
            return None
        steps = self.steps
        return [
            RunBatch(batch.rank, batch.micro_batch, [self._planned(steps, one) for one in batch.samples])
            for batch in planned
        ]

    def _planned(self, steps: DeliveredSteps | PlannedSteps, one: StepSample) -> RunSample:
        source = steps.sources[one.source]
        entry = next((entry for entry in self.catalog.entries if entry.path == source.name), None)
        sample = self._viewed(entry, source.reader, one.number)
        failed = None if one.failed is None else self._viewed(entry, source.reader, one.failed)
        key = source.reader.indexed(*source.reader.locate(one.number)).key if sample is None else sample.key
        return RunSample(key, entry, sample, one.outcome, failed)

    def _viewed(self, entry: CatalogEntry | None, reader: Any, number: int) -> ViewedSample | None:
        """Returns a sample by its number; of a join, that of its first dataset."""
        if entry is None or entry.dataset is None:
            return None
        if isinstance(reader, JoinedReader):
            place = reader.find([number])[0][0]
            if not isinstance(place, tuple):
                return None
            number = reader.readers[0].index_of(*place)
        return entry.dataset.sample(number) if number < entry.dataset.num_samples else None

    def _named(self, keys: list[str]) -> list[RunSample]:
        """Returns the samples that a log names, which says no more than their keys."""
        found: dict[str, list[tuple[CatalogEntry, int]]] = {key: [] for key in keys}
        for entry in self.catalog.entries:
            if entry.dataset is not None:
                for key, index in _indices_of(entry, list(found)):
                    found[key].append((entry, index))
        samples = []
        for key in keys:
            if not found[key]:
                samples.append(RunSample(key, None, None, "delivered"))
                continue
            (entry, index), *others = found[key]
            samples.append(RunSample(key, entry, entry.opened.sample(index), "delivered", others=tuple(others)))
        return samples


def _indices_of(entry: CatalogEntry, keys: list[str]) -> Iterable[tuple[str, int]]:
    """Returns (key, number of the sample) of those keys that a dataset has."""
    dataset = entry.opened
    found = [(key, dataset.find_key(key)) for key in keys]
    known = [(key, index) for key, index in found if index is not None]
    if known or isinstance(dataset, JsonlDataset):
        return known
    numbers = find_samples(dataset.folder, [SampleName(key) for key in keys]).numbers.tolist()
    return [(dataset.sample(number).key, number) for number in numbers]


def open_run(
    catalog: Catalog,
    files: Iterable[str],
    *,
    loss: str = "",
    loss_name: str = "",
    encoder: Any = None,
    allow_imports: bool = False,
    allow_code: bool = False,
) -> Run:
    """Returns a run. Reads no sample.

    Args:
        catalog: The datasets of the page, which are those of the run.
        files: Saved states of its ranks (.json, .pt, .pth), or its debug logs (.jsonl); or folders of either.
        loss: A CSV file or a file or folder of TensorBoard; "" without one.
        loss_name: Column or tag of the loss; "" finds it.
        encoder: The task encoder, which only states of planned packs need.
        allow_imports: Import what the dataset names.
        allow_code: Run code that is in the dataset.

    Raises:
        ConfigError: Files of both kinds were given, or one is missing.
        StateError: A state is damaged, or does not say what steps had.
        DatasetError: The dataset cannot be opened.
        StorageError: A file cannot be read.
    """
    curve = read_loss(loss, loss_name) if loss else None
    paths = [Path(file).expanduser() for file in files]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise ConfigError(f"--run {missing[0]} does not exist. Give saved states or debug logs of the run.")
    if not paths:
        return Run(catalog, "", None, curve)
    inside = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path])]
    kinds = {file.suffix for file in inside}
    if kinds & {_LOG_SUFFIX} and not kinds & set(SUFFIXES):
        logs = LoggedSteps(find_logs(paths))
        ranks = f"{logs.world_size:,} {'rank' if logs.world_size == 1 else 'ranks'}"
        notes = ["A debug log numbers the batches of each rank, and names samples by their keys."]
        if curve is not None:
            notes.append(
                "If the steps of the job had several micro-batches, the loss of step N is not that of batch N."
            )
        return Run(catalog, f"debug logs of {ranks}", logs, curve, notes)
    if kinds & {_LOG_SUFFIX}:
        raise ConfigError("--run was given saved states and debug logs. Give those of one kind.")
    states = [state for file in find_state_files(paths) for state in read_state_file(file).states]
    whole = merge_states(states)
    allowed: dict[str, Any] = {"allow_imports": allow_imports, "allow_code": allow_code}
    steps: DeliveredSteps | PlannedSteps
    if "cursor" in whole:
        steps = DeliveredSteps(open_dataset_of(whole, catalog.path, task_encoder=encoder, **allowed), states)
    else:
        steps = PlannedSteps(open_streams_of(whole, catalog.path, **allowed), states)
    ranks = f"{steps.world_size:,} {'rank' if steps.world_size == 1 else 'ranks'}"
    return Run(catalog, f"a state of {ranks} after {steps.num_delivered:,} steps", steps, curve, steps.notes)
