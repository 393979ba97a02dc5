"""Checks of what works without a GPU: Python, the packages, decoding on the CPU, and the limits of the machine."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import partial

from energon_dali import __version__
from energon_dali.decode.dali.runtime.device import INSTALL_HINT
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.diagnosis.host import Check, Host, Need
from energon_dali.host_cores import divide_cores

PACKAGES = {
    "torch": ("torch", "tensors"),
    "numpy": ("numpy", "arrays"),
    "pillow": ("PIL", "images on the CPU"),
    "av": ("av", "videos and audio on the CPU"),
    "webdataset": ("webdataset", "tar shards"),
    "obstore": ("obstore", "shards by URL"),
    "multi-storage-client": ("multistorageclient", "shards at msc:// and ais://"),
    "pydantic": ("pydantic", "metadatasets"),
}
"""Package: (module, what it is for)."""

_WANTED = {"av": "'av>=17.1,<19'"}
"""Argument for pip in place of the package's name: no other version of PyAV is known to work."""

_FOR_URLS = ("obstore", "multi-storage-client")
"""Imported only for shards that are named by URL."""

FEW_FILES = 4096
"""Shards and blocks take file descriptors: with fewer, jobs with many shards and workers reach the limit."""
LITTLE_SHARED_BYTES = 1 << 30
_CORES_PER_GPU = 4
"""With fewer, a rank has a single thread each for images and videos."""

DALI_PACKAGES = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")


def dali_of(host: Host) -> tuple[str, str]:
    """Returns (package, version) of DALI; two empty strings if it is not installed."""
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
        host: The machine.
    """
    yield Check(
        name="energon_dali",
        state="ok",
        found=f"{__version__}, Python {platform.python_version()}",
        needed_for="everything",
        need="always",
    )
    yield from _packages(host)
    yield trial_check(
        host, "JPEG, Pillow", ("image", "pil"), "images on the CPU", "pip install --force-reinstall pillow"
    )
    yield trial_check(
        host, "H.264, PyAV", ("video", "pyav"), "videos on the CPU", f"pip install --force-reinstall {_WANTED['av']}"
    )
    yield from _dali(host)


def _packages(host: Host) -> Iterator[Check]:
    errors = host.probe("imports", *(module for module, _ in PACKAGES.values()))
    for package, (module, needed_for) in PACKAGES.items():
        version = host.version(package)
        error = errors.error or str(errors.facts.get(module, ""))
        wanted = _WANTED.get(package, package)
        need: Need = "optional" if package in _FOR_URLS else "always"
        check = partial(Check, name=package, needed_for=needed_for, need=need)
        if version is None and error:  # without an error it is a module on PYTHONPATH, which has no version
            yield check(state="missing", found="not installed", remedy=f"pip install {wanted}")
        elif error:
            yield check(state="broken", found=f"{version}: {error}", remedy=f"pip install --force-reinstall {wanted}")
        else:
            yield check(state="ok", found=version or "of unknown version")


def _dali(host: Host) -> Iterator[Check]:
    check = partial(Check, name="NVIDIA DALI", needed_for="DaliDecoder, on the GPU and on the CPU")
    package, version = dali_of(host)
    finding = host.probe("dali")
    if not package and finding.error:
        yield check(state="missing", found="not installed", need="gpu", remedy=INSTALL_HINT)
        return
    if finding.error:
        # Installed but broken: every DaliDecoder would try to use it.
        yield check(
            state="broken",
            found=f"{version}: {finding.error}",
            need="always",
            remedy=f"pip install --force-reinstall {package}, or pip uninstall {package}",
        )
        return
    cuda = f"built for CUDA {cuda_major_of(host)}" if package else "of an unknown package"
    yield check(state="ok", found=f"{finding.facts['version']}, {cuda}", need="gpu")
    yield trial_check(
        host,
        "JPEG, DALI on the CPU",
        ("image", "cpu"),
        "DaliDecoder without a GPU",
        f"pip install --force-reinstall {package or DALI_PACKAGES[1]}",
    )


def trial_check(
    host: Host, name: str, words: tuple[str, ...], needed_for: str, remedy: str, *, need: Need = "always"
) -> Check:
    """Tries something in its own process, and returns what came of it.

    Args:
        host: The machine.
        name: What is tried.
        words: The probe and its arguments.
        needed_for: What needs it.
        remedy: What to do if it failed.
        need: Who needs it. On the GPU, the difference from the CPU's result is named.
    """
    finding = host.probe(*words)
    check = partial(Check, name=name, needed_for=needed_for, need=need)
    if finding.error:
        return check(state="broken", found=finding.error, remedy=remedy)
    difference = finding.facts.get("difference")
    if need != "gpu":
        return check(state="ok", found="decoded")
    return check(state="ok", found="worked" if difference is None else f"decoded, {difference} levels from the CPU's")


def check_limits(host: Host) -> Iterator[Check]:
    """Yields the checks of limits; the package works whatever they find.

    Args:
        host: The machine.
    """
    allowed, present = host.cores()
    quota = _quota(host)
    few = quota is not None and quota < allowed
    yield Check(
        name="CPU cores",
        state="ok",
        needed_for="workers: use no more than there are cores",
        found=f"{allowed} of {present}" + (f", {quota:g} by the quota of the container" if few else ""),
    )
    yield from _threads_of_rank(host)
    files = host.limit("nofile")
    yield Check(
        name="open files",
        state="ok" if files < 0 or files >= FEW_FILES else "broken",
        found=_shown(files),
        needed_for="shards, and blocks on their way from workers",
        remedy=f"ulimit -n 65536 (containers: --ulimit nofile=65536); {FEW_FILES} are enough for most jobs",
    )
    locked = host.limit("memlock")
    yield Check(
        name="locked memory",
        state="ok",
        found="unlimited" if locked < 0 else f"{locked / 2**20:.0f} MiB",
        needed_for="RDMA; this package does not need any",
    )
    shared = host.free_bytes("/dev/shm")
    little = shared is not None and shared < LITTLE_SHARED_BYTES
    yield Check(
        name="/dev/shm",
        state="missing" if shared is None else "broken" if little else "ok",
        found="not there" if shared is None else f"{shared / 2**30:.1f} GiB free",
        needed_for="NCCL, other loaders; this one does not use it",
        remedy="Start containers with --shm-size=8g or --ipc=host if you also use NCCL or a torch DataLoader",
    )


def _threads_of_rank(host: Host) -> Iterator[Check]:
    """Yields how the threads that decode divide the cores of a rank, and what limits these."""
    share, gpu = host.share(), host.shows_gpu()
    few = gpu and share.cores < _CORES_PER_GPU
    yield Check(
        name="cores of a rank",
        state="broken" if few else "ok",
        found=f"{share.cores}: {share.limited_by}",
        needed_for=f"decoding; {_CORES_PER_GPU} or more feed a GPU",
        remedy="Give each rank more cores: docker run --cpus, cpus-per-task of Slurm, or fewer ranks per node.",
    )
    threads = divide_cores(share.cores, gpu=gpu)
    on_host = f"PNG {threads.on_host}, " if gpu else ""
    yield Check(
        name="threads of a rank",
        state="ok",
        found=f"images {threads.images}, videos {threads.videos}, {on_host}PIL and PyAV {threads.fallbacks}",
        needed_for="decoding; DaliDecoder(num_threads=...) overrides it",
    )
    if gpu:
        tuning = DaliTuning()
        device = threads.images * tuning.device_memory_padding >> 20
        pinned = 2 * threads.images * tuning.host_memory_padding >> 20
        yield Check(
            name="reserved by nvJPEG",
            state="ok",
            found=f"{device} MiB on the GPU, {pinned} MiB page-locked",
            needed_for="images; DaliTuning(device_memory_padding=...) overrides it",
        )


def _quota(host: Host) -> float | None:
    """Returns the number of cores that the control group allows (cgroup v2, v1), None if it sets no limit."""
    words = (host.text("/sys/fs/cgroup/cpu.max") or "").split()
    if not words:
        words = [host.text(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    try:
        quota, period = (float(word) for word in words[:2])
    except ValueError:  # "max", or no such files
        return None
    return quota / period if quota > 0 < period else None


def _shown(number: int) -> str:
    return "unlimited" if number < 0 else str(number)
