"""Counts what a pipeline delivers, so that its hooks know which batch they work on."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.base import WrapperDataset
from energon_dali.datasets.restore_key import Key, expect_name, key_from_json, set_restore_key
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.task_encoder.context import batch_context

NAME = "BatchCountDataset"
_COUNTING = ("MapDataset", "BatchDataset", "GroupBatchDataset", "PackingDataset")
"""Datasets whose keys begin with the number of their input."""


class BatchCountDataset(WrapperDataset[Any]):
    """Gives the elements of a pipeline as they are, and tells the hooks below the number of the one they work on.

    That is what they read as `current_batch_index`: how many elements this stream of the pipeline has given before,
    times the number of streams, plus the number of the stream. A restore key gets the number in front, as
    ("BatchCountDataset", number, *key), where it is not the number that the key begins with.

    Args:
        dataset: The stages of a pipeline, up to its batches.
    """

    def describe(self) -> str:
        return self.dataset.describe()  # in a tree it is no stage of its own: it does nothing to an element

    def __str__(self) -> str:
        return str(self.dataset)

    def config(self) -> dict[str, Any]:
        """Returns the config of the dataset below: counting changes nothing."""
        return self.dataset.config()

    def inner_config(self) -> dict[str, Any]:
        """Returns the config of the dataset below."""
        return self.dataset.inner_config()

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _CountIterator(self, context)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key, made again; its hooks see the same `current_batch_index` as at first.

        Raises:
            StateError: The key is not of this dataset.
        """
        number, key = _divided(restore_key)
        if number is None:
            return self.dataset.restore_sample(key)
        with batch_context(number):
            return set_restore_key(self.dataset.restore_sample(key), _joined(number, key))


def _divided(key: Any) -> tuple[int | None, Key]:
    """Returns (the number of the batch, None if no hook asks for it; the key of the dataset below)."""
    if not isinstance(key, (tuple, list)):
        return None, key  # the dataset below refuses it
    if key and key[0] == NAME:
        key = expect_name(key, NAME)
        return key[1], key[2:]
    return _own_number(key), key_from_json(key)


def _joined(number: int, key: Key) -> Key:
    """Returns the key of an element by its number and the key of the dataset below."""
    return key if _own_number(key) in (number, None) else (NAME, number, *key)


def _own_number(key: Any) -> int | None:
    """Returns the number that a key begins with; None for samples that no hook has seen."""
    return key[1] if len(key) > 1 and key[0] in _COUNTING and isinstance(key[1], int) else None


class _CountIterator(StreamIterator[Any]):
    def __init__(self, dataset: BatchCountDataset, context: StreamContext) -> None:
        self._inner = dataset.dataset.open(context)
        self._stream = context.stream
        self._num_streams = dataset.worker_config.layout.num_streams
        self._given = 0
        self._key: Key = ()

    def __next__(self) -> Any:
        number = self._given * self._num_streams + self._stream
        with batch_context(number):
            element = next(self._inner)
        self._given += 1
        key = self._inner.last_key(element)
        self._key = _joined(number, key)
        return element if self._key is key else set_restore_key(element, self._key)

    def last_key(self, element: Any) -> Key:
        return self._key

    def read_ahead(self, count: int) -> None:
        self._inner.read_ahead(count)

    def state_dict(self) -> State:
        return {"given": self._given, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._given = count_of(state, "given")
        self._inner.load_state_dict(state_of(state))

    def close(self) -> None:
        self._inner.close()
