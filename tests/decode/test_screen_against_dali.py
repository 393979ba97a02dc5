"""DALI's parser accepts every file that passes the screening, and a process that decodes it survives.

Without the screening DALI 2.4 ends the process with SIGSEGV when its parser refuses a file in a batch of 32 or more.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random

import pytest

from energon_dali.decode import ImageHeader, screen_image
from energon_dali.errors import DecodeError
from tests.decode.mutations import mutate
from tests.decode.sample_images import broken_images, sample_images


def ask_dali(what: str, files: list[bytes]) -> list[str]:
    """Returns the lines that a DALI process prints about the files."""
    process = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("dali_process.py")), what],
        input=b"".join(struct.pack("<I", len(data)) + data for data in files),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=100,
        check=True,
    )
    return process.stdout.decode().splitlines()


def passed_on(files: list[bytes], max_pixels: int = 100_000_000) -> list[tuple[bytes, ImageHeader]]:
    """Returns the files that the screening would pass to DALI; anything but a DecodeError fails the test."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns about odd metadata, which does not matter here
        for data in files:
            try:
                header = screen_image(data, max_pixels=max_pixels)
            except DecodeError:
                continue
            if header.dali_decodable:
                found.append((data, header))
    return found


def mutated(seed: int, count: int) -> list[bytes]:
    """Returns broken files of all formats."""
    random = Random(seed)
    good = [data for data in sample_images().values() if len(data) < 60_000]
    return [mutate(good[number % len(good)], random) for number in range(count)]


@pytest.mark.parametrize(
    ("seed", "count"),
    [(2, 1_000), *(pytest.param(seed, 12_000, marks=pytest.mark.sweep) for seed in range(2))],
)
def test_the_parser_takes_what_is_passed_on_and_sees_the_same_size(seed: int, count: int) -> None:
    files = passed_on([*sample_images().values(), *broken_images().values(), *mutated(seed, count)])
    assert len(files) > count // 12, "too few files are passed on to show anything"
    lines = ask_dali("parse", [data for data, _ in files])
    differing = [
        (header, line)
        for (_, header), line in zip(files, lines, strict=True)
        if line != f"{header.width} {header.height}"
    ]
    assert not differing


@pytest.mark.parametrize("count", [1_000, pytest.param(8_000, marks=pytest.mark.sweep)])
def test_a_process_survives_what_is_passed_on(count: int) -> None:
    files = passed_on(mutated(100, count), max_pixels=1_000_000)
    assert len(files) > count // 8
    assert ask_dali("decode", [data for data, _ in files[: 24 * count // 100]]) == ["done"]
