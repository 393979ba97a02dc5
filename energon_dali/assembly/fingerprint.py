"""What the measures of a sample depend on: the hooks that run before decoding, and all that they refer to by name.

It becomes a mapping from readable names to short texts, so that a difference can be named. Sources count without blank
lines and comment lines. From a hook, its methods, functions, attributes and globals are found by the names in its code:
what no hook that runs refers to does not matter. Arguments and objects that are bound to a function count with all
their values. Attributes that hooks assign, and cached properties, change when hooks run: of these, only the code that
makes them counts.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import logging
import os
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from energon_dali.assembly.sample_loaders import FactoryLoader
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.decode.front_ends.processor_family import ProcessorFamily
from energon_dali.decode.interface import Decoder
from energon_dali.metadataset.reference import SourceReference
from energon_dali.samples.base import CrudeSample
from energon_dali.shards import PartList
from energon_dali.shards.index.extent_index import read_uuid
from energon_dali.shards.meta.sample_loader import MODULE_NAME, DatasetFunction
from energon_dali.shards.storage import StoragePath
from energon_dali.task_encoder.cooking import choose_cooker
from energon_dali.task_encoder.encoder import TaskEncoder, overridden

logger = logging.getLogger("energon_dali.assembly")
MEASURING = 2
"""Version of what this package computes: the built-in values, and how hooks are called."""
_SHOWN_LETTERS = 80
_DIGEST = "blake2b:"
"""Begins what is not shown, but its digest."""
_MAX_DEPTH = 8
_OF_PIXELS = frozenset({"values", "filter", "resampling", "dtype", "convert_rgb"})
"""Fields of front ends that change pixels, and no layout."""
_OF_FILES = frozenset({"_name_or_path", "name_or_path", "transformers_version", "_commit_hash"})
"""Entries of configurations that say where they come from."""
_OF_JOB = frozenset(
    {"name", "path", "paths", "split_part", "split_config", "subset", "subflavors", "worker_config", "training"}
    | {"shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence", "image_decode"}
)
"""Attributes of factories that say where samples are and in which order, or change pixels alone."""
_C_FUNCTIONS = (ClassMethodDescriptorType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType)
"""Methods of classes that are written in C."""
_PACKAGE = "energon_dali"
_NOT_USERS = tuple(
    os.path.realpath(path) + os.sep for path in {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
)
AnyEncoder = TaskEncoder[Any, Any, Any, Any]


def fingerprint_of(load: SampleLoader, encoder: AnyEncoder, reference: SourceReference) -> dict[str, str]:
    """Returns what the measures of a dataset's samples depend on, by name.

    Args:
        load: Makes its samples.
        encoder: The task encoder.
        reference: The dataset, with its auxiliary stores.

    Raises:
        ConfigError: Its samples are crude, and no cooker matches.
        StorageError: The index of an auxiliary store cannot be read.
    """
    reached = _Reached(encoder)
    parts = {
        "measuring": str(MEASURING),
        "measure_version": _short(reached.text(getattr(encoder, "measure_version", 0))),
        "sample type": load.sample_type.__qualname__,
    }
    for name, value in layout_options(encoder.decoder).items():
        parts[f"front end, {name}"] = _short(json.dumps(value, sort_keys=True, default=str))
    if isinstance(load, FactoryLoader):
        reached.visit(load.factory.load_sample)
        reached.visit(load.factory.sample_filter)
    elif load.sample_loader is not None:
        reached.visit(load.sample_loader)
    elif load.fields is not None:
        parts["field map"] = _short(_field_map(load))
    if load.sample_type is CrudeSample:
        if overridden(encoder, "cook_crude_sample"):
            reached.visit(encoder.cook_crude_sample)
        if encoder.cookers or not overridden(encoder, "cook_crude_sample"):
            reached.visit(choose_cooker(encoder.cookers, load.subflavors, reference.path).cook)
        for name, store in sorted(reference.aux.items()):
            root = StoragePath.of(store.path)
            identity = read_uuid(root) if store.kind == "dataset" else ""
            parts[f"auxiliary store {name}"] = identity or f"{store.kind} {root.url}"
    for hook in ("preencode_sample", "measure_sample"):
        if overridden(encoder, hook):
            reached.visit(getattr(encoder, hook))
    reached.finish()
    if "__subflavors__" in reached.names:
        parts["subflavors"] = _short(reached.text(dict(load.subflavors)))
    return {**parts, **dict(sorted(reached.parts.items()))}


def describe_difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Returns which parts of two fingerprints differ, for a message."""
    changes = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if before is None or after is None:
            changes.append(f"{name} is {'new' if before is None else 'gone'}")
        elif before.startswith(_DIGEST) or after.startswith(_DIGEST):
            changes.append(f"{name} changed")
        else:
            changes.append(f"{name} was {before} and is {after}")
    return "; ".join(changes[:5]) + (f"; and {len(changes) - 5} more" if len(changes) > 5 else "")


def layout_options(decoder: Decoder | None) -> dict[str, Any]:
    """Returns what a decoder says about layouts: front ends, operations before them, and how frames are chosen.

    Args:
        decoder: Of a task encoder. Without a front end it has no layouts.
    """
    spec = getattr(decoder, "spec", None)
    clips: Any = getattr(decoder, "av_decode", None)
    found: dict[str, Any] = {}
    if spec is not None and spec.front_end is not None:
        found |= {f"image {name}": value for name, value in _layout_config(spec.front_end).items()}
        found["image operations"] = [{"type": type(one).__name__, **asdict(one)} for one in spec.geometric]
        found["image rotation"] = spec.apply_exif_orientation
    if getattr(clips, "front_end", None) is not None:
        own = {one.name: getattr(clips, one.name) for one in fields(clips) if one.init and one.name != "front_end"}
        found |= {f"video {name}": value for name, value in {**own, **_layout_config(clips.front_end)}.items()}
    if getattr(decoder, "audio_spec", None) is not None:
        spec = decoder.audio_spec  # type: ignore[union-attr]
        found |= {f"audio {name}": value for name, value in _layout_config(spec.front_end).items()}
        of_videos = getattr(decoder, "audio_of_videos", False)
        found |= {"audio segments": spec.segments, "audio seconds": spec.seconds, "audio of videos": of_videos}
    return found


def _layout_config(front_end: ProcessorFamily) -> dict[str, Any]:
    return {name: value for name, value in front_end.config().items() if name not in _OF_PIXELS}


class _Reached:
    """Collects the sources, attributes and globals that functions refer to.

    Args:
        encoder: Its attributes and methods are found by their names.
    """

    def __init__(self, encoder: AnyEncoder) -> None:
        self._encoder = encoder
        self._seen: set[int] = set()
        self._assigned: set[str] = set()
        """Parts of attributes that hooks and cookers assign to their object."""
        self._waiting: list[tuple[str, Any]] = []
        """(name of the part, value) of attributes and objects that are looked at when all code has been."""
        self._inside: set[int] = set()
        self._kept: list[Any] = []
        """What `_seen` names by its id, which must not be given to another object."""
        self.parts: dict[str, str] = {}
        """Digests of sources, and texts of values, by readable names."""
        self.names: set[str] = set()
        """All names and texts in the code."""

    def visit(self, function: Any) -> None:
        """Adds a function, what is bound to it, and what it refers to."""
        outer, owner = self._encoder, None
        for part, one in _layers(function):
            if isinstance(one, FunctionType):
                self._visit_function(one, owner)
            elif isinstance(one, DatasetFunction):  # its whole file counts, wherever the dataset is
                self._add(f"source of {one.name}", _digest(_without_comments(one.source)))
                self.visit(one.function)
            elif isinstance(one, TaskEncoder):  # hooks of an AugmentTaskEncoder are those of the encoder in it
                self._encoder = one
            elif isinstance(one, type):
                if not issubclass(one, TaskEncoder):  # of an encoder, what code refers to is found by its name
                    self._take_class(one)
            else:
                owner = None if isinstance(one, functools.partial) else one
                if self._is_new(one):
                    self._waiting.append((part, one))
        self._encoder = outer

    def _visit_function(self, function: FunctionType, owner: Any) -> None:
        """Adds a function.

        Args:
            function: It is looked at once.
            owner: The object whose method it is, if that is not the encoder.
        """
        if not _is_users(function) or not self._is_new(function):
            return
        source = source_of(function)
        if not _is_of_dataset(function):
            self._add(f"source of {function.__qualname__}", _digest(source))
        self._assigned.update(_attribute(owner, name) for name in _assigned_in(source))
        self._follow(function)
        for name in () if owner is None else function.__code__.co_names:
            method = inspect.getattr_static(type(owner), name, None)
            if isinstance(method, FunctionType):
                self._visit_function(method, owner)

    def _is_new(self, value: Any) -> bool:
        """Returns whether an object is seen for the first time."""
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True

    def finish(self) -> None:
        """Adds the values of the attributes and objects that were found."""
        while self._waiting:
            part, value = self._waiting.pop(0)
            if part not in self._assigned:
                self._add(part, _short(self.text(value)))
        for part in self._assigned:  # found later, by the code of a value
            self.parts.pop(part, None)

    def _add(self, name: str, text: str) -> None:
        known = self.parts.get(name)  # two functions or globals of one name in two modules
        self.parts[name] = text if known in (None, text) else _digest(f"{known} {text}")

    def _follow(self, function: FunctionType) -> None:
        names = list(dict.fromkeys(_names_in(function.__code__)))
        self.names.update(names)
        modules: list[dict[str, Any]] = [function.__globals__]
        for name in names:
            found = self._of_encoder(name, everywhere="super" in names)
            if found is not None:
                for value in found:
                    self._take(name, value, is_attribute=True)
                continue
            for variables in modules:
                if name in variables:
                    value = variables[name]
                    if isinstance(value, ModuleType):
                        if not _is_ours(value.__name__) and _is_users_file(getattr(value, "__file__", None)):
                            modules.append(vars(value))
                    else:
                        self._take(name, value)
                    break
        code = function.__code__
        keywords = function.__kwdefaults__ or {}
        defaults = function.__defaults__ or ()
        positional = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        for name, value in [*zip(positional, defaults, strict=True), *sorted(keywords.items())]:
            self._take(f"default {name}", value)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # not set yet
                continue
            if value is not self._encoder and name != "__class__":
                self._take(name, value)

    def _of_encoder(self, name: str, *, everywhere: bool) -> list[Any] | None:
        """Returns the attribute that the user gave the encoder; None if there is none.

        Args:
            name: Of the attribute.
            everywhere: Return those of all base classes, which `super` may lead to.
        """
        if name in ("decoder", "cookers", "measure_version"):
            return None
        if name == "_task_encoder":  # that of an AugmentTaskEncoder, by its name in Energon
            name = "task_encoder"
        kinds = [kind for kind in type(self._encoder).__mro__ if name in vars(kind)]
        found = [vars(kind)[name] for kind in kinds if _is_users(kind)]
        if name in vars(self._encoder) and not any(isinstance(one, functools.cached_property) for one in found):
            return [vars(self._encoder)[name]]
        if not found or not _is_users(kinds[0]):
            return None
        return found if everywhere else found[:1]

    def _take(self, name: str, value: Any, *, is_attribute: bool = False) -> None:
        """Adds what a name refers to: a function by its code, anything else by its value."""
        value = _getter(value)
        if isinstance(value, (staticmethod, classmethod, FunctionType, MethodType, BuiltinFunctionType)):
            self.visit(value)
        elif isinstance(value, type):
            self._take_class(value)
        elif is_attribute:
            self._waiting.append((_attribute(None, name), value))
        else:
            self._add(f"variable {name}", _short(self.text(value)))

    def _take_class(self, kind: type[Any]) -> None:
        """Adds the sources of a class of the user and of its base classes, and what their methods refer to."""
        for base in kind.__mro__:
            if not _is_users(base) or not self._is_new(base):
                continue
            if not _is_of_dataset(base):
                self._add(f"source of {base.__qualname__}", _digest(source_of(base)))
            for member in list(vars(base).values()):
                function = _getter(member)
                function = getattr(function, "__func__", function)
                if isinstance(function, FunctionType):
                    self._follow(function)

    def text(self, value: Any, depth: int = 0) -> str:
        """Returns a value as text, the same in every process; the name of its class if it cannot be read."""
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return repr(value)
        if depth > _MAX_DEPTH or id(value) in self._inside:
            return type(value).__qualname__
        self._inside.add(id(value))
        try:
            return self._text(value, depth + 1)
        except Exception as error:  # such as that of an array on another device, or of a property
            name = type(value).__qualname__
            logger.debug("A %s counts by its class only: %s: %s", name, type(error).__name__, error)
            return name
        finally:
            self._inside.discard(id(value))

    def _text(self, value: Any, depth: int) -> str:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.text(one, depth) for one in value)}]"
        if isinstance(value, (set, frozenset)):
            return f"{{{', '.join(sorted(self.text(one, depth) for one in value))}}}"
        if isinstance(value, Mapping):
            pairs = sorted((self.text(name, depth), self.text(one, depth)) for name, one in value.items())
            return f"{{{', '.join(': '.join(pair) for pair in pairs)}}}"
        if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
            dtype, shape, array = _array_of(value)
            if array.dtype.hasobject:  # its bytes are addresses
                return f"{dtype}{shape} {self.text(array.tolist(), depth)}"
            return f"{dtype}{shape} {hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()}"
        if isinstance(value, ProcessorFamily):
            return json.dumps(_layout_config(value), sort_keys=True, default=str)
        if isinstance(value, Decoder):
            return json.dumps(layout_options(value), sort_keys=True, default=str)
        if isinstance(value, PartList):
            return self.text(value.names, depth)
        if isinstance(value, DatasetFunction):
            self.visit(value)
            return value.name
        if isinstance(value, SampleLoader):
            return f"{value.sample_type.__qualname__} {_field_map(value)}"
        if isinstance(value, functools.partial):
            return f"{self.text(value.func, depth)} {self.text([value.args, value.keywords], depth)}"
        if isinstance(value, (type, FunctionType, MethodType, BuiltinFunctionType)):
            if not isinstance(value, type):
                self.visit(value)
            return value.__qualname__
        if value is self._encoder or isinstance(value, logging.Logger):
            return type(value).__qualname__
        tokenizer = tokenizer_text(value)
        if tokenizer is not None:
            return tokenizer
        kind = type(value)
        self._take_class(kind)
        state = {name: one for name, one in _state_of(value).items() if _attribute(value, name) not in self._assigned}
        if state:
            return f"{kind.__qualname__} {self.text(state, depth)}"
        return f"{kind.__qualname__} {value!r}" if " at 0x" not in repr(value) else kind.__qualname__


def _array_of(value: Any) -> tuple[str, list[int], np.ndarray[Any, Any]]:
    """Returns (dtype, shape, array) of an array or tensor; the array of a tensor has its bytes."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        array = np.ascontiguousarray(np.asarray(value))
        return str(array.dtype), list(array.shape), array
    plain = value.detach().to_dense().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return str(value.dtype).removeprefix("torch."), list(value.shape), plain.view(torch.uint8).numpy()


def _field_map(load: SampleLoader) -> str:
    accesses_of = {name: [str(access) for access in accesses] for name, accesses in (load.fields or {}).items()}
    return json.dumps(accesses_of, sort_keys=True)


def tokenizer_text(value: Any) -> str | None:
    """Returns what a tokenizer does as text; None for anything else.

    Padding and truncation are left out: calls change them.
    """
    backend = getattr(value, "backend_tokenizer", value)
    to_str = getattr(backend, "to_str", None)
    if callable(to_str) and type(backend).__module__.startswith("tokenizers"):
        content = json.loads(to_str())
        content.pop("padding", None)
        content.pop("truncation", None)
        text = _digest(json.dumps(content, sort_keys=True))
        return f"{type(value).__qualname__} {text} {getattr(value, 'chat_template', None)!r}"
    proto = getattr(value, "serialized_model_proto", None)  # sentencepiece
    if callable(proto):
        return f"{type(value).__qualname__} {hashlib.blake2b(proto(), digest_size=8).hexdigest()}"
    vocabulary = getattr(value, "get_vocab", None)
    if callable(vocabulary):
        entries = json.dumps(sorted(vocabulary().items()), default=str)
        return f"{type(value).__qualname__} {_digest(entries)} {getattr(value, 'chat_template', None)!r}"
    return None


def source_of(value: Any) -> str:
    """Returns the source of a function or class without blank lines and comment lines; its code if there is none."""
    try:
        return _without_comments(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError):
        if isinstance(value, type):
            members = [one for _, one in sorted(vars(value).items()) if isinstance(one, FunctionType)]
            return "\n".join([value.__qualname__, *map(source_of, members)])
        return _code_text(value.__code__)


def _without_comments(source: str) -> str:
    lines = source.splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _code_text(code: CodeType) -> str:
    constants = [
        _code_text(one)
        if isinstance(one, CodeType)
        else repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)
        for one in code.co_consts
    ]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _layers(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the functions that a callable is made of, and before each what is bound to it, with the name of its part.

    What is bound is a `functools.partial`, the object or class of a method, or an object that is called.
    """
    for _ in range(_MAX_DEPTH):
        if isinstance(value, DatasetFunction):
            yield "", value
            return
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, functools.partial):
            yield f"arguments of {getattr(value.func, '__qualname__', type(value.func).__qualname__)}", value
            value = value.func
        elif isinstance(value, FunctionType):
            yield "", value
            value = getattr(value, "__wrapped__", None)
        elif isinstance(value, (MethodType, BuiltinFunctionType)):
            owner = value.__self__
            if owner is not None and not isinstance(owner, ModuleType):
                yield f"object {type(owner).__qualname__}", owner
            value = getattr(value, "__func__", None)
        elif callable(value) and not isinstance(value, (type, *_C_FUNCTIONS)):
            yield f"object {type(value).__qualname__}", value
            value = getattr(value, "__wrapped__", None) or inspect.getattr_static(type(value), "__call__")
        else:
            return


def _getter(value: Any) -> Any:
    """Returns the function of a property; any other value as it is."""
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, functools.cached_property) else value


def _state_of(value: Any) -> dict[str, Any]:
    """Returns the attributes that an object has itself, without cached properties, and without those of the job."""
    state = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        members = vars(base) if "__slots__" in vars(base) else {}
        slots = [name for name, member in members.items() if isinstance(member, MemberDescriptorType)]
        state |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
    without = _OF_JOB if hasattr(type(value), "open_folder") else frozenset()
    return {
        name: one
        for name, one in state.items()
        if name not in without
        and not isinstance(inspect.getattr_static(type(value), str(name), None), functools.cached_property)
    }


def _attribute(owner: Any, name: str) -> str:
    """Returns the name of the part of an attribute.

    Args:
        owner: The object that has it; None for the encoder.
        name: Of the attribute.
    """
    return f"attribute {name}" if owner is None else f"attribute {type(owner).__qualname__}.{name}"


def _assigned_in(source: str) -> Iterator[str]:
    """Yields the attributes that a method assigns to its first argument."""
    try:
        (function,) = ast.parse(source).body
    except (SyntaxError, ValueError):  # a lambda, or code without its source
        return
    if not isinstance(function, ast.FunctionDef) or not function.args.args:
        return
    owner = function.args.args[0].arg
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            holder = node.value
            if isinstance(holder, ast.Name) and holder.id == owner:
                yield node.attr


def _names_in(code: CodeType) -> Iterator[str]:
    """Yields the names and short texts in a code and in those within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _is_users(value: Any) -> bool:
    """Returns whether a function or class is the user's, and not of Python, a library or this package."""
    name = getattr(value, "__module__", None) or ""
    if name == "builtins" or _is_ours(name):
        return False
    module = sys.modules.get(name)
    code = getattr(value, "__code__", None)
    return _is_users_file(code.co_filename if code is not None else getattr(module, "__file__", None), name)


def _is_of_dataset(value: Any) -> bool:
    """Returns whether a function or class is in a file of a dataset, which counts as a whole."""
    return str(getattr(value, "__module__", "")).startswith(MODULE_NAME)


def _is_ours(module: str) -> bool:
    """Returns whether a module is of this package, whose results `MEASURING` counts; tasks are users of it."""
    return f"{module}.".startswith(f"{_PACKAGE}.") and not module.startswith(f"{_PACKAGE}.tasks")


def _is_users_file(file: str | None, name: str = "") -> bool:
    if file is None:
        return name == "__main__" or (name not in sys.builtin_module_names and name not in sys.stdlib_module_names)
    if file.startswith("<"):  # typed into an interpreter, or run from a text
        return not file.startswith("<frozen")
    path = os.path.realpath(file)
    return not path.startswith(_NOT_USERS)


def _digest(text: str) -> str:
    return _DIGEST + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS and not text.startswith(_DIGEST) else _digest(text)
