"""A pool of samples that is sorted by length, so that batches need little padding: a dataset of the program."""

import sys

import torch
from megatron.energon import (
    BatchDataset,
    SavableDataset,
    TextSample,
    WorkerConfig,
    batch_pad_stack,
    get_savable_loader,
    get_train_dataset,
)
from megatron.energon.rng import WorkerRng
from megatron.energon.task_encoder.base import stateless
from training_loop import digest, parse, run


class LengthPoolDataset(SavableDataset):
    """Collects `pool_size` samples, and yields them by length, from a random end."""

    def __init__(self, dataset, pool_size, worker_config):
        super().__init__(worker_config=worker_config)
        self.dataset = dataset
        self.pool_size = pool_size
        self._rng = WorkerRng(worker_config)
        self.reset_state_own()

    def reset_state_own(self):
        self._keys = []
        self._pool = []

    def len_worker(self, worker_idx=None):
        return self.dataset.len_worker(worker_idx)

    def worker_has_samples(self):
        return self.dataset.worker_has_samples()

    def config(self):
        return {"type": type(self).__qualname__, "pool_size": self.pool_size, "dataset": self.dataset.config()}

    def can_restore_sample(self):
        return self.dataset.can_restore_sample()

    def restore_sample(self, restore_key):
        return self.dataset.restore_sample(restore_key)

    def save_state(self):
        state = super().save_state()
        state["keys"] = list(self._keys)
        state["rng"] = self._rng.save_state()
        state["dataset"] = self.dataset.save_state()
        return state

    def restore_state(self, state):
        super().restore_state(state)
        self._keys = list(state["keys"])
        self._rng.restore_state(state["rng"])
        self.dataset.restore_state(state["dataset"])
        self._pool = None

    def __iter__(self):
        if self._pool is None:
            self._pool = [self.dataset.restore_sample(key) for key in self._keys]
        while self._pool:
            self._keys.pop(0)
            yield self._pool.pop(0)
        for sample in self.dataset:
            self._pool.append(sample)
            if len(self._pool) < self.pool_size:
                continue
            self._sort()
            while self._pool:
                self._keys.pop(0)
                yield self._pool.pop(0)
        self._sort()
        while self._pool:
            self._keys.pop(0)
            yield self._pool.pop(0)

    def _sort(self):
        backwards = self._rng.randbelow(2)
        self._pool.sort(key=lambda sample: (len(sample.text.split()), sample.__key__), reverse=bool(backwards))
        self._keys = [sample.__restore_key__ for sample in self._pool]


@stateless
def collate(samples):
    tokens = [torch.tensor([sum(word.encode()) % 997 for word in sample.text.split()]) for sample in samples]
    return {
        "__key__": [sample.__key__ for sample in samples],
        "__restore_key__": tuple(sample.__restore_key__ for sample in samples),
        "tokens": batch_pad_stack(tokens),
        "lengths": [len(one) for one in tokens],
    }


def describe(batch):
    rows = [
        [key, digest(tokens[:length])]
        for key, tokens, length in zip(batch["__key__"], batch["tokens"], batch["lengths"])
    ]
    return rows, {}


def main(argv):
    args = parse(argv)
    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=args.num_workers)
    dataset = get_train_dataset(
        f"{args.data}/texts",
        sample_type=TextSample,
        batch_size=None,
        worker_config=worker_config,
        shuffle_buffer_size=None,
        max_samples_per_sequence=5,
        repeat=False,
    )
    pool = LengthPoolDataset(dataset, 6, worker_config)
    batches = BatchDataset(pool, 2, collate, batcher_stateless=True, worker_config=worker_config)
    run(get_savable_loader(batches), args, describe)


if __name__ == "__main__":
    main(sys.argv[1:])
