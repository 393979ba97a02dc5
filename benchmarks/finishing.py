"""`python -m benchmarks.finishing`: what numpy and torch save where they finish images that DALI decodes on the CPU.

The same blocks of JPEGs are decoded by DaliDecoder on the CPU in turns: finished by `finish_images`, and by DALI's own
operators. Prints the CPU time of both per image (the operating system's, of all threads), and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any
from unittest.mock import patch

from benchmarks.tuning_media import jpegs
from energon_dali import DaliDecoder, HorizontalFlip, Normalize, RandomResizedCrop
from energon_dali.decode import Decoded
from energon_dali.decode.dali import dispatch

SIZE = (500, 375)
TARGET_BYTES = 104_000
COUNT = 64
CASES: dict[str, tuple[str, list[Any]]] = {
    "uint8, channels first": ("torchrgb8", []),
    "float32, channels first": ("torchrgb", []),
    "uint8 in crops of 224": ("torchrgb8", [RandomResizedCrop(224), HorizontalFlip()]),
    "float32 in crops of 224, normalised": (
        "torchrgb",
        [RandomResizedCrop(224), HorizontalFlip(), Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))],
    ),
    "uint8 in crops of 224, bicubic": ("torchrgb8", [RandomResizedCrop(224, interpolation="bicubic")]),
}


def main() -> None:
    """Prints a line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    arguments = parser.parse_args()
    files = jpegs(8, SIZE, TARGET_BYTES, threads=2)
    for case, (name, operations) in CASES.items():
        finished, whole = measure(files, name, operations, arguments.repetitions)
        ours, dalis = statistics.median(finished), statistics.median(whole)
        print(
            f"{case:36} finished {ours:5.0f} us ({min(finished):.0f} to {max(finished):.0f}), by DALI {dalis:5.0f} us "
            f"({min(whole):.0f} to {max(whole):.0f}): {ours / dalis:.2f}"
        )


def measure(files: list[bytes], name: Any, operations: list[Any], repetitions: int) -> tuple[list[float], list[float]]:
    """Returns the microseconds of CPU per image, of each repetition: finished by numpy and torch, and by DALI.

    Args:
        files: Encoded images.
        name: `image_decode`.
        operations: Declared operations.
        repetitions: How often each side is measured, after one warm-up.
    """
    decoder = DaliDecoder(image_decode=name, operations=operations, image_decode_device="cpu", max_batch_size=32)
    handles = [decoder.stage("jpg", files[number % len(files)], seed=number) for number in range(COUNT)]
    times: tuple[list[float], list[float]] = ([], [])
    for repetition in range(repetitions + 1):
        for finishes in (True, False):
            dispatch._image_pipeline.cache_clear()
            with patch("energon_dali.decode.dali.images.graph.can_finish", lambda spec, answer=finishes: answer):
                start = time.process_time()
                outcomes = decoder.decode_block(handles)
                taken = (time.process_time() - start) / COUNT * 1e6
            assert all(isinstance(outcome, Decoded) and outcome.route == "dali-cpu" for outcome in outcomes)
            if repetition:
                times[not finishes].append(taken)
    return times


if __name__ == "__main__":
    main()
