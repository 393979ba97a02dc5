from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.error_handlers import describe, log_exception, reraise_exception
from energon_dali.errors import DecodeError, ShardError
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.kinds import CaptioningSample


def fail() -> Exception:
    try:
        raise ValueError("the pixels are upside down")
    except ValueError as error:
        return error


def test_a_failure_is_logged_with_trace_source_and_shapes(caplog: pytest.LogCaptureFixture) -> None:
    sample = CaptioningSample(__key__="a/7", __restore_key__=(), image=torch.zeros(3, 40, 50), caption="x" * 1000)
    sample.length = 31  # type: ignore[attr-defined]
    source = SourceInfo(dataset_path="/data", index=7, shard_name="shard_3.tar", file_names=("a/7.jpg",))
    with caplog.at_level(logging.ERROR, "energon_dali"):
        log_exception(fail(), sample, [source])
    (record,) = caplog.records
    assert "ValueError: the pixels are upside down" in record.message
    assert "in fail" in record.message
    assert "shard_3.tar" in record.message
    assert "a/7" in record.message
    assert "Tensor(shape=(3, 40, 50), dtype=torch.float32, device=cpu)" in record.message
    assert "(1000 characters)" in record.message
    assert "length=31" in record.message
    assert len(record.message) < 2000


@pytest.mark.parametrize("error", [DecodeError("the file\nends early", "jpeg", "pil"), ShardError("it shrank")])
def test_a_damaged_file_is_one_line_and_its_traceback_is_for_debugging(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    source = SourceInfo(dataset_path="/data", index=7, shard_name="shard_3.tar", file_names=("a/7.jpg", "a/7.txt"))
    with caplog.at_level(logging.INFO, "energon_dali"):
        log_exception(error, CaptioningSample(__key__="a/7", __restore_key__=(), image=b"", caption=""), [source])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    text = " ".join(str(error).split())
    assert record.message == f"A sample was dropped: {text} (a/7.jpg, a/7.txt in shard_3.tar of /data)"
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "energon_dali"):
        log_exception(error, None, [])
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.DEBUG]
    assert type(error).__name__ in caplog.records[1].message


def test_many_sources_and_no_sample(caplog: pytest.LogCaptureFixture) -> None:
    sources = [SourceInfo(dataset_path="/data", index=i, shard_name="s", file_names=()) for i in range(30)]
    log_exception(fail(), None, sources)
    assert "and 22 more" in caplog.text
    assert "sample:" not in caplog.text
    caplog.clear()
    log_exception(fail(), [1], None)
    assert "source:" not in caplog.text


def test_the_other_handler_raises() -> None:
    error = fail()
    with pytest.raises(ValueError, match="upside down") as caught:
        reraise_exception(error, None)
    assert caught.value is error


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"12345", "bytes(5 bytes)"),
        (None, "None"),
        (1.5, "1.5"),
        ({"a": [1, "x"]}, "{a: [1, 'x']}"),
        (np.zeros((2, 3), np.uint8), "ndarray(shape=(2, 3), dtype=uint8"),
        (list(range(100)), "... 84 more]"),
        ([[[[[[1]]]]]], "[[[[list(...)]]]]"),
        (SourceInfo, "<class"),
    ],
)
def test_descriptions_are_short(value: Any, expected: str) -> None:
    assert expected in describe(value)


def test_what_has_no_short_form_is_cut() -> None:
    class Long:
        def __repr__(self) -> str:
            return "y" * 5000

    assert len(describe(Long())) < 200


def test_what_cannot_be_described_says_so() -> None:
    class Mute:
        def __repr__(self) -> str:
            raise AttributeError("not set yet")

    assert describe([Mute()]) == "[Mute(repr failed: AttributeError)]"
