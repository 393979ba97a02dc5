"""Every public name of Energon 7.4.1 exists with its parameters, or docs/from-energon.md says what replaces it.

`data/energon_7_4_1_names.txt` holds the names, with the parameters of each: `=name` is keyword-only, `*name` and
`**name` take any number.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import energon_dali

TESTS = Path(__file__).parent
LINES = [line.partition(":") for line in (TESTS / "data" / "energon_7_4_1_names.txt").read_text().splitlines()]
PARAMETERS = {name: words.split() for name, _, words in LINES}
PAGE = (TESTS.parent / "docs" / "from-energon.md").read_text()
TABLE = PAGE.partition("## Names")[2]
EXPLAINED = " ".join(line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `"))
GONE = set(re.findall(r"`(\w+)`", EXPLAINED)) & set(PARAMETERS)
LOADERS = {"get_loader", "get_savable_loader", "SavableDataLoader"}


def test_every_name_is_here_or_explained() -> None:
    assert len(PARAMETERS) == 96
    here = {name for name in PARAMETERS if name in energon_dali.__all__}
    assert PARAMETERS.keys() - here == GONE
    for name in here:
        getattr(energon_dali, name)


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """Returns the parameters of one of our names; those of a loader include the ones that it passes on."""
    found = dict(inspect.signature(getattr(energon_dali, name)).parameters)
    if name in LOADERS:
        for passed in (energon_dali.SavableDataLoader, energon_dali.BasicDataLoader):
            found.update(inspect.signature(passed).parameters)
    return found


@pytest.mark.parametrize("name", sorted(name for name in PARAMETERS.keys() - GONE if PARAMETERS[name]))
def test_calls_as_energon_takes_them_are_taken(name: str) -> None:
    found = parameters_of(name)
    for position, word in enumerate(PARAMETERS[name]):
        parameter = word.lstrip("=*")
        if word.startswith("**") or re.search(rf"`{name}\([^`]*\b{parameter}\b", EXPLAINED):
            continue
        assert parameter in found, f"{name} has no {parameter}"
        if word[0] not in "=*":
            assert list(found)[position] == parameter, f"{name}: {parameter} is not at position {position}"
            assert found[parameter].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


@pytest.mark.parametrize("name", sorted(PARAMETERS.keys() - GONE))
def test_what_energon_can_do_without_is_not_demanded_here(name: str) -> None:
    """A parameter that Energon does not have has a default here."""
    value = getattr(energon_dali, name)
    known = {word.lstrip("=*") for word in PARAMETERS[name]}
    if not known:
        return
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name not in known and parameter.kind not in variadic and f"`{name}(" not in EXPLAINED:
            assert parameter.default is not inspect.Parameter.empty, f"{name} demands {parameter.name}"
