"""Checks the arguments of calls, and explains wrong ones: valid names, and missing packages."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar, overload

from energon_dali.errors import ArgumentError, ConfigError

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

_ELSEWHERE = {
    "num_workers": "It belongs to the dataset: WorkerConfig(num_workers=...), given as worker_config.",
    "rank": "It belongs to WorkerConfig(rank=..., world_size=...), given to the dataset as worker_config.",
    "world_size": "It belongs to WorkerConfig(rank=..., world_size=...), given to the dataset as worker_config.",
    "seed": "The seed of a job is WorkerConfig(seed_offset=...).",
    "batch_size": "It belongs to the dataset: get_train_dataset(..., batch_size=...).",
    "shuffle": "Order belongs to the dataset: get_train_dataset(..., shuffle_buffer_size=...).",
    "shuffle_buffer_size": "Only get_train_dataset shuffles its data; validation keeps the order of the files.",
    "repeat": "Only get_train_dataset repeats its data (repeat=True); validation is one pass for each loop.",
    "limit": "Only validation datasets take it; a training dataset has virtual_epoch_length=..., in batches per rank.",
    "num_epochs": "An epoch is a number of elements here: give length=...",
    "sampler": "Order belongs to the dataset: get_train_dataset(..., shuffle_buffer_size=...).",
    "drop_last": "It belongs to the dataset: get_train_dataset(..., batch_drop_last=True).",
    "collate_fn": "Batches are made by the task encoder: override TaskEncoder.batch.",
    "persistent_workers": "Workers always live as long as the loader: leave it out.",
    "timeout": "The longest wait for a batch is watchdog_timeout_seconds.",
    "multiprocessing_context": "How workers start is start_method.",
    "image_decode": "It belongs to a decoder: SampleDecoder(image_decode=...) or DaliDecoder(image_decode=...).",
    "decoder": "It belongs to the task encoder: set its attribute decoder.",
}
"""Where to pass arguments that users of PyTorch and Energon expect elsewhere."""

_NEAR = 0.6
"""Least similarity of a suggested name, from 0 to 1."""
_TIE = 0.04
"""How far below the best similarity a name may be to be suggested too."""


def nearest_names(wrong: str, allowed: Iterable[str]) -> list[str]:
    """Returns the allowed names that are most similar to a wrong one; [] if none is similar enough."""
    similarity = {name: difflib.SequenceMatcher(None, wrong, name).ratio() for name in sorted(set(allowed))}
    best = max(similarity.values(), default=0.0)
    if best < _NEAR:
        return []
    return sorted((name for name in similarity if similarity[name] >= best - _TIE), key=lambda name: -similarity[name])


def describe_nearest(wrong: str, allowed: Iterable[str], before: str = "") -> str:
    """Returns a sentence with the most similar allowed names, or with all allowed names if none is similar.

    Args:
        wrong: The name that was given.
        allowed: The names that are allowed.
        before: Prefix of each name that is shown, such as "trainer.".
    """
    names = sorted(set(allowed))
    near = nearest_names(wrong, names)
    if near:
        return f"Did you mean {' or '.join(before + name for name in near)}?"
    return f"There are: {', '.join(before + name for name in names)}." if names else "There are none."


@overload
def explain_call(function: CallableT, /) -> CallableT: ...


@overload
def explain_call(*, options: Mapping[str, Any]) -> Callable[[CallableT], CallableT]: ...


def explain_call(function: Any = None, /, *, options: Mapping[str, Any] | None = None) -> Any:
    """Returns a function, or a class, whose calls with wrong arguments raise ArgumentError.

    Args:
        function: The function, `__init__`, or class; left out if `options` is given, as in
            `@explain_call(options=...)`.
        options: The names that it takes as `**options`; without it, any name is accepted.
    """
    if function is None:
        return lambda inner: _explained(inner, options)
    if isinstance(function, type):
        made: Any = function
        made.__init__ = _explained(made.__init__, options)
        return made
    return _explained(function, options)


def _explained(function: Callable[..., Any], options: Mapping[str, Any] | None) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
            strange = kwargs.keys() - signature.parameters.keys() - options.keys() if options is not None else ()
        except TypeError as error:
            raise ArgumentError(_explanation(function, signature, args, kwargs, str(error), options)) from None
        if strange:
            raise ArgumentError(_explanation(function, signature, args, kwargs, "", options))
        return function(*args, **kwargs)

    return call


def _explanation(
    function: Callable[..., Any],
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reason: str,
    options: Mapping[str, Any] | None,
) -> str:
    """Returns what is wrong with a call, and the correct form of it."""
    is_method = function.__name__ == "__init__" and bool(args)
    name = type(args[0]).__name__ if is_method else function.__name__
    parameters = list(signature.parameters.values())[is_method:]
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    allowed = [*(one.name for one in named), *(options or ())]
    strange = [wrong for wrong in kwargs if wrong not in allowed]
    if strange:
        return f"{name}() {explain_unknown(strange, allowed)}"
    given = len(args) - is_method
    taken = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    form = f"Call it as {name}({', '.join(_form(parameters))})."
    missing = [one.name for one in named if one.default is one.empty and one.name not in {*kwargs, *taken[:given]}]
    if given > len(taken):
        most = f"{len(taken) or 'no'} argument{'' if len(taken) == 1 else 's'}"
        return f"{name}() takes {most} without a name, but was given {given}. {form}"
    if missing:
        return f"{name}() needs {' and '.join(missing)}. {form}"
    return f"{name}(): {reason}. {form}"


NOT_AWAITED = (
    "Hooks and other functions of a dataset are called one after the other, and nothing awaits them: write a function "
    "without `async`. If it has to wait for several things at once, call asyncio.run(...) in it."
)


def refuse_async(function: Any, name: str = "") -> None:
    """Raises an error if a function of the user is declared with `async`.

    Args:
        function: The function, or anything else.
        name: How to name it in the message; its own name by default.

    Raises:
        ConfigError: Calling it returns something to await.
    """
    for candidate in (function, inspect.getattr_static(type(function), "__call__", None)):
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            shown = name or getattr(function, "__qualname__", type(function).__qualname__)
            raise ConfigError(f"{shown} is an async function. {NOT_AWAITED}")


def explain_unknown(wrong: Iterable[str], allowed: Iterable[str]) -> str:
    """Returns the end of a sentence about unknown arguments: "has no argument 'batchsize'. Did you mean ...".

    Args:
        wrong: The unknown names; at least one.
        allowed: The names of the arguments.
    """
    allowed = sorted(set(allowed))
    sentences = []
    for name in wrong:
        near = nearest_names(name, allowed)
        if name in _ELSEWHERE:
            sentences.append(f"has no argument {name!r}. {_ELSEWHERE[name]}")
        elif near:
            sentences.append(f"has no argument {name!r}. Did you mean {' or '.join(near)}?")
        else:
            sentences.append(f"has no argument {name!r}. It takes {', '.join(allowed) or 'none'}.")
    return " It ".join(sentences)


def _form(parameters: list[inspect.Parameter]) -> Iterable[str]:
    """Yields the parameters in the form of a call, without types; a star precedes those that are keyword-only."""
    starred = False
    for one in parameters:
        if one.kind is one.VAR_POSITIONAL:
            starred = True
            yield f"*{one.name}"
        elif one.kind is one.VAR_KEYWORD:
            yield f"**{one.name}"
        else:
            if one.kind is one.KEYWORD_ONLY and not starred:
                starred = True
                yield "*"
            yield one.name if one.default is one.empty else f"{one.name}=..."


def callers() -> Iterator[FrameType]:
    """Yields the frames of the functions that led here, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def check_count(name: str, value: Any, advice: str, *, least: int = 1) -> int:
    """Returns a whole number as an int.

    Args:
        name: Name of the argument, for the message.
        value: Its value; numbers of other libraries are accepted.
        advice: What to give instead, as the end of a sentence.
        least: The smallest value that is allowed.

    Raises:
        ConfigError: It is not a whole number, or too small.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name}={value!r} is invalid: it must be a whole number of at least {least}; {advice}.")
    return number


def check_number(name: str, value: Any) -> float:
    """Returns a number as a float, of any range.

    Args:
        name: Name of the argument, for the message.
        value: Its value; numbers of other libraries are accepted, text is not.

    Raises:
        ConfigError: It is not a number.
    """
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} {value!r} is not a number: give a finite number of at least 0.") from None


def check_switches(**values: Any) -> None:
    """Checks that arguments are True or False.

    Text is refused above all: "no" and "false", as a file of settings may hold them, would count as True.

    Args:
        values: The arguments by name; 0, 1 and the truth values of other libraries are accepted.

    Raises:
        ConfigError: One of them is something else.
    """
    for name, value in values.items():
        if isinstance(value, (str, bytes)) or value not in (True, False):
            raise ConfigError(f"{name}={value!r} is invalid: give True or False.")


def check_function(name: str, value: Any, what: str, *, may_yield: bool = True) -> None:
    """Checks that an argument is a function.

    Args:
        name: Name of the argument, for the message.
        value: Its value.
        what: What the function receives and returns, such as "from an element to an element".
        may_yield: Whether it may be a generator function.

    Raises:
        ConfigError: It is not callable, it is async, or it is a generator function and must not be one.
    """
    if not callable(value):
        raise ConfigError(f"{name}={value!r} is not callable: give a function, {what}.")
    refuse_async(value)
    if not may_yield and inspect.isgeneratorfunction(value):
        raise ConfigError(
            f"{name}={value!r} is a generator function, but must return exactly one result: give a function, "
            f"{what}, that returns it."
        )


def import_extra(name: str, user: str, extra: str) -> Any:
    """Returns a package that only an extra of this one installs.

    Args:
        name: Name of the module.
        user: What needs it, at the beginning of a sentence.
        extra: The extra.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{user} needs the package {error.name or name}, which is not installed. Install the extra: pip install "
            f'"energon-dali[{extra}]".'
        ) from error
