"""Opening a metadataset of many datasets on the S3 server. Options: library, leaves (datasets)."""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.candidates.leaves import dataset_path
from benchmarks.candidates.remote_loader import open_loader, task_encoder
from benchmarks.candidates.remote_meter import Meter
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    """Returns the seconds until the loader exists, until the first batch, and the requests for both."""
    local = Path(dataset_path(task))
    path = local.with_name("relative.yaml")
    if not path.exists():  # the bucket has the same folders under another root
        whole = json.loads(local.read_text())
        for reference in whole["splits"]["train"]["blend"]:
            reference["path"] = Path(reference["path"]).name
        path.write_text(json.dumps(whole))
    meter, began = Meter(task), time.perf_counter()
    loader = open_loader(task, task_encoder(task), f"{path.parent.name}/{path.name}")
    opened = time.perf_counter() - began
    requests = meter.requests()
    next(iter(loader))
    return {
        "opening_seconds": opened,
        "opening_requests": requests,
        "first_batch_seconds": time.perf_counter() - began,
        "first_batch_requests": meter.requests(),
    }
