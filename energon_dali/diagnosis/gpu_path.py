"""Checks of the GPU path: driver, GPU, libraries, Triton, and an image, a video and a kernel on the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from energon_dali.diagnosis.cpu_path import cuda_major_of, dali_of, trial_check
from energon_dali.diagnosis.host import Check, Finding, Host
from energon_dali.diagnosis.libraries import check_libraries

MIN_DRIVER = {12: "525.60", 13: "580"}
"""Oldest driver that DALI's packages for a major version of CUDA work with."""

_gpu = partial(Check, needed_for="the GPU path", need="gpu")


def check_gpu_path(host: Host) -> Iterator[Check]:
    """Yields the checks of the GPU path; without a visible GPU, those that need one are left out.

    Args:
        host: The machine.
    """
    has_gpu = host.shows_gpu()
    if not has_gpu:
        yield _gpu(
            name="GPU",
            state="missing",
            found="none visible",
            remedy="On a machine with an NVIDIA GPU: install the driver, start containers with --gpus all, and let "
            "CUDA_VISIBLE_DEVICES name the GPU or be unset. On a machine without one there is nothing to do.",
        )
    else:
        yield from _driver(host)
    yield _torch(host, has_gpu)
    if dali_of(host)[0]:
        yield from check_libraries(host, has_gpu)
    yield _triton(host)
    if has_gpu:
        yield from _trials(host)


def _driver(host: Host) -> Iterator[Check]:
    wanted = MIN_DRIVER[cuda_major_of(host)]
    remedy = (
        f"Install NVIDIA's driver {wanted} or newer for this kernel (nvidia-smi must list the GPU); in containers it "
        "comes from the host: start them with --gpus all."
    )
    version, cuda = host.probe("driver"), host.probe("cuda")
    found = version.error or f"{version.facts['version']} (from {version.facts['from']})"
    too_old = not version.error and _numbers(version.facts["version"]) < _numbers(wanted)
    yield _gpu(
        name="driver",
        state="broken" if version.error or too_old else "ok",
        found=f"{found}, older than {wanted}" if too_old else found,
        remedy=remedy,
    )
    if cuda.error:
        yield _gpu(name="libcuda.so.1", state="broken", found=cuda.error, remedy=remedy)
        return
    yield _gpu(name="libcuda.so.1", state="ok", found=f"runs CUDA up to {cuda.facts['cuda']}")
    for ordinal, device in enumerate(cuda.facts["devices"]):
        major, minor = device["capability"]
        yield _gpu(
            name=f"GPU {ordinal}",
            state="ok",
            found=f"{device['name']}, compute capability {major}.{minor}, {device['memory_bytes'] / 2**30:.0f} GiB",
        )
    if not cuda.facts["devices"]:
        yield _gpu(
            name="GPU",
            state="missing",
            found="the driver lists none",
            remedy="Let CUDA_VISIBLE_DEVICES name a GPU of this machine, or unset it.",
        )


def _torch(host: Host, has_gpu: bool) -> Check:
    check = partial(Check, name="CUDA in torch", needed_for="tensors on the GPU", need="gpu")
    finding = host.probe("torch")
    if finding.error:
        return check(state="broken", found=finding.error, remedy="pip install --force-reinstall torch")
    cuda = finding.facts["cuda"]
    if cuda is None:
        return check(
            state="missing",
            found=f"{finding.facts['version']} is built only for the CPU",
            remedy="pip uninstall torch, then pip install torch without a constraint or index of CPU builds; "
            "https://pytorch.org names the index of each CUDA",
        )
    if has_gpu and not finding.facts["available"]:
        return check(
            state="broken",
            found=f"built for CUDA {cuda}, but finds no usable GPU",
            remedy=f"Install a driver that runs CUDA {cuda}, or a torch built for the CUDA of this driver.",
        )
    return check(state="ok", found=f"runtime {cuda}")


def _triton(host: Host) -> Check:
    check = partial(Check, name="Triton", needed_for="the kernels (without it plain PyTorch runs, slower)")
    version = host.version("triton") or host.version("pytorch-triton")
    pins = [match[1] for line in host.requirements("torch") if (match := re.match(r"triton\s*\(?==\s*([\w.]+)", line))]
    pinned = pins[0] if pins else ""
    wanted = f"pip install triton=={pinned}" if pinned else "pip install triton"
    if version is None:
        return check(state="missing", found="not installed", remedy=wanted)
    error = host.probe("imports", "triton")
    said = error.error or str(error.facts.get("triton", ""))
    if said:
        return check(state="broken", found=f"{version}: {said}", remedy=f"{wanted} --force-reinstall")
    if pinned and version.split("+")[0] != pinned:
        return check(state="broken", found=f"{version}, but torch requires {pinned}", remedy=wanted)
    return check(state="ok", found=f"{version}, as torch requires" if pinned else version)


def _trials(host: Host) -> Iterator[Check]:
    above = "First fix what the lines above report"
    yield _trial(
        host.probe("image", "gpu"), "JPEG, GPU", "images on the GPU", f"{above}; then report this line as it is."
    )
    yield _trial(
        host.probe("video", "gpu"),
        "H.264, NVDEC",
        "videos on the GPU",
        f"{above} (libnvcuvid.so.1 most of all); some GPUs have no NVDEC. Until then PyAV decodes videos.",
    )
    yield _trial(
        host.probe("kernel"),
        "Triton kernel",
        "padding, patches and colours on the GPU",
        f"{above}; Triton needs a C compiler (apt-get install gcc) and the Python headers.",
    )


def _trial(finding: Finding, name: str, needed_for: str, remedy: str) -> Check:
    difference = finding.facts.get("difference")
    found = "worked" if difference is None else f"decoded, {difference} levels from the CPU's"
    return trial_check(finding, name, needed_for, remedy, need="gpu", success=found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
