"""Reads what a packer returned: which samples of the buffer are packed together, kept, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.samples.base import Key, get_restore_key
from energon_dali.task_encoder.packing import PackSelection

Keyed = tuple[Key, Any]
"""A sample with its restore key."""

_GROUPS_WANTED = (
    "Return a list of groups, each a list of samples of the buffer (the very objects, or copies with their "
    "__restore_key__), or a PackSelection; a sample in no group is dropped."
)


def read_selection(result: Any, keys: Mapping[int, Key]) -> PackSelection[Keyed]:
    """Returns what a packer chose, with the key of each sample, without empty groups; kept samples become groups.

    Args:
        result: What the packer returned: a PackSelection, a list of lists, or a generator of lists.
        keys: Keys of the samples of the buffer, by id of the sample.

    Raises:
        ConfigError: It is none of these, or has a sample that a restore could not make again.
    """
    if not isinstance(result, PackSelection):
        return PackSelection(_groups(result, keys))
    keep = [group if isinstance(group, list) and id(group) not in keys else [group] for group in result.keep]
    return PackSelection(
        _groups(result.packs, keys),
        _groups(keep, keys),  # type: ignore[arg-type]
        [(_keyed([sample], keys)[0], reason) for sample, reason in result.refused],
    )


def _groups(groups: Any, keys: Mapping[int, Key]) -> list[list[Keyed]]:
    if not isinstance(groups, Iterable):
        raise ConfigError(f"select_samples_to_pack returned {type(groups).__name__}. {_GROUPS_WANTED}")
    found = []
    for group in groups:
        if id(group) in keys or not isinstance(group, Iterable):
            raise ConfigError(f"select_samples_to_pack returned {type(group).__name__} as a group. {_GROUPS_WANTED}")
        keyed = _keyed(group, keys)
        if keyed:
            found.append(keyed)
    return found


def _keyed(group: Iterable[Any], keys: Mapping[int, Key]) -> list[Keyed]:
    keyed = [(keys.get(id(sample)) or get_restore_key(sample), sample) for sample in group]
    strange = next((sample for key, sample in keyed if not key), None)
    if strange is not None:
        raise ConfigError(
            f"select_samples_to_pack returned {type(strange).__name__}, which is not one of the samples it received. "
            f"{_GROUPS_WANTED}"
        )
    return keyed
