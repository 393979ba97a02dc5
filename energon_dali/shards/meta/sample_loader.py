"""Functions in Python files of a dataset, which run only if the user allows it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any

from energon_dali.calls import refuse_async
from energon_dali.errors import DatasetFormatError, UntrustedCodeError
from energon_dali.shards.documents.content import excerpt, read_content
from energon_dali.shards.meta.document import META
from energon_dali.shards.storage import StoragePath

_REFERENCE = re.compile(r"([\w./-]+\.py):(\w+)")
MODULE_NAME = "energon_dali_sample_loader"
"""Begins the names of the modules as which these files run."""
_numbers = count()
"""Of modules, so that threads that run two files at once do not replace each other's."""


class DatasetFunction:
    """A function of a file in `.nv-meta`, such as `sample_loader.py:sample_loader`.

    Picklable: it is pickled as its source text, so that every process runs the code that the user agreed to.

    Args:
        source: Text of the file.
        name: Name of the function in it.
        path: The file, for messages.

    Raises:
        DatasetFormatError: The file cannot be run, or has no such function.
        ConfigError: The function is async.
    """

    def __init__(self, source: str, name: str, path: str) -> None:
        self.source = source
        self.name = name
        self.path = path
        module = ModuleType(f"{MODULE_NAME}_{next(_numbers)}")
        module.__file__ = path
        # dataclasses look there for what annotations name. The module does not stay: if it did, its classes would be
        # pickled by name, and another process has no module of that name.
        sys.modules[module.__name__] = module
        try:
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))
        except Exception as error:
            raise DatasetFormatError(
                f"{path} cannot be run: {type(error).__name__}: {error}. Correct the file."
            ) from error
        finally:
            sys.modules.pop(module.__name__, None)
        function = vars(module).get(name)
        if not callable(function):
            raise DatasetFormatError(
                f"{path} has no function {name!r}. Write it there, or correct the name in dataset.yaml."
            )
        refuse_async(function, f"{name} of {path}")
        self.function: Callable[..., Any] = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __reduce__(self) -> tuple[type[DatasetFunction], tuple[str, str, str]]:
        return DatasetFunction, (self.source, self.name, self.path)

    def __repr__(self) -> str:
        return f"DatasetFunction({self.path}:{self.name})"


def check_code_allowed(root: StoragePath, reference: str, *, allow_code: bool) -> re.Match[str]:
    """Returns the match of a reference to a function of the dataset: the groups are its file and its name.

    Args:
        root: Folder of the dataset.
        reference: `FILE.py:FUNCTION`, the file in `.nv-meta`.
        allow_code: Whether the user allows it to run.

    Raises:
        UntrustedCodeError: The user did not allow it.
        DatasetFormatError: The reference cannot be understood.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None or ".." in match[1].split("/") or match[1].startswith("/"):
        raise DatasetFormatError(
            f"{root} names the function {excerpt(reference)}. Write it as FILE.py:FUNCTION, with the file in {META}."
        )
    if not allow_code:
        raise UntrustedCodeError(
            f"{root} wants to run {match[2]}() of {root / META / match[1]}, which is code that comes with the data. "
            "Read it; if you trust it, pass allow_code=True. A field_map in dataset.yaml needs no code."
        )
    return match


def load_function(root: StoragePath, reference: str, *, allow_code: bool) -> DatasetFunction:
    """Returns a function of the dataset.

    Args:
        root: Folder of the dataset.
        reference: `FILE.py:FUNCTION`, the file in `.nv-meta`.
        allow_code: Whether the user allows it to run.

    Raises:
        UntrustedCodeError: The user did not allow it.
        DatasetFormatError: The reference cannot be understood, the file is missing, or does not run.
        StorageError: It cannot be read.
    """
    match = check_code_allowed(root, reference, allow_code=allow_code)
    path = root / META / match[1]
    content = read_content(path)
    if content is None:
        raise DatasetFormatError(f"{path}, which dataset.yaml names, is missing. Put it there, or use a field_map.")
    return DatasetFunction(content.decode("utf-8", "replace"), match[2], str(path))
