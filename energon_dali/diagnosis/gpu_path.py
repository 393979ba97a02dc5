"""Checks of the GPU path: driver, GPU, the NVIDIA libraries that DALI loads when it needs them, Triton, and an image, a
video and a kernel on the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from energon_dali.decode.dali.runtime.device import MENDED_BY
from energon_dali.decode.video_backends.nvdec import LIBRARY as NVDEC
from energon_dali.decode.video_backends.nvdec import REMEDY
from energon_dali.diagnosis.cpu_path import cuda_major_of, dali_of, trial_check
from energon_dali.diagnosis.host import Check, Host, Need


@dataclass(frozen=True, slots=True)
class Library:
    """Shared libraries that one package contains, by major version of CUDA."""

    title: str
    """Its usual name."""
    stems: tuple[str, ...]
    """Names of the files, without version."""
    versions: tuple[int, int]
    """Versions of the files for CUDA 12 and 13."""
    packages: tuple[str, str]
    """Packages for CUDA 12 and 13."""
    needed_for: str
    """What does not work without it."""
    need: Need = "gpu"
    """Which path does not work without it."""

    def names(self, cuda: int) -> list[str]:
        """Returns the names of the files for a major version of CUDA, 12 or 13."""
        return [f"{stem}.so.{self.versions[cuda == 13]}" for stem in self.stems]


LIBRARIES = (
    Library("nvImageCodec", ("libnvimgcodec",), (0, 0), ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"), "images"),
    Library("nvJPEG", ("libnvjpeg",), (12, 13), ("nvidia-nvjpeg-cu12", "nvidia-nvjpeg"), "JPEG on the GPU"),
    Library(
        "nvJPEG2000",
        ("libnvjpeg2k",),
        (0, 0),
        ("nvidia-nvjpeg2k-cu12", "nvidia-nvjpeg2k-cu13"),
        "JPEG 2000 on the GPU",
        "optional",
    ),
    Library(
        "nvTIFF", ("libnvtiff",), (0, 0), ("nvidia-nvtiff-cu12", "nvidia-nvtiff-cu13"), "TIFF on the GPU", "optional"
    ),
    Library(
        "NPP",
        ("libnppc", "libnppicc", "libnppig"),
        (12, 13),
        ("nvidia-npp-cu12", "nvidia-npp"),
        "colours and sizes of videos on the GPU",
        "optional",
    ),
    Library(
        "cuFFT", ("libcufft",), (11, 12), ("nvidia-cufft-cu12", "nvidia-cufft"), "DALI's audio operators", "optional"
    ),
)
"""From DALI's packages or those of CUDA. If NPP is missing, the trial shows whether videos can be decoded."""

NVJPEG = LIBRARIES[1]


def check_libraries(host: Host, has_gpu: bool) -> Iterator[Check]:
    """Yields a check for each library, and for the hardware that two of them use: NVDEC and the JPEG engine.

    Args:
        host: The machine.
        has_gpu: Whether there is a GPU to try them on.
    """
    cuda = cuda_major_of(host)
    finding = host.probe("libraries", *(name for library in LIBRARIES for name in library.names(cuda)), NVDEC)
    for library in LIBRARIES:
        lacking = [name for name in library.names(cuda) if not finding.facts.get(name)]
        first = library.names(cuda)[0]
        yield Check(
            name=library.title,
            state="missing" if lacking else "ok",
            found=finding.error or (f"no {', '.join(lacking)}" if lacking else _short(str(finding.facts[first]))),
            needed_for=library.needed_for,
            need=library.need,
            remedy=f"pip install {library.packages[cuda == 13]}; or add the folder that holds {first} to "
            "LD_LIBRARY_PATH",
        )
    if not has_gpu:
        return
    path = str(finding.facts.get(NVDEC, ""))
    yield Check(
        name="NVDEC",
        state="ok" if path else "missing",
        found=finding.error or _short(path) or f"no {NVDEC}",
        needed_for="videos on the GPU",
        need="gpu",
        remedy=REMEDY,
    )
    if path:
        yield _nvdec(host)
    if dali_of(host)[0]:
        yield _jpeg_engine(host, NVJPEG.names(cuda)[0])


def _nvdec(host: Host) -> Check:
    finding = host.probe("nvdec")
    codecs: dict[str, list[int]] = finding.facts.get("codecs", {})
    obstacle = finding.error or str(finding.facts.get("obstacle", ""))
    found = ", ".join(f"{name} {width}x{height}" for name, (width, height) in codecs.items())
    if not finding.facts.get("codecs", {}).get("av1"):
        found += ", no AV1"
    return Check(
        name="codecs of NVDEC",
        state="broken" if obstacle else "ok",
        found=obstacle or f"{finding.facts['engines']} engines: {found}",
        needed_for="videos on the GPU; PyAV decodes others",
        need="gpu",
        remedy=REMEDY,
    )


def _jpeg_engine(host: Host, library: str) -> Check:
    finding = host.probe("jpeg_engine", library)
    needed_for = "baseline JPEG without CUDA cores (A100, H100 and newer have it)"
    check = partial(Check, name="hardware JPEG engine", needed_for=needed_for)
    if finding.error:
        remedy = "Fix nvJPEG above; until then CUDA cores decode."
        return check(state="broken", found=finding.error, remedy=remedy)
    engines, cores = finding.facts["engines"], finding.facts["cores"]
    if not engines:
        remedy = "There is nothing to do: CUDA cores decode instead."
        return check(state="missing", found="this GPU has none", remedy=remedy)
    return check(state="ok", found=f"{engines} with {cores} cores each")


def _short(path: str) -> str:
    """Returns the end of a path, which says more than its beginning."""
    parts = path.split("/")
    return path if len(parts) < 6 else "/".join(["...", *parts[-4:]])


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
        yield _compiler(host)
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
            remedy=f"Install a driver that runs CUDA {cuda}, or a torch built for the CUDA of this driver. {MENDED_BY}",
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


def _compiler(host: Host) -> Check:
    lacking = host.lacks_to_compile()
    return Check(
        name="C compiler and headers",
        state="missing" if lacking else "ok",
        found=f"no {' and no '.join(lacking)}" if lacking else "found",
        needed_for="the kernels: Triton builds its link to the driver with them",
        remedy="apt-get install gcc python3-dev (of this Python's version), or dnf install gcc python3-devel",
    )


def _trials(host: Host) -> Iterator[Check]:
    above = "First fix what the lines above report"
    trial = partial(trial_check, host, need="gpu")
    yield trial("JPEG, GPU", ("image", "gpu"), "images on the GPU", f"{above}; then report this line as it is.")
    yield trial(
        "H.264, NVDEC",
        ("video", "gpu"),
        "videos on the GPU",
        f"{above} (libnvcuvid.so.1 most of all); some GPUs have no NVDEC. Until then PyAV decodes videos.",
    )
    yield trial(
        "Triton kernel",
        ("kernel",),
        "padding, patches and colours on the GPU",
        f"{above}; Triton needs a C compiler (apt-get install gcc) and the Python headers.",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
