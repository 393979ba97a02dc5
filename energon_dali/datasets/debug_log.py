"""Writes which samples each batch holds, one line of JSON per batch, if `WorkerConfig.worker_log_level` asks for it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.errors import ConfigError
from energon_dali.shards.storage.atomic_file import write_failure

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

_LOG = logging.getLogger("energon_dali.debug")


class DebugLog:
    """The debug log of one rank, which `WorkerConfig.worker_log_level` turns on.

    With {worker_id} in its path, the rank and each of its workers have a file, numbered as in Energon. What the rank
    delivers is written into both its own file and that of the worker which runs the stream.

    Args:
        config: Names the file. Without a file, lines go to the logger `energon_dali.debug`.

    Raises:
        ConfigError: The file cannot be written.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._rank = config.rank
        self._path = None
        self._worker_paths: dict[int, str] = {}
        """By stream, the file of the worker that runs it; empty if workers have no files."""
        self._stopped = False
        if config.worker_debug_path is not None:
            first = config.rank * (config.num_workers + 1)
            self._path = _filled(config.worker_debug_path, first)
            if config.num_workers and _filled(config.worker_debug_path, first + 1) != self._path:
                for stream in config.streams:
                    worker = config.layout.worker_of_stream(stream)[1]
                    self._worker_paths[stream] = _filled(config.worker_debug_path, first + 1 + worker)
            try:
                for path in {self._path, *self._worker_paths.values()}:
                    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                    with open(path, "a", encoding="utf-8"):
                        pass
            except OSError as error:
                raise ConfigError(
                    f"worker_debug_path={config.worker_debug_path!r} cannot be written: {error}. Give a path in a "
                    "folder that this process may write to, or set worker_log_level=0."
                ) from error

    def element(
        self,
        stream: int,
        count: int,
        keys: Any,
        *,
        mode: str | None = None,
        event: Literal["delivered", "logged"] = "delivered",
    ) -> None:
        """Writes one line about an element. If that fails, it warns once and writes no more.

        Args:
            stream: Its stream.
            count: Number of the element in its stream's epoch.
            keys: What `keys_of` returns for it.
            mode: "train" or "val", if known.
            event: Whether the rank delivered it, or a dataset of the tree logs it.
        """
        if self._stopped:
            return
        values = {"rank": self._rank, "stream": stream, "count": count, "event": event, "keys": keys}
        values = values if mode is None else {**values, "mode": mode}
        worker_path = self._worker_paths.get(stream)
        if event == "delivered" or worker_path is None:
            self._write(values, self._path)
        if worker_path is not None:
            self._write({**values, "event": "logged"}, worker_path)

    def failures(self, entry: dict[str, Any]) -> None:
        """Writes one line about all samples that failed so far.

        Args:
            entry: What `loader.failure_report.report_entry` returns.
        """
        self._write(entry, self._path)

    def _write(self, values: dict[str, Any], path: str | None) -> None:
        line = json.dumps(values, default=str)
        if path is None:
            _LOG.info("%s", line)
            return
        # Opened for each line: the log serves to find errors, and must be complete when the process dies.
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            self._stopped = True  # training is more important than its log
            _LOG.warning(
                "The debug log stops here, and training continues without it: could not write %s: %s",
                path,
                write_failure(error),
            )


def _filled(path: str, worker_id: int) -> str:
    return str(path).format(worker_id=worker_id, pid=os.getpid())


def keys_of(element: Any) -> Any:
    """Returns the `__key__` of a batch, sample or dict; None if it has none."""
    return element.get("__key__") if isinstance(element, dict) else getattr(element, "__key__", None)


def mode_of(config: Any) -> Literal["train", "val"] | None:
    """Returns what a tree of datasets is for, as its first source says it; None if none says it.

    Args:
        config: The `config()` of the tree.
    """
    if isinstance(config, Mapping):
        training = config.get("training")
        if isinstance(training, bool):
            return "train" if training else "val"
        config = list(config.values())
    if not isinstance(config, (list, tuple)):
        return None
    return next((mode for mode in map(mode_of, config) if mode is not None), None)
