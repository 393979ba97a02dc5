"""The Triton kernels without a GPU: run by Triton's interpreter, compiled for GPUs, and not loaded by the CPU path.

Each runs in its own process, because Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton has no wheel for this machine"),
]


def run(module: str, *words: str, **settings: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("extent", [["--sample"], pytest.param([], marks=pytest.mark.sweep)], ids=["sample", "whole"])
def test_interpreted_kernels_equal_their_references_bit_for_bit(extent: list[str]) -> None:
    lines = run("tests.kernels.check_triton", "cpu", *extent, TRITON_INTERPRET="1")
    assert [line.split(":")[0] for line in lines] == [
        "color_matrix",
        "color_quantize",
        "merge_patches",
        "operations",
        "pack_tokens",
        "pad_stack",
        "patchify",
    ]
    assert all(line.endswith("comparisons, all equal") for line in lines)


@pytest.mark.parametrize(
    ("extent", "kernels"),
    [(["--sample"], 10), pytest.param([], 20, marks=pytest.mark.sweep)],
    ids=["sample", "whole"],
)
def test_kernels_compile_for_gpus_and_the_cpu_path_loads_no_triton(
    extent: list[str], kernels: int, tmp_path: Path
) -> None:
    lines = run("tests.kernels.check_compile", *extent, TRITON_CACHE_DIR=str(tmp_path))
    assert len(lines) == kernels
