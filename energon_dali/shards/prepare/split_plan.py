"""Decides which shards belong to which part of a split."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from energon_dali.errors import ConfigError
from energon_dali.shards.documents.braces import expand_braces

SPLIT_NAMES = ("train", "val", "test")


def parse_ratio(text: str) -> dict[str, float]:
    """Returns the share of train, val and test of a text such as "8,1,1" or "0.8, 0.1, 0.1".

    Raises:
        ConfigError: It is not three numbers of at least 0 with a positive sum.
    """
    try:
        shares = [float(piece) for piece in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != 3 or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise ConfigError(
            f"The split ratio {text!r} cannot be used: give three numbers for train, val and test, such as 8,1,1."
        )
    return dict(zip(SPLIT_NAMES, shares, strict=True))


def split_by_ratio(
    shards: Sequence[str], ratio: Mapping[str, float], shuffle_seed: int | None = None
) -> dict[str, list[str]]:
    """Returns whole shards cut into parts by their shares.

    Args:
        shards: Shard names.
        ratio: Share of each part; only their proportion counts.
        shuffle_seed: Shuffles the shards before they are cut; None keeps their order.

    Raises:
        ConfigError: The shares have no positive sum.
    """
    total = sum(ratio.values())
    if not ratio or total <= 0 or min(ratio.values()) < 0:
        raise ConfigError(
            f"The split ratio {dict(ratio)} cannot be used: give shares of at least 0 with a positive sum."
        )
    ordered = list(shards)
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(ordered)
    parts: dict[str, list[str]] = {}
    share, begin = 0.0, 0
    for name, weight in ratio.items():
        share += weight / total
        end = int(len(ordered) * share)
        parts[name] = ordered[begin:end]
        begin = end
    return parts


def split_by_patterns(shards: Sequence[str], patterns: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the shards of each part by patterns.

    Braces are expanded; each result is a regular expression that has to match from the start.

    Args:
        shards: Shard names.
        patterns: (part, pattern) pairs; a part may come several times.

    Raises:
        ConfigError: A pattern cannot be understood or matches no shard (a shell pattern such as `train_*.tar` is no
        regular expression).
    """
    parts: dict[str, list[str]] = {}
    for name, pattern in patterns:
        try:
            compiled = [re.compile(expanded) for expanded in expand_braces([pattern])]
        except (re.error, ValueError) as error:
            raise ConfigError(
                f"The pattern {pattern!r} of split part {name!r} cannot be understood ({error}). Braces {{0..9}} are "
                "expanded, the rest "
                "is a regular expression: write .* where a shell pattern has *."
            ) from error
        matched = [shard for shard in shards if any(expression.match(shard) for expression in compiled)]
        if not matched:
            raise ConfigError(
                f"The pattern {pattern!r} of split part {name!r} matches none of the {len(shards)} shards, such as "
                f"{shards[0]!r}. It is a "
                "regular expression matched from the start of the path inside the dataset: write .* where a shell "
                "pattern has *."
            )
        known = parts.setdefault(name, [])
        known += [shard for shard in matched if shard not in known]
    return parts
