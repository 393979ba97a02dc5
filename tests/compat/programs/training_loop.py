"""What all programs here do with a loader: iterate, write down what came, save and restore the position."""

import argparse
import hashlib
import json
import os

import torch


def parse(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("report")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--stop-after", type=int, default=None)
    parser.add_argument("--state", default=None)
    return parser.parse_args(argv)


def digest(value):
    if isinstance(value, torch.Tensor):
        text = f"{value.dtype}{tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes()
    else:
        text = repr(value).encode()
    return hashlib.sha1(text).hexdigest()[:12]


def run(loader, args, describe):
    """Writes {"samples": [[key, digests...], ...], "batches": [[field, dtype, shape], ...] per batch}."""
    if args.state is not None and os.path.exists(args.state):
        loader.restore_state_rank(torch.load(args.state, weights_only=False))
    samples, batches = [], []
    for number, batch in enumerate(loader, 1):
        rows, tensors = describe(batch)
        samples += rows
        batches.append([[name, str(value.dtype), list(value.shape)] for name, value in tensors.items()])
        if number == args.stop_after:
            torch.save(loader.save_state_rank(), args.state)
            break
    with open(args.report, "w") as file:
        json.dump({"samples": samples, "batches": batches}, file)
