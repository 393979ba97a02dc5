"""What processors without a PIL backend make of a few images, recorded, so that tests need no torchvision.

    python -m tests.decode.front_ends.torchvision_records

writes the records again, with torchvision installed as by `make test-front-ends`. Values are recorded as weighted sums,
because torch resamples bytes by other instructions on other CPUs.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from energon_dali.decode.front_ends.registry import read_processor

PATH = Path(__file__).parent / "torchvision_records.json"
_SIZES = ((61, 40), (30, 175), (200, 128))


def images() -> list[Image.Image]:
    """Returns the images: smooth ones, as photographs are."""
    draw = np.random.default_rng(11)
    small = [Image.fromarray(draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)) for _ in _SIZES]
    return [image.resize(size, Image.Resampling.BICUBIC) for image, size in zip(small, _SIZES, strict=True)]


def summary(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns shape, dtype and contents of each tensor of a batch: a weighted mean of floats, integers themselves."""
    return {key: _summary(value) for key, value in batch.items() if isinstance(value, torch.Tensor)}


def _summary(value: torch.Tensor) -> list[Any]:
    head = [list(value.shape), str(value.dtype)]
    if value.dtype.is_floating_point:
        weights = torch.linspace(-1, 1, value.numel(), dtype=torch.float64)
        flat = value.double().flatten()
        return [*head, float(flat.mean()), float((flat * weights).mean())]
    return [*head, int(value.long().sum()), int((value.long().flatten() * torch.arange(value.numel())).sum())]


def _records() -> Iterator[dict[str, Any]]:
    from tests.decode.front_ends.cases import CASES

    for case in (case for case in CASES if case.torchvision):
        draw = random.Random(7)
        for number, processor in enumerate((case.published(), case.make(draw), case.make(draw))):
            run = case.call or (lambda made, given: dict(made(given, return_tensors="pt")))
            inner = getattr(processor, "image_processor", processor)
            outer = read_processor(processor, "image").outer if inner is not processor else {}
            config = {**{name: outer[name] for name in outer if name != "images_kwargs"}}
            config["image_processor"] = json.loads(inner.to_json_string())
            made = [run(processor, [image]) for image in images()]
            record: dict[str, Any] = {"case": case.name, "config": config, "fields": case.fields(processor)}
            # Published configurations make large batches, whose texts say enough here.
            record["batches"] = [] if number == 0 else [summary(one) for one in made]
            if case.texts is not None:
                record["texts"] = [case.texts(processor, one, 1)[0] for one in made]
                record["texts"] = [[len(text), sum(map(ord, text))] for text in record["texts"]]
            yield record


def main() -> int:
    """Writes the records; returns the exit status."""
    from tests.decode.front_ends.video_sweep import import_torchvision

    if not import_torchvision():
        print("torchvision is missing; `make test-front-ends` installs it")
        return 1
    lines = [json.dumps(record) for record in _records()]
    PATH.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} records in {PATH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
