"""Supervised tuning on chats: the factory of `chatml_dataset`, labels that mask the user's turns, padded batches."""

import sys
from dataclasses import dataclass

import torch
from chatml_dataset import ChatMLSample
from megatron.energon import (
    Batch,
    DefaultTaskEncoder,
    WorkerConfig,
    batch_list,
    batch_pad_stack,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.epathlib import EPath
from training_loop import digest, parse, run


@dataclass
class ChatBatch(Batch):
    tokens: torch.Tensor
    labels: torch.Tensor
    lengths: list
    images: list


class ChatEncoder(DefaultTaskEncoder[ChatMLSample, dict, ChatBatch, dict]):
    @stateless
    def encode_sample(self, sample):
        tokens, labels = [], []
        for turn in sample.conversation:
            ids = [sum(word.encode()) % 997 for word in turn["content"].split()]
            tokens += ids
            labels += ids if turn["role"] == "assistant" else [-100] * len(ids)
        return {
            "__key__": sample.__key__,
            "__restore_key__": sample.__restore_key__,
            "tokens": torch.tensor(tokens),
            "labels": torch.tensor(labels),
            "images": sample.imgs,
        }

    @stateless
    def batch(self, samples):
        return ChatBatch(
            __key__=[sample["__key__"] for sample in samples],
            __restore_key__=tuple(sample["__restore_key__"] for sample in samples),
            __subflavors__=None,
            __sources__=None,
            tokens=batch_pad_stack([sample["tokens"] for sample in samples]),
            labels=batch_pad_stack([sample["labels"] for sample in samples]),
            lengths=batch_list([len(sample["tokens"]) for sample in samples]),
            images=batch_list([sample["images"] for sample in samples]),
        )


def describe(batch):
    rows = [
        [key, digest(tokens[:length]), digest(labels[:length]), [digest(image) for image in images]]
        for key, tokens, labels, length, images in zip(
            batch.__key__, batch.tokens, batch.labels, batch.lengths, batch.images
        )
    ]
    return rows, {}


def main(argv):
    args = parse(argv)
    dataset = get_train_dataset(
        EPath(args.data) / "chat",
        batch_size=3,
        task_encoder=ChatEncoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=args.num_workers),
        shuffle_buffer_size=5,
        max_samples_per_sequence=None,
        repeat=False,
    )
    run(get_savable_loader(dataset), args, describe)


if __name__ == "__main__":
    main(sys.argv[1:])
