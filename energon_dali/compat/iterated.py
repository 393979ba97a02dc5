"""Datasets of users that have Energon's methods alone: `__iter__`, lengths, `save_state` and `restore_state`.

Such a class says how one worker iterates. For each stream it is copied, with each dataset that it reads from replaced
by one stream of that dataset. The copy is what iterates, and what saves and restores its state.

Importing this module lets classes that derive from `SavableDataset` be such datasets.
"""

from __future__ import annotations

import base64
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from energon_dali.datasets.base import PassThroughDataset
from energon_dali.datasets.base import SavableDataset as SavableDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, StateError
from energon_dali.shards.documents.state_entries import DamagedStateError, flag_of, list_of, plain, state_of
from energon_dali.task_encoder.context import running_stream

RUNS = "_stream_copy"
"""Attribute of a copy that iterates one stream; its value is the number of the stream."""
_ADAPTED = "_adapted_methods"
_KIND = "~kind"
"""Key of a dict that stands for a value of another kind."""


def adapt(kind: type[SavableDataset[Any]]) -> None:
    """Gives a class that defines `__iter__` instead of `open` the methods that it lacks.

    Args:
        kind: A new subclass.
    """
    base: Any = SavableDataset
    own = dict(vars(kind))
    if kind.open is base.open:
        if "__iter__" not in own:
            return
        kind.open = _open  # type: ignore[method-assign]
        setattr(kind, _ADAPTED, True)
        if kind.children is base.children:
            kind.children = property(_children)  # type: ignore[assignment]
            kind.with_children = _with_children  # type: ignore[assignment]
        if kind.len_stream is base.len_stream:
            kind.len_stream = _len_stream  # type: ignore[method-assign]
        for name in ("save_state", "restore_state"):  # of a base class that has no __iter__
            if getattr(kind, name) is not getattr(base, name):
                own.setdefault(name, getattr(kind, name))
    elif not getattr(kind, _ADAPTED, False):
        return
    # Outside of a stream's copy, these mean the iteration of all streams of the rank.
    for name, outside in (
        ("__iter__", base.__iter__),
        ("save_state", base.state_dict),
        ("restore_state", base.load_state_dict),
    ):
        if name in own:
            setattr(kind, name, _in_copy(own[name], outside))


def _in_copy(method: Callable[..., Any], outside: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        return (method if RUNS in self.__dict__ else outside)(self, *args)

    return call


def own_state(dataset: Any) -> State:
    """Returns the class and the fields of a stream's copy that `_savable_fields` names."""
    state: State = {"__class__": type(dataset).__name__}
    for name in dataset._savable_fields:
        value = getattr(dataset, name)
        state[name] = value.save_state() if hasattr(value, "save_state") else copy.deepcopy(value)
    return state


def restore_own_state(dataset: Any, state: State) -> None:
    """Sets the fields of a stream's copy that `_savable_fields` names.

    Raises:
        StateError: The state is of another class, or lacks a field.
    """
    if not isinstance(state, dict) or state.get("__class__") != type(dataset).__name__:
        raise StateError(f"This is not a state of {type(dataset).__name__}: restore one that this dataset saved.")
    for name in dataset._savable_fields:
        if name not in state:
            raise StateError(f"The state of {type(dataset).__name__} lacks the field {name}.")
        value = getattr(dataset, name)
        if hasattr(value, "restore_state"):
            value.restore_state(state[name])
        else:
            setattr(dataset, name, state[name])


def _sources(dataset: SavableDataset[Any]) -> list[tuple[str, Any]]:
    """Returns the attributes of a dataset that hold other datasets, by name."""
    found = []
    for name, value in vars(dataset).items():
        several = isinstance(value, (list, tuple)) and len(value) > 0
        if isinstance(value, SavableDataset) or (several and all(isinstance(one, SavableDataset) for one in value)):
            found.append((name, value))
    return found


def _children(self: SavableDataset[Any]) -> tuple[SavableDataset[Any], ...]:
    """The datasets that this one reads from: those that its attributes hold."""
    unique: dict[int, SavableDataset[Any]] = {}
    for _, value in _sources(self):
        for one in value if isinstance(value, (list, tuple)) else (value,):
            unique.setdefault(id(one), one)
    return tuple(unique.values())


def _with_children(self: SavableDataset[Any], *children: SavableDataset[Any]) -> SavableDataset[Any]:
    """Returns a copy that reads from other datasets."""
    twin = copy.copy(self)
    new = dict(zip(map(id, _children(self)), children, strict=True))
    for name, value in _sources(self):
        several = isinstance(value, (list, tuple))
        setattr(twin, name, type(value)(new[id(one)] for one in value) if several else new[id(value)])
    return twin


def _open(self: SavableDataset[Any], context: StreamContext) -> StreamIterator[Any]:
    """Returns an iterator over a copy of this dataset that iterates one stream."""
    return _CopyIterator(self, context)


def _len_stream(self: SavableDataset[Any], stream: int) -> int:
    """Returns what `len_worker` returns for one stream."""
    if type(self).len_worker is SavableDataset.len_worker:
        return sum(child.len_stream(stream) for child in self.children)
    twin, _ = _stream_copy(self, StreamContext(stream))
    with running_stream(self.worker_config, stream):
        return int(twin.len_worker())


def _stream_copy(dataset: SavableDataset[Any], context: StreamContext) -> tuple[Any, list[Any]]:
    """Returns (the copy of a dataset that iterates one stream, the streams that it reads from).

    Raises:
        ConfigError: An attribute of the dataset cannot be copied.
    """
    views = [StreamView(child, context) for child in dataset.children]
    memo: dict[int, Any] = {id(child): view for child, view in zip(dataset.children, views, strict=True)}
    memo[id(dataset.worker_config)] = dataset.worker_config
    twin = object.__new__(type(dataset))
    memo[id(dataset)] = twin
    try:
        for name, value in dataset.__getstate__().items():
            twin.__dict__[name] = copy.deepcopy(value, memo)
    except Exception as error:
        raise ConfigError(
            f"{type(dataset).__name__} is copied for each stream, and its attribute {name} cannot be copied "
            f"({type(error).__name__}: {error}). Give that object a __deepcopy__ that returns itself, or make it when "
            "iteration begins."
        ) from error
    twin.__dict__[RUNS] = context.stream
    return twin, views


class _CopyIterator(StreamIterator[Any]):
    def __init__(self, dataset: SavableDataset[Any], context: StreamContext) -> None:
        self._config, self._stream = dataset.worker_config, context.stream
        self._copy, self._views = _stream_copy(dataset, context)
        self._elements: Iterator[Any] | None = None

    def __next__(self) -> Any:
        with running_stream(self._config, self._stream):
            if self._elements is None:
                self._elements = iter(self._copy)
            try:
                return next(self._elements)
            except StopIteration:
                self._elements = None
                for view in self._views:
                    view.ended = False
                raise

    def state_dict(self) -> State:
        for view in self._views:
            view.asked = False
        with running_stream(self._config, self._stream):
            own = self._copy.save_state()
        # A class that does not save the datasets that it reads from would start them again.
        inner = [None if view.asked else view.save_state() for view in self._views]
        return {"own": to_plain(own, type(self._copy).__name__), "inner": inner}

    def load_state_dict(self, state: State) -> None:
        inner = list_of(state, "inner")
        if len(inner) != len(self._views) or "own" not in state:
            raise StateError(f"This is not a state of {type(self._copy).__name__}.")
        for view, saved in zip(self._views, inner, strict=True):
            if saved is not None:
                view.restore_state(saved)
        with running_stream(self._config, self._stream):
            self._copy.restore_state(from_plain(state["own"]))

    def close(self) -> None:
        self._elements = None
        for view in self._views:
            view.close()


def to_plain(value: Any, owner: str) -> Any:
    """Returns a state in values that JSON has.

    Args:
        value: What a user's `save_state` returned.
        owner: Name of the class that saved it, for the message.

    Raises:
        StateError: It holds something that cannot be saved.
    """
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _KIND not in value:
            return {key: to_plain(inner, owner) for key, inner in value.items()}
        return {
            _KIND: "dict",
            "items": [[to_plain(key, owner), to_plain(inner, owner)] for key, inner in value.items()],
        }
    if isinstance(value, list):
        return [to_plain(inner, owner) for inner in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [to_plain(inner, owner) for inner in value]}
    if isinstance(value, (set, frozenset)):
        return {_KIND: type(value).__name__, "items": [to_plain(inner, owner) for inner in value]}
    if isinstance(value, (bytes, bytearray)):
        return {_KIND: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return {_KIND: "array", **_array(np.asarray(value)), "scalar": isinstance(value, np.generic)}
    if type(value).__module__ == "torch" and hasattr(value, "numpy"):
        return {_KIND: "tensor", **_array(value.detach().cpu().contiguous().numpy())}
    raise StateError(
        f"{owner}.save_state() returned a {type(value).__name__}, and states hold numbers, texts, bytes, lists, "
        "tuples, sets, dicts, arrays and tensors, so that they load without running code. Save restore keys "
        "(sample.__restore_key__) instead of samples, and make these again by restore_sample()."
    )


def _array(value: Any) -> dict[str, Any]:
    return {"dtype": value.dtype.str, "shape": list(value.shape), "data": base64.b64encode(value.tobytes()).decode()}


def from_plain(value: Any) -> Any:
    """Returns the state that `to_plain` was given.

    Raises:
        StateError: It is damaged.
    """
    try:
        return _from_plain(value)
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedStateError(f"{type(error).__name__}: {str(error)[:300]}") from error


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: _from_plain(inner) for key, inner in value.items()}
    if kind == "dict":
        return {_from_plain(key): _from_plain(inner) for key, inner in value["items"]}
    makers = {"tuple": tuple, "set": set, "frozenset": frozenset}
    if kind in makers:
        return makers[kind](_from_plain(inner) for inner in value["items"])
    data = base64.b64decode(value["data"], validate=True)
    if kind == "bytes":
        return data
    dtype = np.dtype(str(value["dtype"]))
    if dtype.kind not in "biufc":
        raise DamagedStateError(f"it holds an array of {dtype}.")
    array = np.frombuffer(data, dtype).reshape(value["shape"]).copy()
    if kind == "array":
        return array[()] if value["scalar"] else array
    if kind == "tensor":
        import torch

        return torch.from_numpy(array)
    raise DamagedStateError(f"it holds a value of the unknown kind {str(kind)[:50]!r}.")


class StreamView(PassThroughDataset[Any]):
    """One stream of another dataset, with Energon's methods: what a worker's copy reads from.

    Args:
        dataset: The other dataset.
        context: The stream.
    """

    shown_in_config = False

    def __init__(self, dataset: SavableDataset[Any], context: StreamContext) -> None:
        super().__init__(dataset)
        self._context = context
        self.asked = False
        """Whether the state was asked for."""
        self.ended = False
        """Whether the epoch is over, while what reads from here still empties its buffers."""
        self.restored_at_end = False
        """Whether it was restored in that situation: the first iteration yields nothing."""
        self._iterator: StreamIterator[Any] | None = None

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return self.dataset.open(context)

    def len_worker(self, worker_idx: int | None = None) -> int:
        return self.dataset.len_stream(self._context.stream)

    def len_rank(self) -> int:
        return self.dataset.len_rank()

    def worker_has_samples(self) -> bool:
        return self.dataset.len_stream(self._context.stream) > 0

    def _open_once(self) -> StreamIterator[Any]:
        if self._iterator is None:
            self._iterator = self.dataset.open(self._context)
        return self._iterator

    def __iter__(self) -> Iterator[Any]:
        iterator = self._open_once()
        if self.restored_at_end:
            self.restored_at_end = False
            return
        self.ended = False
        for element in iterator:  # noqa: UP028 - `yield from` would close it with this generator
            yield element
        self.ended = True

    def save_state(self) -> State:
        self.asked = True
        return {"ended": self.ended, "state": plain(self._open_once().state_dict())}

    def restore_state(self, state: State) -> None:
        self.close()
        self.ended = self.restored_at_end = flag_of(state, "ended")
        self._open_once().load_state_dict(state_of(state, "state"))

    def reset_state_own(self) -> None:
        """Starts again at the beginning."""
        self.close()

    def reset_state_deep(self) -> None:
        """Starts again at the beginning."""
        self.close()

    def close(self) -> None:
        """Lets the stream go."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def describe(self) -> str:
        return self.dataset.describe()

    def __str__(self) -> str:
        return str(self.dataset)

    def __deepcopy__(self, memo: dict[int, Any]) -> SavableDataset[Any]:
        return self


def _init_subclass(cls: type[Any], /, **options: Any) -> None:
    super(SavableDataset, cls).__init_subclass__(**options)
    adapt(cls)


# In a stream's copy, a class that has no state of its own saves the fields that `_savable_fields` names.
_base: Any = SavableDataset
_base._savable_fields = ()
_base.__init_subclass__ = classmethod(_init_subclass)
_base.save_state = _in_copy(own_state, _base.save_state)
_base.restore_state = _in_copy(restore_own_state, _base.restore_state)
