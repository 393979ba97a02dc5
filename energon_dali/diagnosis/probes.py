"""`python -m energon_dali.diagnosis.probes NAME [WORD ...]`: finds out one thing and prints it as a line of JSON.

Each probe runs in its own process, because a broken driver or library may end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any

from energon_dali.errors import DeviceError

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
    from energon_dali.diagnosis import trials

    known: dict[str, Callable[..., dict[str, Any]]] = {
        "imports": imports,
        "torch": torch_build,
        "dali": dali_build,
        "cuda": cuda_devices,
        "driver": driver_version,
        "libraries": libraries,
        "jpeg_engine": jpeg_engine,
        "image": trials.image,
        "video": trials.video,
        "kernel": trials.kernel,
    }
    try:
        found = known[name](*words)
    except Exception as error:  # the error is the finding
        found = {"error": _one_line(error)}
    print(json.dumps(found), flush=True)
    os._exit(0)  # skips the libraries' exit handlers, which may crash


if __name__ == "__main__":
    main(*sys.argv[1:])
