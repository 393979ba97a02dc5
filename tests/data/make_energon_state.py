"""Makes tests/data/energon_7_4_1_state.pt.gz: run it with a Python that has megatron-energon 7.4.1.

    python tests/data/make_energon_state.py DATASET

It takes three batches, and saves the loader's state in a checkpoint with other things, as trainers do.
"""

from __future__ import annotations

import gzip
import io
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset


class Keys(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.__key__ for sample in samples]


def main() -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": 4}
    dataset = get_train_dataset(sys.argv[1], worker_config=config, task_encoder=Keys(), **options)
    loader = get_savable_loader(dataset)
    list(islice(loader, 3))
    content = io.BytesIO()
    torch.save({"step": 3, "weights": torch.ones(2), "dataloader_state_dict": loader.save_state_rank()}, content)
    out = Path(__file__).parent / "energon_7_4_1_state.pt.gz"
    out.write_bytes(gzip.compress(content.getvalue(), 9, mtime=0))


if __name__ == "__main__":
    main()
