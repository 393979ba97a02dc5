"""Checks of what works without a GPU: Python, the packages, and decoding on the CPU."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from energon_dali import __version__
from energon_dali.decode.dali.runtime.device import INSTALL_HINT
from energon_dali.diagnosis.check import Check, Need
from energon_dali.diagnosis.host import Host

PACKAGES = {
    "torch": ("torch", "tensors"),
    "numpy": ("numpy", "arrays"),
    "pillow": ("PIL", "images on the CPU"),
    "av": ("av", "videos and audio on the CPU"),
    "webdataset": ("webdataset", "tar shards"),
    "multi-storage-client": ("multistorageclient", "shards by URL"),
    "pydantic": ("pydantic", "metadatasets"),
}
"""Package: (module, what it is for)."""

_WANTED = {"av": "'av>=17.1,<19'"}
"""What pip is to be told instead of the package's name: no other PyAV is known to do."""

_FOR_URLS = "multi-storage-client"
"""Imported where a shard is named by a URL alone: all else works without it."""

DALI_PACKAGES = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")


def dali_of(host: Host) -> tuple[str, str]:
    """Returns (package, version) of DALI; two empty texts if it is not installed."""
    for package in DALI_PACKAGES:
        version = host.version(package)
        if version is not None:
            return package, version
    return "", ""


def cuda_major_of(host: Host) -> int:
    """Returns the major version of CUDA that the installed DALI is built for; 12 without one."""
    return 13 if dali_of(host)[0] == "nvidia-dali-cuda130" else 12


def check_cpu_path(host: Host) -> Iterator[Check]:
    """Yields the checks of the CPU path.

    Args:
        host: Where the facts come from.
    """
    yield Check(
        name="energon_dali",
        state="ok",
        found=f"{__version__}, Python {platform.python_version()}",
        needed_for="everything",
        need="always",
    )
    yield from _packages(host)
    yield _trial(host, "JPEG, Pillow", ("image", "pil"), "images on the CPU", "pip install --force-reinstall pillow")
    yield _trial(
        host, "H.264, PyAV", ("video", "pyav"), "videos on the CPU", f"pip install --force-reinstall {_WANTED['av']}"
    )
    yield from _dali(host)


def _packages(host: Host) -> Iterator[Check]:
    errors = host.probe("imports", *(module for module, _ in PACKAGES.values()))
    for package, (module, needed_for) in PACKAGES.items():
        version = host.version(package)
        error = errors.error or str(errors.facts.get(module, ""))
        wanted = _WANTED.get(package, package)
        remedy = f"pip install {wanted}"
        need: Need = "optional" if package == _FOR_URLS else "always"
        if version is None and error:  # a module on PYTHONPATH has no version, and works
            yield Check(
                name=package, state="missing", found="not installed", needed_for=needed_for, need=need, remedy=remedy
            )
        elif error:
            yield Check(
                name=package,
                state="broken",
                found=f"{version}: {error}",
                needed_for=needed_for,
                need=need,
                remedy=f"pip install --force-reinstall {wanted}",
            )
        else:
            yield Check(
                name=package, state="ok", found=version or "of unknown version", needed_for=needed_for, need=need
            )


def _dali(host: Host) -> Iterator[Check]:
    needed_for = "DaliDecoder, on the GPU and on the CPU"
    package, version = dali_of(host)
    finding = host.probe("dali")
    if not package and finding.error:
        yield Check(
            name="NVIDIA DALI",
            state="missing",
            found="not installed",
            needed_for=needed_for,
            need="gpu",
            remedy=INSTALL_HINT,
        )
        return
    if finding.error:
        # Installed but broken: every DaliDecoder would try it.
        yield Check(
            name="NVIDIA DALI",
            state="broken",
            found=f"{version}: {finding.error}",
            needed_for=needed_for,
            need="always",
            remedy=f"pip install --force-reinstall {package}, or pip uninstall {package}",
        )
        return
    cuda = f"built for CUDA {cuda_major_of(host)}" if package else "of an unknown package"
    yield Check(
        name="NVIDIA DALI", state="ok", found=f"{finding.facts['version']}, {cuda}", needed_for=needed_for, need="gpu"
    )
    yield _trial(
        host,
        "JPEG, DALI on the CPU",
        ("image", "cpu"),
        "DaliDecoder without a GPU",
        f"pip install --force-reinstall {package or DALI_PACKAGES[1]}",
    )


def _trial(host: Host, name: str, words: tuple[str, str], needed_for: str, remedy: str) -> Check:
    finding = host.probe(*words)
    if finding.error:
        return Check(
            name=name, state="broken", found=finding.error, needed_for=needed_for, need="always", remedy=remedy
        )
    return Check(name=name, state="ok", found="decoded", needed_for=needed_for, need="always")
