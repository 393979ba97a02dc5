"""YAML from outside: plain values or one error, whatever the file contains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.documents.yaml_text import MAX_DEPTH, MAX_VALUES, parse_yaml, write_yaml


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "&a [", "!!seq ["])
def test_nesting_without_end_is_refused(opening: str) -> None:
    # Composing such a file overflows the stack of the C loader, and kills the process.
    with pytest.raises(DatasetFormatError, match=r"more than 64 levels|a key is not text|cannot be parsed"):
        parse_yaml(("subflavors: " + opening * 50_000).encode(), "dataset.yaml")


def test_nesting_up_to_the_limit_is_read() -> None:
    value = parse_yaml(("[" * MAX_DEPTH + "]" * MAX_DEPTH).encode(), "x.yaml")
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_merge_keys_are_refused_and_text_like_them_is_not() -> None:
    with pytest.raises(DatasetFormatError, match=r"x\.yaml:2: a merge key \(<<\) is not supported"):
        parse_yaml(b"a: &a {b: 1}\n<<: *a\n", "x.yaml")
    assert parse_yaml(b'"<<": <<', "x.yaml") == {"<<": "<<"}


def test_aliases_count_as_often_as_they_are_used() -> None:
    bomb = b"a: &a [" + b"x," * 999 + b"x]\nb: &b [" + b"*a," * 999 + b"*a]\nc: [*b, *b]"
    with pytest.raises(DatasetFormatError, match=rf"x\.yaml:2: the file holds more than {MAX_VALUES:,} values"):
        parse_yaml(bomb, "x.yaml")


@pytest.mark.parametrize("text", ["9" * 5000, "1e400", "-1e400", "." * 100, "+" * 100, "0" * 5000 + "1", "-.e", "1e"])
def test_odd_numbers_are_values(text: str) -> None:
    assert isinstance(parse_yaml(f"a: {text}".encode(), "x.yaml")["a"], (int, float, str))


def test_the_message_is_short_whatever_the_file_says() -> None:
    long = "x" * 100_000
    for text in (f"{long}: 1\n{long}: 2", f"a: *{long}", f"a: !{long} 1", f"a: [{long}", f"%{long}\n---"):
        with pytest.raises(DatasetFormatError) as caught:
            parse_yaml(text.encode(), "x.yaml")
        assert len(str(caught.value)) < 1000


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab:-?[]{},&*!|>'\"%#@ \n\t<1.e~"), max_size=60) | st.binary(max_size=60))
def test_any_text_gives_plain_values_or_our_error(text: str | bytes) -> None:
    content = text.encode() if isinstance(text, str) else text
    try:
        value = parse_yaml(content, "x.yaml")
    except DatasetFormatError:
        return
    assert isinstance(value, (dict, list, str, int, float, bool, type(None)))


_texts = st.text(st.characters(max_codepoint=0x24F, exclude_categories=["Cc"]), max_size=8) | st.sampled_from(
    ["09", "1e3", "1_000", "on", "yes", "~", "", "2024-01-01", "<<", ".5", "0x1f"]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(_values)
def test_what_is_written_is_read_back(value: object) -> None:
    assert parse_yaml(write_yaml(value), "x.yaml") == value


def test_two_files_of_equal_content_share_no_value() -> None:
    content = b"subflavors: {tags: [a, b]}\nsize: 3"
    first = parse_yaml(content, "one.yaml")
    first["subflavors"]["tags"].append("c")
    second = parse_yaml(content, "two.yaml")
    second["subflavors"]["more"] = 1
    assert parse_yaml(content, "three.yaml") == {"subflavors": {"tags": ["a", "b"]}, "size": 3}


def test_equal_mistakes_name_each_file() -> None:
    for name in ("one.yaml", "two.yaml"):
        with pytest.raises(DatasetFormatError, match=rf"{name}:2: the key 'a' is used a second time"):
            parse_yaml(b"a: 1\na: 2", name)


def test_lines_are_recorded_for_a_file_that_was_read_before() -> None:
    content = b"a: 1\nb: 2"
    parse_yaml(content, "one.yaml")
    lines: dict[tuple[str | int, ...], int] = {}
    parse_yaml(content, "one.yaml", lines)
    assert lines == {(): 1, ("a",): 1, ("b",): 2}
