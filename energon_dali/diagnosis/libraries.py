"""Checks of the NVIDIA libraries that DALI loads when it needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from energon_dali.diagnosis.cpu_path import cuda_major_of, dali_of
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
NVDEC = "libnvcuvid.so.1"


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
        remedy="It belongs to the driver. In containers set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video; on "
        "Debian and Ubuntu: apt-get install libnvidia-decode-NNN, NNN being the driver's first number.",
    )
    if dali_of(host)[0]:
        yield _jpeg_engine(host, NVJPEG.names(cuda)[0])


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
