"""Operations are validated on construction, and their errors say what to change."""

from __future__ import annotations

import pickle

import pytest

from energon_dali.decode import CenterCrop, HorizontalFlip, Normalize, RandomCrop, RandomResizedCrop, Resize
from energon_dali.errors import ConfigError


def test_operations_are_values() -> None:
    assert RandomResizedCrop(224) == RandomResizedCrop((224, 224)) != RandomResizedCrop(225)
    assert Resize([10, 20]) == Resize((10, 20))  # type: ignore[arg-type]
    assert Resize(10) != Resize((10, 10))
    assert Normalize(0.5, 0.25) == Normalize((0.5,), (0.25,))  # type: ignore[arg-type]
    operations = {Resize(3), CenterCrop(3), RandomCrop((3, 4)), HorizontalFlip(), Normalize((0.1, 0.2), (1, 1))}
    assert pickle.loads(pickle.dumps(operations)) == operations


@pytest.mark.parametrize("operation", [Resize, RandomResizedCrop, CenterCrop, RandomCrop])
@pytest.mark.parametrize("size", [0, -1, 65_536, (3, 0), (1, 2, 3), "224", True, 1.5, None, (2.0, 3)])
def test_a_size_that_is_none_is_refused(operation: type, size: object) -> None:
    with pytest.raises(ConfigError, match=rf"{operation.__name__}\(size=.*Give size=224 or size=\(224, 320\)"):
        operation(size)


@pytest.mark.parametrize("value", [(0.0, 1.0), (2.0, 1.0), (1.0,), (1.0, float("inf")), (float("nan"), 1.0)])
@pytest.mark.parametrize("name", ["scale", "ratio"])
def test_a_range_that_is_none_is_refused(name: str, value: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=f"RandomResizedCrop\\({name}=.*0 < smallest <= largest"):
        RandomResizedCrop(3, **{name: value})  # type: ignore[arg-type]


def test_other_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"'lanczos'.*Choose one of|only bilinear, bicubic, nearest"):
        Resize(3, "lanczos")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"HorizontalFlip\(p=1.5\).*between 0 and 1"):
        HorizontalFlip(1.5)
    with pytest.raises(ConfigError, match="2 means and 1 standard deviations"):
        Normalize((0.1, 0.2), (1.0,))
    for std in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="must be positive and finite"):
            Normalize((0.5,), (std,))
    with pytest.raises(ConfigError, match=r"HorizontalFlip\(p='0.5'\).*between 0 and 1"):
        HorizontalFlip("0.5")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Normalize\(mean='imagenet', std='imagenet'\) is not made of numbers. Give"):
        Normalize("imagenet", "imagenet")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"is in units of 0 to 255. .*divide both by 255"):
        Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))
    for operation in (Resize, RandomResizedCrop):
        with pytest.raises(ConfigError, match="antialias='no' is invalid: give True or False"):
            operation(3, antialias="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", [Resize, RandomResizedCrop])
def test_two_numbers_get_the_pair_suggested(operation: type[Resize] | type[RandomResizedCrop]) -> None:
    with pytest.raises(ConfigError, match=rf"Did you mean {operation.__name__}\(\(224, 192\)\)\?"):
        operation(224, 192)
