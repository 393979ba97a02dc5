"""What the model sees: the user's task encoder on a sample and on the first batch, run in a process of its own."""

from __future__ import annotations

import threading

from energon_dali.shards.prepare.worker_pool import NoAnswerError, RequestProcess
from energon_dali.view.catalog import ViewOptions
from energon_dali.view.encoder_session import EncodedView, ViewEncoder

REQUEST_SECONDS = 120.0
"""Longest time for a sample or a batch; the first one includes loading the encoder."""
_KEPT = 32


class EncodedViews:
    """Asks a process that runs the task encoder, and keeps the last answers. Thread-safe.

    In a process of its own, an encoder can neither block nor end the server of the page, whatever it does.

    Args:
        options: What is encoded, and how.
        request_seconds: Longest time for a sample or a batch.
    """

    def __init__(self, options: ViewOptions, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self.options = options
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._process = RequestProcess(ViewEncoder(options))
        self._views: dict[str, EncodedView] = {}
        self._kept = threading.Lock()

    def sample(self, path: str, index: int, split_part: str = "train") -> EncodedView:
        """Returns what the encoder makes of one sample. Errors of the encoder are part of the view.

        Args:
            path: Path of the dataset: that of the options, or one that the metadataset names.
            index: Index of the sample in the whole dataset.
            split_part: Part of the split of the options' path that reads the dataset.
        """
        return self._view(f"sample-{abs(hash((path, split_part)))}-{index}", (path, index, split_part))

    def batch(self) -> EncodedView:
        """Returns the first batch of training. Errors of the encoder are part of the view."""
        return self._view("batch", None)

    def image(self, view: str, number: int) -> bytes | None:
        """Returns an image of a view as a PNG; None if the view is no longer kept, or has no such image.

        Args:
            view: Name of the view.
            number: Number of the image among those of the view.
        """
        with self._kept:
            found = self._views.get(view)
        images = [] if found is None else found.images
        return images[number].png if 0 <= number < len(images) else None

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

    def _view(self, name: str, place: tuple[str, int, str] | None) -> EncodedView:
        with self._lock:
            with self._kept:
                known = self._views.get(name)
            if known is not None and not known.error:
                return known
            try:
                found = self._process.ask(place, self._request_seconds)
            except NoAnswerError as error:
                found = EncodedView(error=f"The encoder {error}.")
            found.name = name
            with self._kept:
                self._views[name] = found
                if len(self._views) > _KEPT:
                    self._views.pop(next(iter(self._views)))
            return found
