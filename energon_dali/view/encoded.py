"""What the model sees: the user's task encoder on a sample and on the first batch, run in a process of its own."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from energon_dali.view.encoder_session import answer_views
from energon_dali.view.line_process import LineProcess, ProcessEndedError
from energon_dali.view.options import ViewOptions

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

    def __init__(self, options: ViewOptions, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self.options = options
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._process = LineProcess(answer_views, asdict(options))
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
        self._process.interrupt()  # an encoder that takes too long must not be waited for
        self._forget()

    def close(self) -> None:
        """Ends the process for good, whatever it encodes."""
        self._process.close()
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._process.end()
            with self._kept:
                self._views.clear()
                self._images.clear()

    def _view(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            with self._kept:
                known = self._views.get(name)
            if known is not None:
                return known
            try:
                found: dict[str, Any] = self._process.ask(request, self._request_seconds)
            except ProcessEndedError as error:
                found = {"elements": [], "error": f"The encoder {error}.", "trace": "", "note": ""}
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
