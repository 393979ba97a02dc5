"""Which part of the split a sample belongs to: by its key alone, so that it stays there when samples are added."""

from __future__ import annotations

import re
from collections.abc import Sequence

from energon_dali.errors import ConfigError
from energon_dali.pack.keys import hash64
from energon_dali.pack.record import Record
from energon_dali.pack.sources.hugging_face import clean_split

DEFAULT_PART = "train"


class SplitRules:
    """Rules of a split.

    Args:
        rules: (part, weight) pairs or (part, pattern) pairs; none keeps the split of the source.
        seed: Seed of a split by weights.
    """

    def __init__(self, rules: Sequence[tuple[str, float | str]], seed: int) -> None:
        self.parts = list(dict.fromkeys(part for part, _ in rules))
        self._seed = f"split {seed}"
        self._patterns = [(part, re.compile(rule)) for part, rule in rules if isinstance(rule, str)]
        weights = [(part, rule) for part, rule in rules if not isinstance(rule, str)]
        total, cumulative = sum(weight for _, weight in weights), 0.0
        self._limits: list[tuple[str, int]] = []
        for part, weight in weights:
            cumulative += weight
            self._limits.append((part, round(cumulative / total * (1 << 64))))

    def part_of(self, record: Record) -> str:
        """Returns the part of a sample.

        Raises:
            ConfigError: No pattern matches its key.
        """
        if self._patterns:
            for part, pattern in self._patterns:
                if pattern.match(record.key):
                    return part
            raise ConfigError(
                f"The sample {record.key!r} matches no pattern of the split: {self._describe()}. A pattern is a "
                "regular expression that matches the key from its start; add a last one for the rest, such as train:.*"
            )
        if self._limits:
            number = hash64(record.key, self._seed)
            return next(part for part, limit in self._limits if number < limit)
        return clean_split(record.split_part) if record.split_part else DEFAULT_PART

    def _describe(self) -> str:
        return ", ".join(f"{part}:{pattern.pattern}" for part, pattern in self._patterns)
