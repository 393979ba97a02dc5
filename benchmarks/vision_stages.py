"""What the stages of a front end cost per image, on one core: `python -m benchmarks.vision_stages`.

CPU time of decoding by PIL, of resampling by PIL and by torch with what moves pixels between them, of cutting, and of
writing the values. Decoding and PIL's resampling are the least that PIL's pixels can take: the bound of every loader.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from PIL import Image

from benchmarks.candidates.task import Task
from benchmarks.candidates.vision import front_end
from benchmarks.data.recipe import make_dataset
from benchmarks.run import CACHE
from benchmarks.vision import MODELS, PHOTOGRAPHS
from energon_dali.decode.front_ends.resampling import Pixels

Item = TypeVar("Item")


def cpu_milliseconds(work: Callable[[Item], object], items: Sequence[Item], repetitions: int) -> float:
    """Returns the CPU time of a call, the median of the repetitions over all items."""
    found = []
    for _ in range(repetitions):
        began = time.process_time()
        for item in items:
            work(item)
        found.append(1e3 * (time.process_time() - began) / len(items))
    return statistics.median(found)


def decoded(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def main() -> None:
    """Prints a table of stages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shard = min(make_dataset(PHOTOGRAPHS, options.cache).glob("*.tar"))
    with tarfile.open(shard) as archive:
        members = [member for member in archive if member.name.endswith(".jpg")][: options.images]
        files = [file.read() for member in members if (file := archive.extractfile(member))]
    images = [decoded(data) for data in files]
    decoding = cpu_milliseconds(decoded, files, options.repetitions)
    print(f"decoding {decoding:.1f} ms of CPU per image; then, in ms:")
    print(f"{'':12}{'resampled':>12}{'and cut':>10}{'float32':>10}{'bfloat16':>10}{'uint8':>8}")
    for model in MODELS:
        for resampling in ("pil", "torch"):
            times = stages(model, resampling, images, options.repetitions)
            shown = f"{times[0]:12.1f}{times[1]:10.1f}{times[2]:10.1f}{times[3]:10.1f}{times[4]:8.1f}"
            print(f"{model:12}{shown}   by {resampling}")


def stages(model: str, resampling: str, images: Sequence[Image.Image], repetitions: int) -> list[float]:
    """Returns the CPU time of resampling alone, resampling and cutting, and writing float32, bfloat16 and uint8."""
    options = {"model": model, "resampling": resampling}
    task = Task(
        program="vision",
        action="time",
        dataset="",
        output="vision",
        batch_size=1,
        warmup_samples=0,
        samples=0,
        options=options,
    )
    made = front_end(task)
    pairs = [(image, made.layout(image.width, image.height)) for image in images]
    times = [
        cpu_milliseconds(lambda pair: list(made.canvases(Pixels(image=pair[0]), pair[1])), pairs, repetitions),
        cpu_milliseconds(lambda pair: made.arrange(Pixels(image=pair[0]), pair[1]), pairs, repetitions),
    ]
    for dtype in ("float32", "bfloat16", "uint8"):
        writer = made.with_fields(dtype=dtype)
        cut = [(writer.arrange(Pixels(image=image), layout), layout) for image, layout in pairs]
        outs = [writer.finish(*one) for one in cut]  # written once, so that its memory is there
        work = [(*one, out) for one, out in zip(cut, outs, strict=True)]
        times.append(cpu_milliseconds(lambda one, writer=writer: writer.finish(*one), work, repetitions))  # type: ignore[misc]
    return times


if __name__ == "__main__":
    main()
