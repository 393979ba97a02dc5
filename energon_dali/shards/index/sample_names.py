"""How member names make samples: `a/b.detail.json` is part `detail.json` of sample `a/b`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from energon_dali.shards.index.tar_scan import TarEnd, TarMember

_NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:/|\Z)")


class PartMember(NamedTuple):
    """A part of a sample, as it lies in a tar."""

    key: str
    part: str
    new_sample: bool
    """Whether this is the first part of its sample."""
    member: TarMember


def split_member_name(name: str) -> tuple[str, str] | None:
    """Returns (sample key, part name) of a member, None if it belongs to no sample.

    The key goes up to the first dot of the file name. Names that start with `__...__` are not data.
    """
    if _META.match(name):
        return None
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], match[2])


def group_members(members: Iterable[TarMember | TarEnd]) -> Iterator[PartMember | TarEnd]:
    """Yields the parts among the members, with the borders of samples: parts with one key in a row are a sample."""
    last_key: str | None = None
    for member in members:
        if isinstance(member, TarEnd):
            yield member
            continue
        names = split_member_name(member.name)
        if names is None:
            continue
        key, part = names
        yield PartMember(key, part, key != last_key, member)
        last_key = key
