"""Which family an unknown processor's configuration is most like, and in what it differs, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from energon_dali.decode.front_ends.processor_config import ProcessorConfig, shown
from energon_dali.decode.front_ends.processor_family import ProcessorFamily
from energon_dali.errors import ConfigError

_COMMON = frozenset({"rescale_factor", "image_mean", "image_std", "resample", "size", "crop_size"})
"""Values that most processors have, next to flags."""
_FEWEST = 2
"""Values in common from which on a family is named."""
_LEAST_ALIKE = 0.7
"""Or the likeness of the names, from 0 to 1."""


@dataclass(frozen=True)
class _Likeness:
    """What a family makes of a configuration under the name of one of its processors."""

    name: str
    """Class of the processor that it is like."""
    shared: tuple[str, ...]
    """Values that it reads, without those that most processors have."""
    unknown: tuple[str, ...]
    """Values that it does not know, with what they are."""
    refused: str
    """Why it refuses a value; empty if it does not."""
    likeness: float
    """Of the two names, from 0 to 1; 0 if they are not alike."""

    @property
    def score(self) -> float:
        return len(self.shared) - len(self.unknown) - bool(self.refused) + self.likeness


def describe_nearest_family(families: Iterable[type[ProcessorFamily]], config: ProcessorConfig) -> str:
    """Returns sentences that name the processor that a configuration is most like; empty if it is like none.

    Args:
        families: That are covered.
        config: Of a processor that is not.
    """
    plain = [family for family in families if not family.around]
    found = [_compare(family, name, config) for family in plain for name in family.processors]
    alike = [one for one in found if len(one.shared) >= _FEWEST or (one.likeness and not one.refused)]
    if not alike:
        return ""
    best = max(alike, key=lambda one: one.score)  # the first of several
    parts = [f"Its values are most like those of {best.name}"]
    if best.shared:
        parts[0] += f", which reads {', '.join(best.shared)} too"
    if best.refused:
        parts.append(f"That one refuses it: {best.refused}")
        return ". ".join(parts) + ". "
    named = f'from_processor({{**values, "{config.type_key}": "{best.name}"}})'
    if best.unknown:
        parts.append(f"It differs in {', '.join(best.unknown)}, which that one does not read")
        parts.append(
            f"If both make the same of {config.decoded_media} all the same, leave these values out and say so: {named}"
        )
    else:
        parts.append(
            f"That one would accept all of them, which does not prove that both make the same of {config.decoded_media}"
        )
        parts.append(f"If they do, say so: {named}")
    return ". ".join(parts) + ". "


def _compare(family: type[ProcessorFamily], name: str, config: ProcessorConfig) -> _Likeness:
    likeness = difflib.SequenceMatcher(None, _stem(config.type_name), _stem(name)).ratio()
    tried, refused = config.under(name), ""
    try:
        family.from_config(tried)
    except ConfigError as error:
        problem = str(error).partition(": ")[2]
        refused = problem.partition(". Change the value, or run the processor in encode_sample")[0]
    shared = tuple(sorted(key for key in tried.read if key not in _COMMON and not key.startswith("do_")))
    # A family that refuses a value did not come to read the others.
    left = {} if refused else tried.unread(family.unused_keys)
    unknown = tuple(f"{key}={shown(value)}" for key, value in sorted(left.items()))
    return _Likeness(name, shared, unknown, refused, likeness if likeness >= _LEAST_ALIKE else 0.0)


def _stem(name: str) -> str:
    """Returns the model's part of a class name, in lower case."""
    return name.removesuffix("ImageProcessor").removesuffix("VideoProcessor").removesuffix("FeatureExtractor").lower()
