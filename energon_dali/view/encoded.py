"""What the model sees: the user's task encoder on a sample and on the first batch, run in a process of its own."""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from energon_dali.view.encoder_session import EncoderOptions

REQUEST_SECONDS = 120.0
"""Longest time for a sample or a batch; the first one includes loading the encoder."""
_KEPT = 32


class EncodedViews:
    """Asks a process that runs the task encoder, and keeps the last answers. Thread-safe.

    A view is a dict of plain values: "name", "error", "trace", "note" and "elements". An element has "type_name",
    "keys" and "fields"; a field has "name", "summary", "text", "note", "images", "strips" and "rows". Of an image there
    are "number" (see `image`), "width", "height" and "note"; of a strip "title", "note" and "svg", which is safe to put
    into a page; of a row of tokens "title", "length" and "tokens", each with "id", "text" and "ignored".

    Args:
        options: What is encoded, and how.
        request_seconds: Longest time for a sample or a batch.
    """

    def __init__(self, options: EncoderOptions, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self.options = options
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._views: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._images: dict[str, list[bytes]] = {}
        self._kept = threading.Lock()

    def sample(self, path: str, index: int, split_part: str = "train") -> dict[str, Any]:
        """Returns what the encoder makes of one sample. Errors of the encoder are part of the view.

        Args:
            path: Path of the dataset: that of the options, or one that the metadataset names.
            index: Index of the sample in the whole dataset.
            split_part: Part of the split of the options' path that reads the dataset.
        """
        request = {"what": "sample", "path": path, "index": index, "split_part": split_part}
        return self._view(f"sample-{abs(hash((path, split_part)))}-{index}", request)

    def batch(self) -> dict[str, Any]:
        """Returns the first batch of training. Errors of the encoder are part of the view."""
        return self._view("batch", {"what": "batch"})

    def image(self, view: str, number: int) -> bytes | None:
        """Returns an image of a view as a PNG; None if the view is no longer kept, or has no such image.

        Args:
            view: "name" of the view.
            number: "number" of the image.
        """
        with self._kept:
            images = self._images.get(view, [])
            return images[number] if 0 <= number < len(images) else None

    def reload(self) -> None:
        """Forgets all views and ends the process, so that the next view is made by the encoder as it is then."""
        with self._lock:
            self._end()
            with self._kept:
                self._views.clear()
                self._images.clear()

    close = reload

    def _view(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            with self._kept:
                known = self._views.get(name)
            if known is not None:
                return known
            found = self._ask(request)
            images: list[bytes] = []
            for element in found["elements"]:
                for field in element["fields"]:
                    for image in field["images"]:
                        image["number"] = len(images)
                        images.append(base64.b64decode(image.pop("png")))
            found["name"] = name
            with self._kept:
                self._images[name] = images
                if not found["error"]:
                    self._views[name] = found
                while len(self._images) > _KEPT:
                    oldest = next(iter(self._images))
                    self._images.pop(oldest)
                    self._views.pop(oldest, None)
            return found

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._begin()
            process = self._process
            assert process is not None, "it has just begun"
            assert process.stdin is not None, "it is a pipe"
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._read_line(process, time.monotonic() + self._request_seconds)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self._end()
            return _failure(f"The encoder took longer than {self._request_seconds:g} seconds, and was ended.")
        if not line:
            return _failure(f"The encoder ended its process {self._end()}.")
        found: dict[str, Any] = json.loads(line)
        return found

    def _begin(self) -> None:
        path = [entry for entry in sys.path if entry] + [os.getcwd()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "energon_dali.view.encoder_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(json.dumps(asdict(self.options)).encode() + b"\n")

    @staticmethod
    def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
        """Returns a line of the process; b"" if it ended.

        Raises:
            TimeoutError: The deadline passed.
        """
        assert process.stdout is not None, "it is a pipe"
        parts: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not parts or not parts[-1].endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                part = os.read(process.stdout.fileno(), 1 << 20)
                if not part:
                    return b""
                parts.append(part)
        return b"".join(parts)

    def _end(self) -> str:
        """Ends the process, and returns how it ended."""
        process, self._process = self._process, None
        if process is None:
            return ""
        try:
            code = process.wait(0.5 if process.poll() is None else None)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass
        return f"with {signal.Signals(-code).name}" if code < 0 else f"with status {code}"


def _failure(error: str) -> dict[str, Any]:
    return {"elements": [], "error": error, "trace": "", "note": ""}
