"""A LLaVA-style encoder: images become patches, captions tokens with image placeholders; several validation sets."""

import sys

import torch
from megatron.energon import (
    CaptioningSample,
    DefaultTaskEncoder,
    LimitDataset,
    RepeatDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_datasets,
)
from megatron.energon.flavors.webdataset import SampleDecoder
from megatron.energon.task_encoder.base import stateless
from training_loop import digest, parse, run

IMAGE_TOKEN = -200


class MimoEncoder(DefaultTaskEncoder[CaptioningSample, dict, dict, dict]):
    decoder = SampleDecoder(image_decode="torchrgb")

    def __init__(self, patch=4):
        super().__init__()
        self.patch = patch

    @stateless
    def encode_sample(self, sample):
        height, width = (length // self.patch * self.patch for length in sample.image.shape[1:])
        image = sample.image[:, :height, :width]
        patches = image.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
        patches = patches.permute(1, 2, 0, 3, 4).reshape(-1, 3 * self.patch * self.patch)
        words = [sum(word.encode()) % 997 for word in sample.caption.split()]
        ids = torch.tensor([IMAGE_TOKEN, *words])
        return {
            "__key__": sample.__key__,
            "__restore_key__": sample.__restore_key__,
            "patches": patches,
            "input_ids": ids,
            "loss_mask": (ids != IMAGE_TOKEN).float(),
        }

    @stateless
    def batch(self, samples):
        longest = max(len(sample["input_ids"]) for sample in samples)

        def padded(name, value):
            rows = torch.full((len(samples), longest), value, dtype=samples[0][name].dtype)
            for row, sample in zip(rows, samples):
                row[: len(sample[name])] = sample[name]
            return rows

        return {
            "__key__": [sample["__key__"] for sample in samples],
            "__restore_key__": tuple(sample["__restore_key__"] for sample in samples),
            "input_ids": padded("input_ids", 0),
            "loss_mask": padded("loss_mask", 0.0),
            "patches": torch.cat([sample["patches"] for sample in samples]),
            "counts": [len(sample["patches"]) for sample in samples],
        }

    @stateless
    def encode_batch(self, batch):
        batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand(batch["input_ids"].shape)
        return batch


def describe(batch):
    patches = torch.split(batch["patches"], batch["counts"])
    rows = [
        [key, digest(ids[mask > 0]), digest(image)]
        for key, ids, mask, image in zip(batch["__key__"], batch["input_ids"], batch["loss_mask"], patches)
    ]
    return rows, {}


def main(argv):
    args = parse(argv)
    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=args.num_workers)
    encoder = MimoEncoder()
    seen = []
    for dataset, source in get_val_datasets(
        f"{args.data}/captions", batch_size=2, task_encoder=encoder, worker_config=worker_config
    ):
        assert source.paths[0].name == "captions"
        repeated = RepeatDataset(dataset, worker_config=worker_config)
        limited = LimitDataset(repeated, length=4, worker_config=worker_config, reset_after_epoch=True)
        seen += [describe(batch) for batch in get_savable_loader(limited)]
    assert len(seen) == 4
    train = get_train_dataset(
        f"{args.data}/captions",
        batch_size=2,
        task_encoder=encoder,
        worker_config=worker_config,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        repeat=False,
    )
    run(get_savable_loader(train), args, describe)


if __name__ == "__main__":
    main(sys.argv[1:])
