"""Imports torchvision with a torch that its wheel was not built for."""

from __future__ import annotations

import ctypes
import importlib
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.candidates.task import LeftOutError

_kept: list[Any] = []
"""The definitions exist as long as their library object."""
_substitutes: list[ctypes.CDLL] = []
"""Libraries loaded in place of torch's CUDA libraries."""


def import_torchvision_transforms() -> Any:
    """Returns the module torchvision.transforms.v2.

    Where torch is built without CUDA, the wheel of torchvision cannot load its native operators, and importing it
    fails on the two that it describes to torch. The transforms use none of them, so that naming both is enough.
    """
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    return importlib.import_module("torchvision.transforms.v2")


def import_torchvision_io() -> Any:
    """Returns the module torchvision.io, with its native decoders of images.

    The wheel on PyPI is linked to torch's CUDA libraries, which a CPU build of torch does not have. There, libraries of
    these names are put in their place, whose functions end the process: decoding on the CPU calls none of them.

    Raises:
        LeftOutError: The libraries cannot be made, for want of a compiler.
    """
    if torch.version.cuda is None and not _substitutes:
        with tempfile.TemporaryDirectory() as folder:
            for path in _make_cuda_libraries(Path(folder)):
                _substitutes.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
    return importlib.import_module("torchvision.io")


def _make_cuda_libraries(folder: Path) -> list[Path]:
    if not shutil.which("cc") or not shutil.which("nm"):
        raise LeftOutError("torchvision's decoders need torch's CUDA libraries, or cc and nm to make substitutes.")
    spec = find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        raise LeftOutError("torchvision is not installed.")
    native = [str(path) for path in Path(spec.submodule_search_locations[0]).glob("*.so")]
    listed = subprocess.run(["nm", "-D", "--undefined-only", *native], capture_output=True, text=True, check=True)
    # Those of torch are C++ functions in its namespaces; those of the CUDA runtime, with "@", come with the wheel.
    words = {line.split()[-1] for line in listed.stdout.splitlines() if line.split()}
    names = sorted(word for word in words if "@" not in word and ("3c104cuda" in word or "2at4cuda" in word))
    source = folder / "absent.c"
    source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names))
    made = [folder / "libc10_cuda.so", folder / "libtorch_cuda.so"]
    for path in made:
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), str(source)]
        subprocess.run(command, check=True)
    return made
