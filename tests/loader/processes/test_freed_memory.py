"""A process that keeps freed memory takes fewer fresh pages for the buffers that follow."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from energon_dali.loader.processes.server import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "keep" else None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(b"x") * (48 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(mode: str, **variables: str) -> tuple[str, int]:
    """Returns what keep_freed_memory returned, and the pages that 10 buffers of 48 MiB took (glibc keeps 32)."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    kept, pages = done.stdout.split()
    return kept, int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_used_again() -> None:
    pages = (48 << 20) // 4096
    kept, kept_pages = run("keep")
    _, fresh_pages = run("default")
    assert kept == "True"
    assert kept_pages < 3 * pages < 8 * pages < fresh_pages


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_user_are_left_alone(name: str) -> None:
    assert run("keep", **{name: "131072" if name.startswith("M") else "glibc.malloc.check=0"})[0] == "False"
