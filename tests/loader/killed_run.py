"""A run over a blend with packing that writes each batch, and the state after it, to disk; made to be killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from energon_dali import SequencePacker, TaskEncoder, WorkerConfig, stateless


class Packing(TaskEncoder[Any, Any, Any, Any]):
    """Packs captions by length and keeps those that fit badly; some samples fail, some yield several."""

    decoder = None
    packer = SequencePacker(60, length=lambda sample: len(sample.caption), max_padding=0.1)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        number = int(sample.caption.split()[-1])
        if number % 11 == 3:
            raise ValueError("bad")
        yield sample
        if number % 5 == 0:
            yield sample

    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        return self.packer(samples)

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"__restore_key__": (), "keys": [sample.__key__ for sample in samples]}

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return [sample["keys"] for sample in samples]


def silent(error: Exception, sample: Any, sources: Any) -> None:
    """An error handler that says nothing."""


def open_loader(folder: Path, num_workers: int = 2) -> Any:
    """Returns the loader over a blend of the two datasets in a folder."""
    # Imported here: the workers need this module, and not torch.
    from energon_dali import get_savable_loader, get_train_dataset

    parts = [{"weight": 3, "path": f"{folder}/one"}, {"weight": 1, "path": f"{folder}/two"}]
    blend = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": parts}}}
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=4, global_error_handler=silent)
    dataset = get_train_dataset(
        blend, worker_config=config, batch_size=2, shuffle_buffer_size=20, packing_buffer_size=8, task_encoder=Packing()
    )
    return get_savable_loader(dataset)


def run(folder: Path, place: Path, until: int, num_workers: int = 2) -> None:
    """Continues at the state in the file `place`, and replaces the file after every batch."""
    loader = open_loader(folder, num_workers)
    saved: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {"state": None, "batches": []}
    loader.restore_state_rank(saved["state"])
    for batch in loader:
        saved = {"state": loader.save_state_rank(), "batches": [*saved["batches"], batch]}
        temporary = place.with_suffix(".tmp")
        temporary.write_text(json.dumps(saved))
        os.replace(temporary, place)
        if len(saved["batches"]) >= until:
            return
