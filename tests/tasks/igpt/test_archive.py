from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.tasks.vision.igpt.cifar_archive import download, load_plain, md5_of, read_archive
from tests.tasks.igpt.archives import CLASSES, PER_BATCH, TRAIN, batch, pictures, python_2_pickle, whole, write_archive


def test_pictures_and_classes_come_in_the_order_of_the_files(archive: Path) -> None:
    content = read_archive(archive)
    assert content.classes == CLASSES
    expected = [pictures(name, PER_BATCH) for name in TRAIN]
    flat = np.concatenate([data for data, _ in expected])
    assert np.array_equal(content.train.pixels, flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert content.train.labels.tolist() == [label for _, labels in expected for label in labels]
    assert len(content.test.labels) == 10


def test_what_python_2_wrote_is_read() -> None:
    data, labels = pictures("data_batch_1", 3)
    found = load_plain(python_2_pickle(data, labels), "a file")
    assert np.array_equal(found[b"data"], data)
    assert found[b"labels"] == labels


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_python_3_writes_is_read(protocol: int, order: Any) -> None:
    data = np.asarray(pictures("data_batch_1", 3)[0], order=order)
    value = {b"data": data, "text": ["a", 1.5, None, True, (2**70, b"\xff\x00")]}
    found = load_plain(pickle.dumps(value, protocol), "a file")
    assert np.array_equal(found.pop(b"data"), value.pop(b"data"))
    assert found == value


def test_the_binary_archive_holds_the_same(archive: Path, tmp_path: Path) -> None:
    files = {}
    for name in (*TRAIN, "test_batch"):
        data, labels = pictures(name, 10 if name == "test_batch" else PER_BATCH)
        rows = np.concatenate([np.array(labels, np.uint8)[:, None], data], axis=1)
        files[f"cifar-10-batches-bin/{name}.bin"] = rows.tobytes()
    files["cifar-10-batches-bin/batches.meta.txt"] = "\n".join([*CLASSES, "", ""]).encode()
    found, expected = read_archive(write_archive(tmp_path, files)), read_archive(archive)
    assert found.classes == expected.classes
    for mine, theirs in ((found.train, expected.train), (found.test, expected.test)):
        assert np.array_equal(mine.pixels, theirs.pixels)
        assert np.array_equal(mine.labels, theirs.labels)
    cut = {name: data[:-1] if name.endswith("1.bin") else data for name, data in files.items()}
    with pytest.raises(DatasetFormatError, match=r"data_batch_1\.bin of .* bytes, which are not rows of 3073"):
        read_archive(write_archive(tmp_path, cut))
    files.pop("cifar-10-batches-bin/test_batch.bin")
    with pytest.raises(DatasetFormatError, match=r"has no cifar-10-batches-bin/test_batch\.bin"):
        read_archive(write_archive(tmp_path, files))


class Runs:
    """Runs a command where it is unpickled by the usual reader."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


HOSTILE = {
    "command": lambda mark: pickle.dumps(Runs(os.system, f"touch {mark}")),
    "eval": lambda mark: pickle.dumps(Runs(eval, f"open({str(mark)!r}, 'w')")),
    "numpy": lambda mark: pickle.dumps(Runs(np.save, str(mark), [1])),
    "instance": lambda mark: b"(i__main__\nRuns\n.",
    "persistent": lambda mark: b"Pmark\n.",
    "extension": lambda mark: b"\x80\x02\x82\x01.",
    "function's state": lambda mark: b"\x80\x02cnumpy\ndtype\n}b.",
    "attribute": lambda mark: b"\x80\x02cnumpy\ndtype\nN}U\x05_callK\x01s\x86b.",
    "bare function": lambda mark: b"\x80\x02cnumpy\ndtype\n.",
    "bare dtype": lambda mark: b"\x80\x02cnumpy\ndtype\nU\x02u1\x85R.",
    "empty array": lambda mark: b"\x80\x02cnumpy\nndarray\n)R.",
    "objects": lambda mark: pickle.dumps(np.array([Runs(os.system, f"touch {mark}")])),
    "floats": lambda mark: pickle.dumps(np.ones(3)),
    "length": lambda mark: b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "deep": lambda mark: b"]" * 100_000 + b"a" * 99_999 + b".",
    "cut off": lambda mark: pickle.dumps({b"data": np.zeros(99, np.uint8)})[:-20],
    "not a pickle": lambda mark: b"GIF89a",
    "empty": lambda mark: b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_that_is_more_than_data_is_refused_and_runs_nothing(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(DatasetFormatError, match=r"^a file (holds|is not a complete pickle)"):
        load_plain(HOSTILE[name](mark), "a file")
    assert not list(tmp_path.iterdir())
    assert np.dtype("u1") == np.uint8  # what the pickle named is as it was


def test_a_pickle_that_counts_to_a_large_number_takes_no_memory_for_it() -> None:
    assert load_plain(b"\x80\x02]r" + struct.pack("<I", 2**31 - 2) + b".", "a file") == []


def changed(name: str, **fields: Any) -> dict[str, bytes]:
    value = {**batch(name, PER_BATCH), **{key.encode(): inner for key, inner in fields.items()}}
    return {**whole(), name: pickle.dumps(value, protocol=2)}


WRONG = {
    "missing": ({k: v for k, v in whole().items() if k != "data_batch_3"}, "has no cifar-10-batches-py/data_batch_3"),
    "upwards": ({**whole(), "../../evil": b""}, r"'\.\./\.\./evil', which leads out"),
    "absolute": ({**whole(), "/etc/evil": b""}, "'/etc/evil', which leads out"),
    "code": (
        {**whole(), "test_batch": pickle.dumps(Runs(os.getcwd))},
        r"test_batch of .* holds the name posix\.getcwd",
    ),
    "shape": (changed("data_batch_2", data=np.zeros((8, 99), np.uint8)), r"data is of shape \(8, 99\)"),
    "no data": (changed("data_batch_2", data=None), "data is of type NoneType"),
    "labels": (changed("data_batch_2", labels=[0] * 7), "labels must be 8 numbers of classes, 0 to 3"),
    "range": (changed("data_batch_2", labels=[4] * 8), "labels must be 8 numbers"),
    "list": ({**whole(), "test_batch": pickle.dumps([1])}, "holds a list"),
    "names": ({**whole(), "batches.meta": pickle.dumps({})}, "no list label_names"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_archive_that_is_not_whole_is_refused_in_words(name: str, tmp_path: Path) -> None:
    files, message = WRONG[name]
    path = write_archive(tmp_path, files)
    with pytest.raises(DatasetFormatError, match=message):
        read_archive(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_cut_off_archive_is_refused(share: float, archive: Path, tmp_path: Path) -> None:
    path = tmp_path / archive.name
    data = archive.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DatasetFormatError, match=r"damaged or cut off|has no cifar-10-batches-py"):
        read_archive(path)


def test_no_bit_of_an_archive_flips_unseen(archive: Path, tmp_path: Path) -> None:
    """But one that changes no picture may, such as those of the time in the header."""
    expected = read_archive(archive)
    data = archive.read_bytes()
    path = tmp_path / archive.name
    seen = 0
    for place in range(0, len(data), len(data) // 60):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            found = read_archive(path)
        except DatasetFormatError:
            seen += 1
        else:
            assert np.array_equal(found.train.pixels, expected.train.pixels)
            assert np.array_equal(found.test.pixels, expected.test.pixels)
    assert seen > 50


def test_an_archive_that_is_not_there_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        read_archive(tmp_path / "no.tar.gz")


def test_a_download_is_whole_or_not_there(archive: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / archive.name
    with pytest.raises(DatasetFormatError, match="gave a file with the MD5"):
        download(archive.as_uri(), target, "0" * 32, progress=False)
    assert not list(target.parent.iterdir())
    with pytest.raises(StorageError, match=r"could not be downloaded .* Where there is no network"):
        download("http://127.0.0.1:1/x.tar.gz", target, "0" * 32, progress=False)
    assert not list(target.parent.iterdir())
    download(archive.as_uri(), target, md5_of(archive), progress=False)
    assert target.read_bytes() == archive.read_bytes()
    assert len(list(target.parent.iterdir())) == 1
