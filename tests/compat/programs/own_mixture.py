"""A task encoder that puts its datasets together itself: blended, encoded, sorted by length, and then batched."""

import argparse
import sys
from pathlib import Path

import torch
from length_pool import LengthPoolDataset
from megatron.energon import (
    BaseCoreDatasetFactory,
    BlendDataset,
    Cooker,
    CrudeWebdataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    LogSampleDataset,
    RepeatDataset,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from megatron.energon.metadataset.loader_interface import DatasetBlendMode
from training_loop import digest, parse, run

MIXTURE = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train: {blend: [{weight: 3, path: texts}, {weight: 1, path: latents}]}
  once: {blend_epochized: [{repetitions: 2, path: texts, split_part: train}, {path: latents, split_part: train}]}
"""


@stateless
def cook_prompt(sample):
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


class SortingEncoder(DefaultTaskEncoder):
    cookers = [Cooker(cook_prompt, has_subflavors={"kind": "latents"})]
    pool_size = 4

    @stateless
    def encode_sample(self, sample):
        sample.text = sample.text.lower()
        return sample

    @stateless
    def batch(self, samples):
        return {
            "__key__": [sample.__key__ for sample in samples],
            "__restore_key__": tuple(sample.__restore_key__ for sample in samples),
            "texts": [sample.text for sample in samples],
            "lengths": torch.tensor([len(sample.text) for sample in samples]),
        }

    def finish(self, dataset, worker_config, batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length):
        dataset = self.build_encode_sample(dataset, worker_config=worker_config)
        dataset = LengthPoolDataset(dataset, self.pool_size, worker_config)
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
        if virtual_epoch_length > 0:
            dataset = EpochizeDataset(dataset, length=virtual_epoch_length, worker_config=worker_config)
        if worker_config.should_log(level=1):
            dataset = LogSampleDataset(dataset, mode="train", worker_config=worker_config)
        return dataset


class CurrentEncoder(SortingEncoder):
    """Takes records of datasets, as Energon 7 gives them."""

    def build_train_datasets(
        self,
        *,
        datasets,
        worker_config,
        batch_size,
        batch_drop_last=False,
        packing_buffer_size=None,
        virtual_epoch_length=0,
        shuffle_buffer_size=None,
        blend_mode=DatasetBlendMode.NONE,
        repeat=True,
    ):
        parts = []
        for number, one in enumerate(datasets):
            assert isinstance(one.dataset, BaseCoreDatasetFactory)
            loaded = self._load_dataset(one, number, worker_config)
            if blend_mode == DatasetBlendMode.DATASET_WEIGHT:
                parts.append((RepeatDataset(loaded, worker_config=worker_config), one.weight))
            else:
                times = one.repetitions or 1
                repeated = RepeatDataset(loaded, repeats=times, worker_config=worker_config)
                parts.append((repeated, times * len(one.dataset)))
        mixture = BlendDataset(*parts, worker_config=worker_config)
        return self.finish(
            mixture, worker_config, batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length
        )


class OlderEncoder(SortingEncoder):
    """Takes pairs of a dataset and a weight, and cooks the mixture, as in older versions of Energon."""

    def build_train_datasets(
        self,
        *,
        datasets,
        worker_config,
        batch_size,
        batch_drop_last=False,
        packing_buffer_size=None,
        virtual_epoch_length=0,
        shuffle_buffer_size=None,
        blend_mode=DatasetBlendMode.NONE,
        repeat=True,
    ):
        for dataset, _ in datasets:
            if isinstance(dataset, CrudeWebdataset):
                assert self.cookers
        if repeat:
            parts = [
                (RepeatDataset(dataset.build(worker_rotation_offset=0), worker_config=worker_config), float(weight))
                for dataset, weight in datasets
            ]
        else:
            parts = [
                (
                    RepeatDataset(
                        dataset.build(worker_rotation_offset=0), repeats=int(times), worker_config=worker_config
                    ),
                    len(dataset) * int(times),
                )
                for dataset, times in datasets
            ]
        mixture = BlendDataset(*parts, worker_config=worker_config)
        mixture = self.build_cook_crude_sample(mixture, worker_config=worker_config)
        return self.finish(
            mixture, worker_config, batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length
        )


class BatchingEncoder(SortingEncoder):
    """Changes one stage, and calls that of its base class inside."""

    def build_batch(self, dataset, **options):
        pool = LengthPoolDataset(dataset, self.pool_size, options["worker_config"])
        return super().build_batch(pool, **options)


ENCODERS = {"current": CurrentEncoder, "older": OlderEncoder, "batching": BatchingEncoder}


def describe(batch):
    rows = [[key, digest(text)] for key, text in zip(batch["__key__"], batch["texts"])]
    return rows, {"lengths": batch["lengths"]}


def main(argv):
    kinds = argparse.ArgumentParser(add_help=False)
    kinds.add_argument("--encoder", choices=sorted(ENCODERS), default="current")
    kinds.add_argument("--part", choices=["train", "once", "validation"], default="once")
    kind, rest = kinds.parse_known_args(argv)
    args = parse(rest)
    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=args.num_workers)
    mixture = Path(args.data) / "mixture.yaml"
    mixture.write_text(MIXTURE)
    common = {"worker_config": worker_config, "batch_size": 3, "task_encoder": ENCODERS[kind.encoder]()}
    if kind.part == "validation":
        dataset = get_val_dataset(f"{args.data}/texts", split_part="train", limit=4, **common)
    else:
        dataset = get_train_dataset(
            str(mixture),
            split_part=kind.part,
            shuffle_buffer_size=None,
            max_samples_per_sequence=5,
            repeat=kind.part == "train",
            virtual_epoch_length=20 if kind.part == "train" else 0,
            **common,
        )
    run(get_savable_loader(dataset), args, describe)


if __name__ == "__main__":
    main(sys.argv[1:])
