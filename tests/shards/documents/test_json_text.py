from __future__ import annotations

import json
import math

import pytest

from energon_dali.shards.documents.json_text import MAX_DEPTH, parse_json


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused(depth: int, opening: str, closing: str) -> None:
    text = opening * depth + "1" + closing * depth
    for content in (text, text.encode()):
        with pytest.raises(ValueError, match="more than 64 levels"):
            parse_json(content)


def test_nesting_up_to_the_limit_and_many_brackets_are_read() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(deep) == json.loads(deep)
    wide = json.dumps([{"a": [i]} for i in range(1000)])
    assert parse_json(wide.encode()) == json.loads(wide)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000, "NaN", "Infinity"])
def test_numbers_that_do_not_fit_are_refused(number: str) -> None:
    with pytest.raises(ValueError, match=r"not fit|is not a number|limit") as caught:
        parse_json(f'{{"a": {number}}}')
    assert len(str(caught.value)) < 200


def test_numbers_that_fit_are_read() -> None:
    text = f"[{(1 << 70) - 1}, {-(1 << 63)}, 1.5e300]"
    assert parse_json(text) == json.loads(text)
    assert parse_json("[1e400]", any_number=True) == [math.inf]


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": [1, 2.5, null, true]}',
        b"[]",
        b"{}",
        b' {"a": 1}',
        b'{"a": 1}\n',
        b"3",
        b'"text"',
        '{"a": "\u00e4\U0001f600"}'.encode(),
        b'{"a": "\\ud800"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-16-le"),
        '{"a": 1}'.encode("utf-16-be"),
        '{"a": 1}'.encode("utf-32"),
        '{"a": 1}'.encode("utf-32-le"),
        "[1]".encode("utf-16-le"),
        b'{"a": NaN, "b": -Infinity, "c": 1e400, "d": 123456789012345678901234567890}',
        b'{"a": 1, "a": 2}',
    ],
    ids=repr,
)
def test_bytes_have_the_value_that_json_gives_them(content: bytes) -> None:
    assert repr(parse_json(content, any_number=True)) == repr(json.loads(content))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1,",
        b"{}{}",
        b"[1] x",
        b'{"a" 1}',
        b'{"a": "\xff"}',
        b"{\0",
        b"\0{",
        b"nul",
        b"[1]]",
        b'{"a": "\n"}',
        "[",
        "[1] x",
    ],
    ids=repr,
)
def test_what_is_not_json_has_the_error_that_json_raises(content: bytes | str) -> None:
    errors = []
    for parse in (json.loads, lambda text: parse_json(text, any_number=True)):
        try:
            parse(content)
        except ValueError as error:
            errors.append((type(error), str(error)))
    assert len(errors) == 2
    assert errors[0] == errors[1]
