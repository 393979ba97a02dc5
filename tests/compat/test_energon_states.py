"""States that Energon saved: they load as values, and restoring one says why that cannot work and what to do."""

from __future__ import annotations

import gzip
import importlib
import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import energon_dali.compat  # noqa: F401  # finds megatron.energon
from energon_dali import DefaultTaskEncoder, StateError, WorkerConfig, get_savable_loader, get_train_dataset
from energon_dali.integrations.torchdata import LoaderNode
from tests.loader.dataset_folder import captioning_dataset

CONTENT = gzip.decompress((Path(__file__).parents[1] / "data" / "energon_7_4_1_state.pt.gz").read_bytes())
"""Made by tests/data/make_energon_state.py."""
NAMES = {
    "state": ["FlexState"],
    "savable_loader": ["SavableDataLoaderState"],
    "flavors.webdataset.sample_loader": ["SliceState"],
}


class Keys(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.__key__ for sample in samples]


@pytest.fixture
def loader(tmp_path: Path) -> Any:
    folder = captioning_dataset(tmp_path / "captions", count=12)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return get_savable_loader(get_train_dataset(folder, worker_config=config, task_encoder=Keys(), batch_size=2))


def classes() -> list[type]:
    return [getattr(importlib.import_module(f"megatron.energon.{at}"), name) for at in NAMES for name in NAMES[at]]


def test_a_checkpoint_with_a_state_loads() -> None:
    checkpoint = torch.load(io.BytesIO(CONTENT), weights_only=False)
    assert checkpoint["step"] == 3
    assert checkpoint["weights"].tolist() == [1.0, 1.0]
    state = checkpoint["dataloader_state_dict"]
    assert type(state).__name__ == "SavableDataLoaderState"
    assert "SliceState(index=" in repr(state.worker_states)


def test_classes_that_a_program_declares_safe_are_those_of_the_file(tmp_path: Path) -> None:
    # torch 2.13 itself refuses to fill a subclass of dict, which Energon's FlexState is, with weights_only=True.
    (tmp_path / "checkpoint.pt").write_bytes(CONTENT)
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint
    assert len(unsafe(tmp_path / "checkpoint.pt")) == 3
    with torch.serialization.safe_globals(classes()):
        assert unsafe(tmp_path / "checkpoint.pt") == []


def test_the_value_can_be_saved_again() -> None:
    state = torch.load(io.BytesIO(CONTENT), weights_only=False)["dataloader_state_dict"]
    assert pickle.loads(pickle.dumps(state)) == state


def test_restoring_it_says_how_to_start_at_the_same_step(loader: Any) -> None:
    state = torch.load(io.BytesIO(CONTENT), weights_only=False)["dataloader_state_dict"]
    matched = {"match": r"state of Megatron Energon .*cannot be carried over.*loader\.skip_steps\(0, n\)"}
    with loader:
        with pytest.raises(StateError, **matched):
            loader.restore_state_rank(state)
        with pytest.raises(StateError, **matched):
            loader.restore_state_global([state])
        with pytest.raises(StateError, **matched):
            loader.load_state_dict(state.worker_states[0])
        whole = list(itertools.islice(loader, 8))
    with pytest.raises(StateError, **matched):
        LoaderNode(loader.dataset).reset(state)
    with get_savable_loader(loader.dataset) as follower:  # as the message says
        follower.skip_steps(0, 3)
        assert list(itertools.islice(follower, 5)) == whole[3:]
