"""`python -m energon_dali.diagnosis.probes NAME [WORD ...]`: finds out one thing and prints it as a line of JSON.

Each probe runs in its own process, because a broken driver or library may end it.
Some of them are small pieces of real work that show whether a path works: one image, one video, one kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from energon_dali.errors import DeviceError

if TYPE_CHECKING:
    from energon_dali.decode.interface import Outcome

WIDTH, HEIGHT = 320, 240
FRAMES = 24


def image(device: str) -> dict[str, Any]:
    """Decodes a JPEG and returns the route and the largest difference from PIL, in levels.

    Args:
        device: "pil", or the `image_decode_device` of DaliDecoder.

    Raises:
        DeviceError: It failed, or was decoded on another route.
    """
    import numpy as np
    from PIL import Image

    from energon_dali.decode import DaliDecoder, SampleDecoder

    stream = io.BytesIO()
    Image.fromarray(_test_image(0)).save(stream, "jpeg", quality=90)
    data = stream.getvalue()
    wanted = np.asarray(SampleDecoder(image_decode="rgb8").decode("jpg", data))
    if device == "pil":
        return {"route": "pil", "difference": int(np.abs(wanted.astype(int) - _test_image(0)).max())}
    decoder = DaliDecoder(image_decode="rgb8", image_decode_device=cast(Any, device))
    (outcome,) = decoder.decode_block([decoder.stage("jpg", data)])
    value = _value(outcome, device)
    return {"route": f"dali-{device}", "difference": int(np.abs(np.asarray(value).astype(int) - wanted).max())}


def video(device: str) -> dict[str, Any]:
    """Decodes a clip of H.264 and returns the route and the mean difference from PyAV, in levels.

    Args:
        device: "pyav", or the `video_decode_device` of DaliDecoder.

    Raises:
        DeviceError: It failed, or was decoded on another route.
    """
    from energon_dali.decode import DaliDecoder, SampleDecoder
    from energon_dali.decode.clips import VideoClips
    from energon_dali.decode.pyav import stage_clips

    spec = VideoClips(1, 8, layout="FHWC")
    data = _test_video()
    wanted = SampleDecoder(av_decode=spec).stage("mp4", data).frames
    if device == "pyav":
        return {"route": "pyav", "difference": 0.0, "frames": len(wanted[0])}
    handle, file = stage_clips("mp4", data, spec, seed=0)
    file.close()
    (outcome,) = DaliDecoder(av_decode=spec, video_decode_device=cast(Any, device)).decode_block([handle])
    frames = _value(outcome, device).frames.cpu()
    difference = float((frames.float() - wanted.float()).abs().mean())
    return {"route": f"dali-{device}", "difference": round(difference, 2), "frames": len(frames[0])}


def kernel() -> dict[str, Any]:
    """Runs a Triton kernel on the current GPU and compares it with the CPU, bit for bit.

    Raises:
        DeviceError: It did not run on Triton, or a bit differs.
    """
    import torch

    from energon_dali.kernels.backend import backend_for, why_no_triton
    from energon_dali.kernels.pad_stack import pad_stack

    images = [torch.from_numpy(_test_image(0)), torch.from_numpy(_test_image(1)[:77, :55].copy())]
    got = pad_stack([one.cuda() for one in images], dtype="bfloat16")
    if backend_for("pad_stack", got.device) != "triton":
        raise DeviceError(f"{why_no_triton()}, so the operation ran as plain PyTorch.")
    if not torch.equal(got.cpu(), pad_stack(images, dtype="bfloat16")):
        raise DeviceError("The kernel's result differs from the CPU's. Install the Triton version that torch requires.")
    return {"route": "triton"}


def _test_image(step: int) -> Any:
    """Returns uint8[240, 320, 3]: smooth colours that move with the step."""
    import numpy as np

    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin((x + 4 * step) / 40 + color) * np.cos(y / (30 + 5 * color)) for color in range(3)]
    return (127.5 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)


def _test_video() -> bytes:
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        track = container.add_stream("libx264", rate=25)
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for step in range(FRAMES):
            container.mux(track.encode(av.VideoFrame.from_ndarray(_test_image(step), format="rgb24")))
        container.mux(track.encode(None))
    return stream.getvalue()


def _value(outcome: Outcome, device: str) -> Any:
    """Returns the decoded value.

    Raises:
        DeviceError: Decoding failed, or took another route.
    """
    from energon_dali.decode.interface import DecodeFailure

    if isinstance(outcome, DecodeFailure):
        raise DeviceError(f"Decoding on the {device} failed: {outcome.reason}")
    if outcome.route not in (f"dali-{device}", f"dali-{device}-hardware"):
        raise DeviceError(f"DALI on the {device} refused it; it was decoded on the route {outcome.route}.")
    return outcome.value


_NVJPEG_BACKEND_HARDWARE = 3  # nvjpegBackend_t of nvjpeg.h
_CUDA_MAJOR_ATTRIBUTE, _CUDA_MINOR_ATTRIBUTE = 75, 76  # CUdevice_attribute: compute capability


def imports(*modules: str) -> dict[str, Any]:
    """Returns {module: error of its import}, "" if there was none."""
    found = {}
    for module in modules:
        try:
            import_module(module)
            found[module] = ""
        except Exception as error:  # a broken installation may raise anything
            found[module] = _one_line(error)
    return found


def torch_build() -> dict[str, Any]:
    """Returns the version of torch, the CUDA it was built for (None: only the CPU), and whether it sees a GPU."""
    import torch

    return {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}


def dali_build() -> dict[str, Any]:
    """Returns the version of DALI and the number of GPUs it sees."""
    from energon_dali.decode.dali.runtime.device import load_backend, load_dali

    try:
        devices = int(load_backend().GetCUDADeviceCount())
    except RuntimeError:  # a driver that is broken or too old
        devices = 0
    return {"version": load_dali().__version__, "devices": devices}


def cuda_devices() -> dict[str, Any]:
    """Returns, from libcuda, the newest CUDA that the driver runs, and each GPU's name, capability and memory.

    Raises:
        DeviceError: The driver returns an error.
    """
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            cuda.cuGetErrorString(code, ctypes.byref(text))
            raise DeviceError(f"{name} failed with {code}: {(text.value or b'').decode()}.")

    call("cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    devices = []
    for ordinal in range(count.value):
        device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(100)
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call("cuDeviceGetName", name, len(name), device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        capability = []
        for attribute in (_CUDA_MAJOR_ATTRIBUTE, _CUDA_MINOR_ATTRIBUTE):
            value = ctypes.c_int()
            call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            capability.append(value.value)
        devices.append({"name": name.value.decode(), "capability": capability, "memory_bytes": memory.value})
    return {"cuda": f"{version.value // 1000}.{version.value % 1000 // 10}", "devices": devices}


def driver_version() -> dict[str, Any]:
    """Returns the version of the driver: from NVML, else the kernel module, else nvidia-smi.

    Raises:
        DeviceError: None of them reports it.
    """
    with contextlib.suppress(Exception):  # not installed, no driver, or one that does not fit
        import pynvml

        pynvml.nvmlInit()
        return {"version": str(pynvml.nvmlSystemGetDriverVersion()), "from": "NVML"}
    module = Path("/sys/module/nvidia/version")
    if module.is_file():
        return {"version": module.read_text(encoding="ascii").strip(), "from": str(module)}
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError("Neither NVML, /sys/module/nvidia nor nvidia-smi finds a driver.") from error
    return {"version": said.split()[0] if said.split() else "unknown", "from": "nvidia-smi"}


def libraries(*names: str) -> dict[str, Any]:
    """Returns {library: path it was loaded from}, "" if it is not found; searches where DALI does.

    Args:
        *names: File names such as "libnppc.so.12".
    """
    return {name: _load(name)[1] for name in names}


def jpeg_engine(library: str) -> dict[str, Any]:
    """Returns the number of hardware JPEG engines, and of cores of each, of the current GPU.

    Args:
        library: Name of nvJPEG, such as "libnvjpeg.so.12".

    Raises:
        DeviceError: nvJPEG is not found or returns an error.
    """
    nvjpeg, _ = _load(library)
    if nvjpeg is None:
        raise DeviceError(f"{library} is not found.")
    handle, engines, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    code = nvjpeg.nvjpegCreateEx(_NVJPEG_BACKEND_HARDWARE, None, None, 0, ctypes.byref(handle))
    if code:  # the GPU has none: nvJPEG refuses the backend
        return {"engines": 0, "cores": 0}
    code = nvjpeg.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(engines), ctypes.byref(cores))
    nvjpeg.nvjpegDestroy(handle)
    if code:
        raise DeviceError(f"nvjpegGetHardwareDecoderInfo failed with {code}.")
    return {"engines": engines.value, "cores": cores.value}


def nvdec() -> dict[str, Any]:
    """Returns what the current GPU decodes: the largest frames by codec, the number of engines, and what keeps it."""
    from energon_dali.decode.video_backends.nvdec import ask_nvdec

    answer = ask_nvdec(0)
    return {
        "codecs": {name: [limits.width[1], limits.height[1]] for name, limits in answer.codecs.items()},
        "engines": max((limits.engines for limits in answer.codecs.values()), default=0),
        "obstacle": answer.obstacle,
    }


def _load(name: str) -> tuple[ctypes.CDLL | None, str]:
    """Returns a library and its path, from NVIDIA's Python packages, the CUDA toolkit or the dynamic linker."""
    paths = [path for folder in sys.path for path in glob(os.path.join(folder, "nvidia", "*", "lib*", name))]
    paths += [path for folder in sys.path for path in glob(os.path.join(folder, "nvidia", "*", name))]
    for path in (*paths, os.path.join("/usr/local/cuda/lib64", name), name):
        if path != name and not os.path.exists(path):
            continue
        try:
            return ctypes.CDLL(path), path
        except OSError:  # the next one may load
            continue
    return None, ""


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main(name: str, *words: str) -> None:
    """Prints what a probe found, or {"error": why it failed}."""
    known: dict[str, Callable[..., dict[str, Any]]] = {
        "imports": imports,
        "torch": torch_build,
        "dali": dali_build,
        "cuda": cuda_devices,
        "driver": driver_version,
        "libraries": libraries,
        "jpeg_engine": jpeg_engine,
        "nvdec": nvdec,
        "image": image,
        "video": video,
        "kernel": kernel,
    }
    try:
        found = known[name](*words)
    except Exception as error:  # the error is the finding
        found = {"error": _one_line(error)}
    print(json.dumps(found), flush=True)
    os._exit(0)  # skips the libraries' exit handlers, which may crash


if __name__ == "__main__":
    main(*sys.argv[1:])
