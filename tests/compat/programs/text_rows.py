"""Trains on rows of text in the worker processes of torch's loader, around a dataset of Energon."""

import argparse
import json
import os
import sys

import torch
from megatron.energon import TextSample, WorkerConfig, get_train_dataset
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

ROWS = 4
"""Rows per batch."""


class RowsOfText(IterableDataset):
    """Turns the samples of a dataset into rows of numbers, in whichever process iterates it."""

    def __init__(self, samples, make_row):
        assert isinstance(samples, IterableDataset)
        self.samples = samples
        self.make_row = make_row

    def __len__(self):
        return len(self.samples)

    def __iter__(self):
        job = self.samples.worker_config
        WorkerConfig.active_worker_config = None
        job.worker_activate(sample_index=0)
        try:
            for sample in self.samples:
                yield self.make_row(sample, job.global_worker_id())
        finally:
            job.worker_deactivate()

    def set_epoch(self, epoch):
        self.samples.reset_state_deep()

    def state_dict(self):
        return {"samples": self.samples.save_state()}

    def load_state_dict(self, state):
        self.samples.restore_state(state["samples"])


def make_row(sample, worker):
    numbers = [sum(word.encode()) % 97 for word in sample.text.split()]
    return {"key": sample.__key__, "worker": worker, "numbers": torch.tensor(numbers)}


def collate(rows):
    numbers = torch.nn.utils.rnn.pad_sequence([row["numbers"] for row in rows], batch_first=True)
    return {"keys": [row["key"] for row in rows], "workers": [row["worker"] for row in rows], "numbers": numbers}


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("report")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=None)
    parser.add_argument("--state", default=None)
    args = parser.parse_args(argv)
    samples = get_train_dataset(
        f"{args.data}/texts",
        sample_type=TextSample,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=args.num_workers),
        batch_size=None,
        shuffle_buffer_size=8,
        max_samples_per_sequence=5,
        repeat=False,
    )
    rows = RowsOfText(samples, make_row)
    rows.set_epoch(0)
    loader = StatefulDataLoader(rows, batch_size=ROWS, num_workers=args.num_workers, collate_fn=collate)
    if args.state is not None and os.path.exists(args.state):
        loader.load_state_dict(torch.load(args.state, weights_only=False))
    model, found = torch.nn.Linear(1, 1), []
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for step, batch in enumerate(loader, 1):
        loss = model(batch["numbers"].float().mean(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        found.append([batch["keys"], sorted(set(batch["workers"]))])
        if step == args.stop_after:
            torch.save(loader.state_dict(), args.state)
            break
    with open(args.report, "w") as file:
        json.dump({"length": len(rows), "batches": found}, file)


if __name__ == "__main__":
    main(sys.argv[1:])
