"""Opening remote metadatasets: which files are requested, how often, and which error is reported."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from energon_dali import Cooker, DefaultTaskEncoder, get_train_dataset, get_val_datasets, load_dataset
from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards import StoragePath
from energon_dali.shards.documents import opening as opening_module
from energon_dali.shards.documents.content import read_content
from energon_dali.shards.documents.opening import Wanted, opening_files
from energon_dali.shards.storage import retry
from tests.datasets.oracle import config
from tests.shards.web_server import Web, serving

GOLDEN = Path(__file__).parent.parent / "data" / "energon_7_4_1_mix"


def cook(sample: Any) -> Any:
    return sample


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "mix"))


@pytest.fixture
def web(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    with serving(folder) as web:
        yield web


def requested(web: Web) -> dict[str, int]:
    """Returns how often each file name was requested, and forgets it."""
    found: Counter[str] = Counter()
    for (_, name), count in web.requests.items():
        found[name] += count
    web.requests.clear()
    return dict(found)


def open_train(url: str, split_part: str = "train") -> Any:
    return get_train_dataset(
        url, split_part=split_part, worker_config=config(2), batch_size=None, task_encoder=Encoder()
    )


def test_every_small_file_is_requested_once_and_identities_when_a_state_needs_them(web: Web, folder: Path) -> None:
    dataset = open_train(f"{web.url}/second.yaml")
    found = requested(web)
    assert found.pop("extents.bin") == 1  # there is none; the split of "images" excludes a sample by its key
    assert found.pop("index.sqlite")
    assert found == {
        ".info.json": 4,
        "dataset.yaml": 4,
        "second.yaml": 1,
        "second_inner.yaml": 1,
        "split.yaml": 4,
    }
    copy = pickle.loads(pickle.dumps(dataset))
    assert requested(web) == {}
    here = open_train(f"{folder}/second.yaml").config()
    assert dataset.config() == here
    assert requested(web) == {"index.uuid": 4}
    assert dataset.config() == here == copy.config() == pickle.loads(pickle.dumps(dataset)).config()
    assert requested(web) == {"index.uuid": 4}  # of the copy that was made before


def test_joins_and_validation_sets_are_opened_together(web: Web, folder: Path) -> None:
    opened = get_val_datasets(f"{web.url}/join.yaml", worker_config=config(1), batch_size=None)
    found = requested(web)
    (index,) = (name for name in found if (folder / "join.yaml.cache" / name).is_file())
    assert found[index] == 2  # whether it is there, and its content
    assert (found[".info.json"], found["dataset.yaml"], found["split.yaml"], found["index.uuid"]) == (3, 3, 3, 2)
    here = get_val_datasets(folder / "join.yaml", worker_config=config(1), batch_size=None)
    assert [dataset.config() for dataset, _ in opened] == [dataset.config() for dataset, _ in here]


def test_a_blend_of_concatenations_asks_each_file_once(web: Web, folder: Path) -> None:
    path = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    inner = {"concat": [{"path": f"{web.url}/{name}"} for name in ("captions", "texts", "captions")]}
    nested = f"{web.url}/inner.yaml"
    (folder / "inner.yaml").write_text(str({**path, "splits": {"train": inner}}))
    blend = {"blend": [{"path": nested, "weight": 1}, {"path": f"{web.url}/crude", "weight": 2}]}
    sources = load_dataset({**path, "splits": {"train": blend}}).get_datasets(split_part="train").datasets
    assert len(sources) == 4
    assert requested(web) == {".info.json": 2, "dataset.yaml": 2, "inner.yaml": 1, "split.yaml": 2}


@pytest.mark.parametrize("broken", ["images", "crude"])
def test_the_first_wrong_dataset_is_the_error_as_for_local_files(web: Web, folder: Path, broken: str) -> None:
    names = ("images", "texts", "crude", "captions")
    for name in names[names.index(broken) :]:
        (folder / name / ".nv-meta" / ".info.json").unlink()
    messages = []
    for base in (str(folder), web.url):
        with pytest.raises(DatasetFormatError) as caught:
            open_train(f"{base}/second.yaml")
        messages.append(str(caught.value).replace(base, ""))
    assert messages[0] == messages[1]
    assert f"/{broken} is not prepared" in messages[0]


def test_a_server_that_fails_ends_the_opening_after_one_budget(web: Web) -> None:
    web.status = lambda method, name: 503 if name == "split.yaml" else None
    others = set(threading.enumerate())
    with pytest.raises(StorageError, match=r"images/\.nv-meta/split\.yaml.*503"):
        open_train(f"{web.url}/second.yaml")
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("energon-dali-read"):
            thread.join(60)  # they end by themselves
            assert not thread.is_alive()


def test_split_json_and_named_splits_are_found(web: Web, folder: Path) -> None:
    meta = folder / "images" / ".nv-meta"
    (meta / "split.yaml").rename(meta / "other.yaml")
    with (meta / "dataset.yaml").open("a") as file:
        file.write("split_config: other.yaml\n")
    open_train(f"{web.url}/second.yaml")
    assert requested(web)["other.yaml"] == 1


def test_files_wait_for_room(web: Web, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes fetched ahead are limited; a file that is larger than allowed is refused as without threads."""
    monkeypatch.setattr(opening_module, "AHEAD_BYTES", 100)
    monkeypatch.setattr(opening_module, "KEPT_BYTES", 100)
    paths = []
    for number in range(8):
        (folder / f"{number}.txt").write_bytes(b"x" * 90)
        paths.append(StoragePath.of(f"{web.url}/{number}.txt"))
    with opening_files() as opening:
        opening.ahead(Wanted((path,)) for path in (*paths, paths[0]))
        with pytest.raises(DatasetFormatError, match="has 90 bytes"):
            read_content(paths[0], 10)
        assert [read_content(path) for path in paths] == [b"x" * 90] * 8
        assert read_content(StoragePath.of(f"{web.url}/none")) is None
    assert requested(web)["7.txt"] == 1
