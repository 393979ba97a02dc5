"""Finds the shards of a folder, and decides which of them belong to which split part."""

from __future__ import annotations

import math
import random
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.shards.documents.braces import expand_braces
from energon_dali.shards.index.tar_scan import split_member_name
from energon_dali.shards.meta.info import refuse_meta
from energon_dali.shards.storage import StoragePath

SPLIT_NAMES = ("train", "val", "test")


def find_shards(path: str | StoragePath, exclude: str | None = None) -> list[str]:
    """Returns the tar files below a folder, sorted by path.

    Args:
        path: Folder of the dataset.
        exclude: Regular expression; a shard is left out if it matches anywhere in its path.

    Raises:
        ConfigError: `exclude` is not a regular expression.
        DatasetFormatError: There is no tar file, or one is compressed, or its name is not valid UTF-8.
        StorageError: The folder cannot be listed.
    """
    root = StoragePath.of(path)
    try:
        unwanted = re.compile(exclude) if exclude else None
    except re.error as error:
        raise ConfigError(f"The pattern {exclude!r} of exclude is not a regular expression: {error}.") from error
    refuse_meta(root)
    files = [name for name in root.list_files() if unwanted is None or not unwanted.search(name)]
    # By path components, as Energon sorts, so that both number the shards alike.
    shards = sorted((name for name in files if name.endswith(".tar")), key=lambda name: name.split("/"))
    compressed = [name for name in files if name.endswith((".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst"))]
    if compressed:
        raise DatasetFormatError(
            f"{root} holds {len(compressed)} compressed shards, such as {compressed[0]}. Samples are read at their "
            "position in the file, which a compressed tar does not allow. Unpack them to .tar (gunzip), or leave them "
            "out with --exclude; the media in them are compressed anyway."
        )
    for name in shards:
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise DatasetFormatError(
                f"{root} holds the shard {name!r}, whose name is not valid UTF-8 as .info.json requires. Rename it, "
                "or leave it out with --exclude."
            )
    if not shards:
        raise DatasetFormatError(_no_shards(root, exclude))
    return shards


def _no_shards(root: StoragePath, exclude: str | None) -> str:
    """Returns the message for a folder without shards; it says how to make one of loose files."""
    message = f"{root} holds no .tar file. Give the folder that holds the shards."
    names = [name for name in root.list_files() if not name.startswith((".", "__"))]
    samples = [name for name in names if split_member_name(name) is not None]
    if exclude and any(name.endswith(".tar") for name in names):
        return f"{root} holds no .tar file that --exclude {exclude!r} leaves over. Exclude fewer."
    if not samples or not root.is_local:
        return message
    folder, shards = shlex.quote(root.url), shlex.quote(f"{root.url}-shards")
    return (
        f"{message} If its {len(samples):,} files, such as {samples[0]}, are your samples, put them into a shard "
        "first:\n\n"
        f"  mkdir {shards} && tar -cf {shards}/shard_000.tar --sort=name --transform='s,^\\./,,' -C {folder} .\n"
        f"  energon-dali prepare {shards}\n\n"
        "Files whose names are equal up to the first dot, such as cat.jpg and cat.txt, make one sample. Write several "
        "shards of a few thousand samples each if there are many samples, or to split them into train and val."
    )


def plan_split(
    names: list[str],
    ratio: Mapping[str, float] | None,
    patterns: Sequence[tuple[str, str]] | None,
    shuffle_seed: int | None,
) -> dict[str, list[str]]:
    """Returns the shards of each part: by patterns, or else by ratio; all are train if neither is given.

    Raises:
        ConfigError: A pattern matches nothing, or the ratio cannot be used.
        DatasetFormatError: There is no shard.
    """
    if not names:
        raise DatasetFormatError(
            "No shard was given. Give the tar files relative to the folder, or shards=None to take all of them."
        )
    if patterns is not None:
        return split_by_patterns(names, patterns)
    return split_by_ratio(names, {"train": 1.0, "val": 0.0, "test": 0.0} if ratio is None else ratio, shuffle_seed)


def parse_ratio(text: str) -> dict[str, float]:
    """Parses the proportions of train, val and test, such as "8,1,1" or "0.8, 0.1, 0.1".

    Raises:
        ConfigError: It is not three numbers of at least 0 with a positive sum.
    """
    try:
        weights = [float(number) for number in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != 3 or min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise ConfigError(
            f"The split ratio {text!r} cannot be used: give three numbers for train, val and test, such as 8,1,1."
        )
    return dict(zip(SPLIT_NAMES, weights, strict=True))


def split_by_ratio(
    shards: Sequence[str], ratio: Mapping[str, float], shuffle_seed: int | None = None
) -> dict[str, list[str]]:
    """Divides whole shards into parts in proportion to a ratio.

    Args:
        shards: Shard names.
        ratio: Weight of each part; only the proportions matter.
        shuffle_seed: Shuffles the shards before they are divided; None keeps their order.

    Raises:
        ConfigError: The weights do not have a positive sum.
    """
    # Exact, from their decimal digits: with floats, 0.7 + 0.2 + 0.1 is below 1, and the last shard would be in no part.
    weights = [Fraction(str(weight)) for weight in ratio.values() if math.isfinite(weight)]
    total = sum(weights)
    if len(weights) < len(ratio) or total <= 0 or min(weights) < 0:
        raise ConfigError(
            f"The split ratio {dict(ratio)} cannot be used: give weights of at least 0 with a positive sum."
        )
    ordered = list(shards)
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(ordered)
    parts: dict[str, list[str]] = {}
    cumulative, begin = Fraction(0), 0
    for name, weight in zip(ratio, weights, strict=True):
        cumulative += weight
        end = int(len(ordered) * cumulative / total)
        parts[name] = ordered[begin:end]
        begin = end
    return parts


def split_by_patterns(shards: Sequence[str], patterns: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Divides the shards into parts by patterns.

    Braces are expanded; each result is a regular expression that must match from the start.

    Args:
        shards: Shard names.
        patterns: (part, pattern) pairs; a part may be listed several times.

    Raises:
        ConfigError: A pattern cannot be understood or matches no shard (a shell pattern such as `train_*.tar` is not
            a regular expression).
    """
    parts: dict[str, dict[str, None]] = {}
    ordered = sorted(set(shards))
    position = {shard: number for number, shard in enumerate(shards)}
    for name, pattern in dict.fromkeys(patterns):
        try:
            expressions = dict.fromkeys(expand_braces([pattern]))
            matched = {shard for expression in expressions for shard in _matching(expression, ordered)}
        except (re.error, ValueError) as error:
            raise ConfigError(
                f"The pattern {pattern!r} of split part {name!r} cannot be understood ({error}). Braces {{0..9}} are "
                "expanded, the rest is a regular expression: write .* where a shell pattern has *."
            ) from error
        if not matched:
            raise ConfigError(
                f"The pattern {pattern!r} of split part {name!r} matches none of the {len(shards)} shards, such as "
                f"{shards[0]!r}. It is a regular expression matched from the start of the path inside the dataset: "
                "write .* where a shell pattern has *."
            )
        parts.setdefault(name, {}).update(dict.fromkeys(sorted(matched, key=position.__getitem__)))
    return {name: list(known) for name, known in parts.items()}


_LITERAL = re.compile(r"[\w/ ,:;=@~-]*")
"""The start of an expression that has no special characters."""
_NAME = re.compile(r"[\w/ ,:;=@~.-]*")
"""An expression in which nothing but full stops has a meaning of its own."""


def _matching(expression: str, shards: Sequence[str]) -> Iterator[str]:
    """Yields the shards that a regular expression matches from their start.

    A pattern with braces gives an expression for each shard, and there may be a hundred thousand: each is compared only
    with the shards that begin like it.

    Args:
        expression: The regular expression.
        shards: Sorted names.

    Raises:
        re.error: It is not a regular expression.
    """
    start = _LITERAL.match(expression)
    assert start is not None
    prefix = start[0]
    if "|" in expression:
        prefix = ""
    elif expression[len(prefix) :].startswith(("?", "*", "{")):
        prefix = prefix[:-1]  # its last letter may be missing
    if _NAME.fullmatch(expression):

        def matches(shard: str) -> bool:
            return len(shard) >= len(expression) and all(
                wanted == letter or (wanted == "." and letter != "\n")
                for wanted, letter in zip(expression, shard, strict=False)
            )

    else:
        compiled = re.compile(expression)

        def matches(shard: str) -> bool:
            return compiled.match(shard) is not None

    for number in range(bisect_left(shards, prefix), len(shards)):
        if not shards[number].startswith(prefix):
            return
        if matches(shards[number]):
            yield shards[number]
