"""The constants of Energon: names of files, kinds of decoding, and what is installed."""

from __future__ import annotations

import os
import re
import tempfile
from enum import Enum
from typing import Any, Literal, TypeVar

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
