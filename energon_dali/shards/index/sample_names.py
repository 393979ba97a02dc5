"""How member names make samples: `a/b.detail.json` is part `detail.json` of sample `a/b`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from energon_dali.shards.index.tar_scan import TarEnd, TarMember

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

    The key goes up to the first dot of the file name. Names that start with `__...__` are not data. A file name that
    begins with a dot belongs to a sample only in a folder without a dot in its name, as in webdataset: `a/.json` is
    part `json` of sample `a/`.
    """
    if _META.match(name):
        return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    if dot == slash + 1 and (slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]):
        return None
    return name[:dot], name[dot + 1 :]


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
