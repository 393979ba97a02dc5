"""Which sample goes to which shard: sizes, splits and order."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.pack.options import PackOptions, parse_columns, parse_split
from energon_dali.pack.plan import SplitRules, cut_shards
from energon_dali.pack.record import Record
from energon_dali.shards.documents.content import parse_bytes
from tests.pack.images_folder import load, pack, write_images


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 200),
)
def test_shards_hold_as_much_as_fits(samples: list[tuple[int, int]], max_samples: int, max_kib: int) -> None:
    samples.sort(key=lambda pair: pair[0])
    part, sizes = (np.array(column, np.int64) for column in zip(*samples, strict=True))
    limit = max_kib * 1024
    cuts = cut_shards(part, sizes * 512, max_samples, limit)
    assert cuts[0] == 0
    assert cuts[-1] == len(samples)
    shards = [slice(start, stop) for start, stop in itertools.pairwise(cuts)]
    for shard, following in zip(shards, [*shards[1:], None], strict=True):
        count, size = shard.stop - shard.start, int(sizes[shard].sum()) * 512 + 1024
        assert len(set(part[shard])) == 1
        assert 0 < count <= max_samples
        assert size <= limit or count == 1
        if following is not None and part[following.start] == part[shard.start]:
            assert count == max_samples or size + sizes[following.start] * 512 > limit


@pytest.mark.parametrize(("max_bytes", "cuts"), [(4096, [0, 2, 4, 5]), (4095, [0, 1, 2, 3, 5]), (5632, [0, 3, 5])])
def test_a_sample_that_just_fits_goes_into_the_shard(max_bytes: int, cuts: list[int]) -> None:
    sizes = np.array([1536, 1536, 1536, 1536, 512], np.int64)  # and 1,024 for the end of each tar
    assert cut_shards(np.zeros(5, np.int64), sizes, 100, max_bytes).tolist() == cuts


def test_sizes_of_shards_are_what_was_asked(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", 20)
    result = pack(source, tmp_path / "out", max_bytes=10_240)
    assert len(result.shards) == 5
    assert all((result.out / shard.name).size() == shard.size <= 10_240 for shard in result.shards)


def test_a_split_by_weights_depends_on_the_key_alone() -> None:
    rules = SplitRules((("train", 3.0), ("val", 1.0)), seed=1)
    parts = {key: rules.part_of(Record(key)) for key in map(str, range(4000))}
    assert 850 < sum(part == "val" for part in parts.values()) < 1150
    assert (
        sum(parts[key] != SplitRules((("train", 3.0), ("val", 1.0)), seed=2).part_of(Record(key)) for key in parts)
        > 1000
    )
    wider = SplitRules((("train", 2.0), ("val", 2.0)), seed=1)
    assert all(wider.part_of(Record(key)) == "val" for key, part in parts.items() if part == "val")


def test_split_and_order_of_a_folder(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", 20)
    plain = pack(source, tmp_path / "plain", split=(("a", "a/"), ("b", "b/")))
    assert plain.split_samples == {"a": 10, "b": 10}
    assert list(load(plain, "a")) == [f"a/img_{n:03d}" for n in range(0, 20, 2)]
    shuffled = pack(source, tmp_path / "shuffled", shuffle=1, split=(("a", "a/"), ("b", "b/")))
    keys = list(load(shuffled, "a"))
    assert keys != sorted(keys)
    assert sorted(keys) == list(load(plain, "a"))
    with pytest.raises(ConfigError, match="'b/img_001' matches no pattern of the split"):
        pack(source, tmp_path / "out", split=(("a", "a/"),))


def test_options_of_the_command_line() -> None:
    assert [parse_bytes(text, binary_letters=True) for text in ("1000", "500MB", "1.5GiB", "2k", "7 b")] == [
        1000,
        500_000_000,
        3 << 29,
        2048,
        7,
    ]
    assert parse_split(("train=0.9,val=0.1",)) == (("train", 0.9), ("val", 0.1))
    assert parse_split(("val:val/.*=1", "train:.*")) == (("val", "val/.*=1"), ("train", ".*"))
    assert parse_columns(("image=a,caption=b", "key=c")) == {"image": "a", "caption": "b", "key": "c"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"imag": "a"}}, "role 'imag' .*Did you mean image"),
        ({"max_samples": 0}, "at least 1"),
        ({"sample_type": "OCRSample"}, "cannot be packed"),
        ({"kind": "folders"}, "Give one of auto, folder"),
        ({"split": (("train", -1.0), ("val", 1.0))}, "weights of at least 0"),
        ({"split": (("train", 1.0), ("train", 1.0))}, "names a part twice"),
        ({"split": (("train", 1.0), ("val", ".*"))}, "mixes weights and patterns"),
        ({"split": (("val", "("),)}, "not a regular expression"),
        ({"split": (("../x", 1.0),)}, "letters, digits and underscores"),
    ],
    ids=str,
)
def test_options_that_are_wrong(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PackOptions(**options)  # type: ignore[arg-type]
