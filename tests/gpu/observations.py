"""Writes what the GPU tests observe to one JSON file, the source of docs/gpu-evidence.md."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, describe_versions


class Observations:
    """The observations of one test. Without GPU_OBSERVATIONS, they are only checked to be plain values.

    Args:
        device: "gpu", or "cpu" for a dry run.
        test: Name of the test.
    """

    def __init__(self, device: str, test: str) -> None:
        self._device, self._test = device, test

    def __call__(self, **facts: Any) -> None:
        """Adds facts, which must be plain values, to the observations of the test."""
        json.dumps(facts)
        path = os.environ.get("GPU_OBSERVATIONS")
        if path is None:
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # tests may run in several processes
            file.seek(0)
            report = json.loads(file.read() or "{}")
            if "machine" not in report:  # only once: nvidia-smi may take a second
                report["machine"] = describe_machine() | _describe_gpu(self._device)
                report["versions"] = describe_versions()
            report["device"] = self._device
            report.setdefault("seen", {}).setdefault(self._test, {}).update(facts)
            file.seek(0)
            file.truncate()
            file.write(json.dumps(report, indent=1) + "\n")


def _describe_gpu(device: str) -> dict[str, Any]:
    if device != "gpu":
        return {"gpu": None}
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "gpu_capability": f"{properties.major}.{properties.minor}",
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
    }
