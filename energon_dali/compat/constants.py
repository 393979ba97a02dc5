"""The constants, type variables and loggers of Energon's modules, and its warnings about what is deprecated."""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, ParamSpec, TypeVar

from energon_dali.compat.finder import TYPE_VARIABLE
from energon_dali.decode.spec import AVDecode, ImageDecode
from energon_dali.errors import FatalSampleError

MAIN_FOLDER_NAME = ".nv-meta"
INDEX_SQLITE_FILENAME = "index.sqlite"
INDEX_UUID_FILENAME = "index.uuid"
INFO_JSON_FILENAME = ".info.json"
INFO_YAML_FILENAME = ".info.yaml"
SPLIT_YAML_FILENAME = "split.yaml"
JOIN_INDEX_FILENAME = "join_index.bin"
INDEX_BATCH_SIZE = 4096
ITAR_SUFFIX = ".idx"
IJSONL_SUFFIX = ".idx"
split_name_re = re.compile(r"((?:[^/]*/)*[^./]+)\.([^/]*)")
"""Path of a member of a shard: (key, name of the part)."""
skip_meta_re = re.compile(r"__[^/]*__(?:/|$)")
"""Members that belong to no sample."""
url_regex = re.compile(r"(?P<protocol>[a-z][a-z0-9+]*)://(?P<path>.*)")
ImageDecoderType = ImageDecode
AVDecoderType = AVDecode
AV_DECODE_AVAILABLE = True
MISSING_DEPENDENCY: Any = None
AVIndexMode = Literal["frames", "pts"]
DEBUG_SHARD_PRINT = os.environ.get("ENERGON_DEBUG_SHARD_PRINT") == "1"
GC_DEFAULT_EVERY_N_ITER = 10
LOCAL_COPY_TMP_DIR = os.environ.get("ENERGON_LOCAL_COPY_TMP_DIR") or tempfile.gettempdir()
FeatureBatcher = Any
TTransform = TypeVar("TTransform")


class MediaMetadataType(str, Enum):
    """Kinds of media in the table of media."""

    AV = "av"
    IMAGE = "image"


class GcFreezeError(FatalSampleError):
    """Energon raises it where garbage collection fails; this package never does."""


_F = TypeVar("_F", bound=Callable[..., Any])


def warn_deprecated(reason: str, stacklevel: int = 2) -> None:
    """Warns with a FutureWarning, which Python shows by default.

    Args:
        reason: What to do instead.
        stacklevel: Which caller's line the warning names.
    """
    warnings.warn(reason, FutureWarning, stacklevel=stacklevel + 1)


def deprecated(reason: str) -> Callable[[_F], _F]:
    """Returns a decorator of functions whose calls warn."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            warn_deprecated(f"{function.__name__} is deprecated: {reason}", stacklevel=2)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


_made: dict[str, Any] = {"logger": logging.getLogger("energon_dali.compat"), "P": ParamSpec("P")}


def __getattr__(name: str) -> Any:
    if name not in _made and not TYPE_VARIABLE.fullmatch(name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _made:
        _made[name] = TypeVar(name)
    return _made[name]
