"""JSONL files: their index, and reading with it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energon_dali.errors import DatasetError, DatasetFormatError, ShardError
from energon_dali.shards import JsonlFile, JsonlReader, RawSample, StoragePath, prepare_jsonl
from energon_dali.shards.index import jsonl_index
from energon_dali.shards.read_ahead import read_planned

DATA = Path(__file__).parent.parent / "data"
ENDS = st.sampled_from([b"\n", b"\r\n", b" \t\n"])
LINES = st.one_of(
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3).map(lambda value: json.dumps(value).encode()),
    st.just(b"not json"),
    st.just(b"[1, 2]"),
    st.just(b"{broken"),
    st.just(b"   "),
    st.just(b""),
    st.just(b"\t"),
)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(content)
    return path


def read_all(path: Path) -> list[RawSample | DatasetError]:
    file = JsonlFile(path)
    return JsonlReader(file).read([0] * file.num_samples, list(range(file.num_samples)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lines=st.lists(st.tuples(LINES, ENDS), min_size=1, max_size=25),
    whole=st.booleans(),
    scan=st.sampled_from([7, 64, 8 << 20]),
    run=st.sampled_from([20, 1 << 20]),
)
def test_every_line_that_is_not_blank_is_a_sample(
    lines: list[tuple[bytes, bytes]], whole: bool, scan: int, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_index, "SCAN_BYTES", scan)
    monkeypatch.setattr("energon_dali.shards.jsonl.RUN_BYTES", run)
    content = b"".join(line + end for line, end in lines)
    if not whole:
        content = content.rstrip(b"\r\n\t ")
    path = write(tmp_path, content)
    expected = [line.strip() for line in content.split(b"\n") if line.strip()]
    if not expected:
        with pytest.raises(DatasetFormatError, match="no line that is not blank"):
            prepare_jsonl(str(path))
        return
    result = prepare_jsonl(str(path))
    doubtful = [number for number, line in enumerate(expected) if line[:1] + line[-1:] != b"{}"]
    assert (result.num_samples, result.doubtful) == (len(expected), len(doubtful))
    assert list(result.first_doubtful) == doubtful[:10]
    samples = read_all(path)
    assert [sample.parts["json"] for sample in samples] == expected  # type: ignore[union-attr]
    assert [sample.key for sample in samples] == [str(number) for number in range(len(expected))]  # type: ignore[union-attr]


def test_the_index_is_energons(tmp_path: Path) -> None:
    """Offsets as megatron-energon 7.4.1 writes them: blank lines belong to the line before; the first offset is 0."""
    path = write(tmp_path, b'\n  \n{"a": 1}\n\n{"a": 2}\n{"a": 3}\n \n')
    prepare_jsonl(str(path))
    assert np.fromfile(f"{path}.idx", np.uint64).tolist() == [0, 14, 23, 34]


def test_samples_come_in_any_order_and_after_a_pickle(tmp_path: Path) -> None:
    path = write(tmp_path, b"".join(json.dumps({"n": n, "x": "y" * (n % 50)}).encode() + b"\n" for n in range(200)))
    prepare_jsonl(str(path))
    wanted = [*np.random.default_rng(0).permutation(200)[:80].tolist(), 3, 4, 5, 5, 4]
    reader = JsonlReader(JsonlFile(path))
    for current in (reader, pickle.loads(pickle.dumps(reader))):
        found = [json.loads(raw.parts["json"])["n"] for raw in current.read([0] * len(wanted), wanted)]  # type: ignore[union-attr]
        assert found == wanted
        current.close()
    assert reader.name(0, 7) == ("data.jsonl", "7")
    assert reader.locate(reader.index_of(0, 7)) == (0, 7)
    with pytest.raises(DatasetError, match="has 200 samples, and sample 200"):
        reader.locate(200)
    assert isinstance(reader.read([0], [200])[0], ShardError)


def test_an_index_of_another_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a": 1}\n{"a": 2}\n')
    with pytest.raises(
        DatasetFormatError, match=r"is not prepared: .*data\.jsonl\.idx is missing.*energon-dali prepare"
    ):
        JsonlFile(path)
    prepare_jsonl(str(path))
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    with pytest.raises(DatasetFormatError, match=r"has 27 bytes, and data\.jsonl\.idx was made of 18"):
        JsonlFile(path)
    Path(f"{path}.idx").write_bytes(b"1234567")
    with pytest.raises(DatasetFormatError, match="has 7 bytes, which is not a list"):
        JsonlFile(path)


def test_a_line_that_changed_fails_alone(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    prepare_jsonl(str(path))
    path.write_bytes(b'{"a": 1}\n{"a"\n 2}\n{"a": 3}\n')
    first, second, third = read_all(path)
    assert isinstance(first, RawSample)
    assert isinstance(second, ShardError)
    assert "changed since it was indexed: sample 1 is no longer one line" in str(second)
    assert isinstance(third, RawSample)


def test_lines_come_from_a_url_too(tmp_path: Path) -> None:
    path = write(tmp_path, b"".join(b'{"n": %d}\n' % n for n in range(50)))
    prepare_jsonl(str(path))
    file = JsonlFile(path)
    reader = JsonlReader(file)
    wanted = [7, 8, 30, 49, 50, 0]
    found = read_planned(reader, [0] * len(wanted), wanted)  # as of a URL
    assert [raw.parts["json"] for raw in found if isinstance(raw, RawSample)] == [
        b'{"n": 7}',
        b'{"n": 8}',
        b'{"n": 30}',
        b'{"n": 49}',
        b'{"n": 0}',
    ]
    assert isinstance(found[4], ShardError)
    reader.close()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetFormatError, match=r"nothing\.jsonl is missing"):
        prepare_jsonl(StoragePath.of(tmp_path / "nothing.jsonl"))
