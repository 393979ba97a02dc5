"""A data provider of visual questions as in Megatron-LM: global arguments, and packing of token sequences."""

import sys
from dataclasses import dataclass

import torch
from arguments import get_args, set_args
from megatron.energon import (
    Batch,
    DefaultTaskEncoder,
    SampleDecoder,
    VQASample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from megatron.energon.task_encoder.base import stateless
from training_loop import digest, parse, run


@dataclass
class EncodedSample:
    __key__: str
    __restore_key__: tuple
    __subflavors__: dict
    __sources__: tuple
    image: torch.Tensor
    tokens: torch.Tensor

    @property
    def length(self):
        return len(self.tokens)


@dataclass
class PackedBatch(Batch):
    images: torch.Tensor
    tokens: torch.Tensor
    cu_lengths: torch.Tensor


def tokenize(text):
    return [sum(word.encode()) % 997 for word in text.split()]


class QuestionEncoder(DefaultTaskEncoder[VQASample, EncodedSample, PackedBatch, PackedBatch]):
    decoder = SampleDecoder(image_decode="torchrgb8")

    def __init__(self):
        super().__init__(encoded_sample_type=EncodedSample, raw_batch_type=PackedBatch, batch_type=PackedBatch)

    @stateless
    def encode_sample(self, sample):
        args = get_args()
        tokens = tokenize(sample.context)[: args.seq_length] + tokenize(sample.answers[0])
        return EncodedSample(
            __key__=sample.__key__,
            __restore_key__=sample.__restore_key__,
            __subflavors__=sample.__subflavors__,
            __sources__=sample.__sources__,
            image=sample.image.float() / 255 - args.image_mean,
            tokens=torch.tensor(tokens, dtype=torch.int64),
        )

    def select_samples_to_pack(self, samples):
        packs, free = [], 0
        for sample in sorted(samples, key=lambda sample: -sample.length):
            if sample.length > free:
                packs.append([])
                free = get_args().packing_length
            packs[-1].append(sample)
            free -= sample.length
        return packs

    @stateless
    def pack_selected_samples(self, samples):
        lengths = torch.tensor([0] + [sample.length for sample in samples], dtype=torch.int32)
        return PackedBatch.from_samples(
            samples,
            images=torch.stack([sample.image for sample in samples]),
            tokens=torch.cat([sample.tokens for sample in samples]),
            cu_lengths=torch.cumsum(lengths, 0, dtype=torch.int32),
        )


def describe(pack):
    bounds = pack.cu_lengths.tolist()
    rows = [
        [key, digest(pack.images[index]), digest(pack.tokens[start:stop])]
        for index, (key, start, stop) in enumerate(zip(pack.__key__, bounds, bounds[1:]))
    ]
    return rows, {}


def main(argv):
    args = parse(argv)
    args.seq_length, args.packing_length, args.image_mean = 6, 14, 0.5
    set_args(args)
    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=args.num_workers)
    dataset = get_train_dataset(
        f"{args.data}/vqa",
        batch_size=None,
        task_encoder=QuestionEncoder(),
        worker_config=worker_config,
        packing_buffer_size=8,
        shuffle_buffer_size=8,
        max_samples_per_sequence=10,
        repeat=False,
    )
    run(get_savable_loader(dataset), args, describe)


if __name__ == "__main__":
    main(sys.argv[1:])
