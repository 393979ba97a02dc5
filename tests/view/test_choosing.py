"""Samples are sorted, chosen, tagged, compared and exported; a file of keys is trained on, and opened again."""

from __future__ import annotations

import http.client
import io
import json
import random
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from energon_dali import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, measure_datasets
from energon_dali.errors import ConfigError
from energon_dali.shards import prepare_dataset, prepare_jsonl
from energon_dali.view.catalog import Catalog
from energon_dali.view.chosen import ChosenSamples, Tags, rows_among
from energon_dali.view.comparison import compare_texts
from energon_dali.view.dataset import FolderDataset
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.scan_store import BLOCK, BlockScanner
from energon_dali.view.selection import SearchCache
from energon_dali.view.sort_keys import sort_keys
from energon_dali.view.sorted_samples import SortedSamples
from energon_dali.view.viewed_sample import Rows
from tests.assembly.measured_encoders import Letters
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards
from tests.view.page_server import PageServer, serving
from tests.view.test_pages import shown
from tests.view.test_scan import scan_here

COUNT = 30
JSON = {"accept": "application/json"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number:04d}": captioning_sample(number) for number in range(COUNT)}
    return prepare(write_shards(tmp_path_factory.mktemp("choosing") / "data", samples))


@pytest.fixture(scope="module")
def server(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    scans = tmp_path_factory.mktemp("scans")
    scan_here(dataset, scans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENERGON_DALI_TAGS", str(tmp_path_factory.mktemp("tags")))
        with serving(dataset, scans) as running:
            yield running


@pytest.fixture(autouse=True)
def _nothing_is_chosen(server: PageServer) -> None:
    entry = server.site.catalog.entries[0]
    server.site.chosen(entry).change("only", np.zeros(0, np.int64))
    for name in server.site.tags(entry).names():
        server.site.tags(entry).remove(name)


def post(server: PageServer, path: str, headers: dict[str, str] | None = None) -> Any:
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin", "Content-Length": "0"}
    return server.ask(f"/data/0/{path}", "POST", {**own, **(headers or JSON)})


def chosen(server: PageServer) -> list[int]:
    return shown(server.ask("/data/0?chosen=1&size=96").text)


def version(server: PageServer, query: str) -> str:
    """Returns what a page sends to say which list it shows."""
    (found,) = re.findall(r'data-version="([^"]+)"', server.ask(f"/data/0?{query}").text)
    return str(found)


# --- orders ----------------------------------------------------------------------------------------------------------


def listed(server: PageServer, query: str) -> list[int]:
    return [number for page in (1, 2, 3) for number in shown(server.ask(f"/data/0?size=10&page={page}&{query}").text)]


def test_samples_are_sorted_by_size_and_key(server: PageServer) -> None:
    dataset = server.site.catalog.entries[0].opened
    sizes = [dataset.sample(number).size for number in range(COUNT)]
    assert listed(server, "sort=bytes") == sorted(range(COUNT), key=lambda number: sizes[number])
    assert listed(server, "sort=-bytes") == sorted(range(COUNT), key=lambda number: -sizes[number])
    assert listed(server, "sort=-key") == list(range(COUNT))[::-1]
    narrow = [number for number in range(COUNT) if sizes[number] >= sorted(sizes)[20]]
    assert shown(server.ask(f"/data/0?min_bytes={sorted(sizes)[20]}&sort=bytes").text) == sorted(
        narrow, key=lambda number: sizes[number]
    )


def test_samples_are_sorted_by_what_a_scan_found(server: PageServer) -> None:
    assert listed(server, "sort=text_length") == [*range(10), *range(10, COUNT)]
    assert listed(server, "sort=-width")[:10] == [number for number in range(COUNT) if number % 3 == 2]
    found = shown(server.ask("/data/0?text=picture&sort=-width&size=10").text)
    assert found == [number for number in range(COUNT) if number % 3 == 2]


def test_samples_are_sorted_by_measures(dataset: Path, server: PageServer) -> None:
    measure_datasets(str(dataset), Letters())
    server.site._sort_keys.clear()
    keys = {key.label: key.name for key in server.site.sort_keys(server.site.catalog.entries[0])}
    assert "text_tokens" in keys
    lengths = [len(f"picture number {number}") for number in range(COUNT)]
    found = listed(server, f"sort=-{keys['text_tokens']}")
    assert found == sorted(range(COUNT), key=lambda number: -lengths[number])
    assert keys["tokens"].endswith(".tokens")


def test_samples_are_sorted_by_numbers_in_their_json(server: PageServer) -> None:
    server.site._sort_keys.clear()
    names = {key.name for key in server.site.sort_keys(server.site.catalog.entries[0])}
    assert "field.number" in names
    assert "field.tags" not in names  # texts
    assert listed(server, "sort=-field.number") == list(range(COUNT))[::-1]


def test_an_unknown_order_or_tag_is_said(server: PageServer) -> None:
    page = server.ask("/data/0?sort=-nothing&tag=none").text
    assert "cannot be sorted by &#39;nothing&#39;" in page
    assert "There is no tag &#39;none&#39;" in page
    assert shown(page) == list(range(COUNT))


def test_the_next_sample_is_that_of_the_order(server: PageServer) -> None:
    order = listed(server, "sort=-bytes")
    page = server.ask(f"/data/0/sample/{order[4]}?sort=-bytes").text
    links = re.findall(r'rel="(prev|next)" href="/data/0/sample/(\d+)', page)
    assert [(kind, int(number)) for kind, number in links] == [("prev", order[3]), ("next", order[5])]


def test_images_whose_sizes_the_index_knows_are_sorted_without_a_scan(tmp_path: Path) -> None:
    from energon_dali.cli.media_options import check_image

    plain = write_shards(tmp_path / "plain", {f"a{number}": captioning_sample(number) for number in range(9)})
    prepare_dataset(str(plain), split_patterns=[("train", ".*")], check_part=check_image)
    with serving(plain, tmp_path / "scans") as server:
        page = server.ask("/data/0?sort=-aspect").text
        assert shown(page) == [2, 5, 8, 1, 4, 7, 0, 3, 6]
        assert "a scan has to read" not in page
        assert "a scan has to read" in server.ask("/data/0?sort=duration").text
        origins = {
            key.name: key.origin for key in sort_keys(server.site.catalog.entries[0].opened, server.site.scan, 0)
        }
        assert (origins["pixels"], origins["duration"]) == ("index", "scan")


def test_what_is_not_known_comes_last() -> None:
    rows = Rows(np.array([10], np.int64), np.array([6], np.int64))
    values = np.array([3, np.nan, 1, 3, np.nan, 2])
    for descending, expected in ((False, [12, 15, 10, 13, 11, 14]), (True, [10, 13, 15, 12, 11, 14])):
        found = SortedSamples(
            rows, lambda numbers: values[numbers - 10], descending=descending, waits_for_scan=False, share=lambda: 1.0
        )
        page = found.page(0, 99, 10)
        assert (page.indices.tolist(), page.found, page.searched) == (expected, 6, 1.0)
        assert [found.position(index) for index in (12, 14, 9)] == [expected.index(12), 5, None]


def test_a_list_that_is_being_sorted_says_so() -> None:
    rows = Rows(np.array([0], np.int64), np.array([6], np.int64))
    known = threading.Event()
    found = SortedSamples(
        rows,
        lambda numbers: np.zeros(len(numbers) * known.wait(60)),
        descending=False,
        waits_for_scan=False,
        share=lambda: 1.0,
    )
    assert (found.page(0, 3, 0).indices.tolist(), found.page(0, 3, 0).searched) == ([], 0.0)
    known.set()
    assert found.page(2, 4, 60).indices.tolist() == [2, 3]


# --- choosing --------------------------------------------------------------------------------------------------------


def test_samples_are_chosen_one_by_one_by_position_and_by_query(server: PageServer) -> None:
    assert post(server, "chosen?action=add&samples=3,5,3").json == {"chosen": 2}
    assert post(server, "chosen?action=toggle&samples=5,7").json == {"chosen": 2}
    assert chosen(server) == [3, 7]
    order = listed(server, "sort=-bytes")
    post(server, f"chosen?action=only&sort=-bytes&from=6&to=2&seen={version(server, 'sort=-bytes')}")
    assert chosen(server) == sorted(order[2:7])
    post(server, "chosen?action=only&all=1&key=k001&sort=-bytes")
    assert chosen(server) == list(range(10, 20))
    post(server, "chosen?action=remove&all=1&text=number")
    assert chosen(server) == []
    assert post(server, "chosen?action=add&samples=999").json == {"chosen": 0}
    numbers = ("-1", "\u0663", "x", "1" * 20, ",".join(["1"] * 1001))
    for wrong in (
        "action=add",
        "action=x&samples=1",
        "action=add&from=1",
        *(f"action=add&samples={n}" for n in numbers),
    ):
        assert post(server, f"chosen?{quote(wrong, '=&')}").status == 422


def test_a_range_of_a_list_that_has_changed_is_refused(server: PageServer) -> None:
    post(server, "tags?action=add&name=good&samples=2,9,15,20")
    for query in ("tag=good", "tag=good&key=k00", "tag=good&sort=-key", "tag=good&text=picture"):
        seen, address = version(server, query), f"chosen?action=only&{query}&from=1&to=2"
        assert seen == version(server, f"{query}&page=2&size=10")
        assert post(server, f"{address}&seen={seen}").json == {"chosen": 2}
        post(server, "tags?action=remove&name=good&samples=9")
        post(server, "tags?action=add&name=good&samples=10")  # as many as before
        before = chosen(server)
        for stale in (seen, f"{seen},{version(server, query)}", ""):
            refused = post(server, f"{address}&seen={stale}")
            assert refused.status == 409
            assert "has changed" in refused.json["error"]
        assert chosen(server) == before
        post(server, "tags?action=remove&name=good&samples=10")
        post(server, "tags?action=add&name=good&samples=9")
        assert post(server, f"{address}&seen={seen}").status == 200  # it is the same list again


def test_a_range_of_a_list_that_a_scan_has_extended_is_refused(tmp_path: Path) -> None:
    samples = {f"k{number:03d}": {"txt": b"word"} for number in range(2 * BLOCK)}
    data = prepare(write_shards(tmp_path / "data", samples), {"text": "txt"}, "TextSample")
    with serving(data, tmp_path / "scans") as server:
        source = ScanSource(str(data))
        server.site.scan.store().create()
        scanner = BlockScanner([(source, server.site.scan.store())])
        scanner.scan((0, 1))
        seen = version(server, "text=word")
        address = f"chosen?action=only&text=word&from=0&to=3&seen={seen}"
        assert post(server, address).json == {"chosen": 4}
        assert chosen(server) == [BLOCK, BLOCK + 1, BLOCK + 2, BLOCK + 3]
        scanner.scan((0, 0))
        assert post(server, address).status == 409


def test_a_form_leads_back_and_a_foreign_site_is_refused(server: PageServer) -> None:
    answer = post(server, "chosen?action=add&samples=1&back=/data/0%3Fpage%3D2", {"Accept": "text/html"})
    assert (answer.status, answer.headers["location"]) == (303, "/data/0?page=2")
    away = post(server, "chosen?action=add&samples=1&back=//evil.example", {"Accept": "text/html"})
    assert away.headers["location"] == "/"
    for path in ("chosen?action=add&samples=2", "tags?action=add&name=x&samples=2", "chosen/open?name=x.txt"):
        refused = server.ask(f"/data/0/{path}", "POST", {"Origin": "http://evil.example", "Content-Length": "0"})
        assert refused.status == 403
        assert server.ask(f"/data/0/{path}").status == 405
    assert chosen(server) == [1]


def test_the_grid_and_a_sample_say_what_is_chosen(server: PageServer) -> None:
    post(server, "chosen?action=add&samples=1,2")
    page = server.ask("/data/0?size=10").text
    assert re.findall(r'data-index="(\d+)" data-position="\d+" aria-pressed="true"', page) == ["1", "2"]
    assert 'id="num-chosen">2<' in page
    assert 'data-index="2" aria-pressed="true"' in server.ask("/data/0/sample/2").text
    assert 'data-index="3" aria-pressed="false"' in server.ask("/data/0/sample/3").text


def test_choices_are_sets() -> None:
    found = ChosenSamples()
    numbers = random.Random(2)
    plain: set[int] = set()
    for _ in range(60):
        given = [numbers.randrange(30) for _ in range(numbers.randrange(8))]
        action = numbers.choice(["add", "remove", "toggle", "only"])
        found.change(action, np.array(given, np.int64))
        changes = {"add": plain | {*given}, "remove": plain - {*given}, "toggle": plain ^ {*given}, "only": {*given}}
        plain = changes[action]
        assert found.numbers.tolist() == sorted(plain)
        rows = Rows(np.array([20, 3, 15], np.int64), np.array([4, 9, 0], np.int64))
        inside = [number for number in sorted(plain) if 3 <= number < 12 or 20 <= number < 24]
        among = rows_among(rows, found.numbers)
        assert among.take(0, 99).tolist() == inside
    with pytest.raises(ConfigError, match="does nothing"):
        found.change("", np.zeros(0, np.int64))


# --- files -----------------------------------------------------------------------------------------------------------


def open_file(server: PageServer, name: str, content: bytes, dataset: int = 0) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"Origin": server.url, "Cookie": server.cookie, "Sec-Fetch-Site": "same-origin"}
    connection.request("POST", f"/data/{dataset}/chosen/open?name={quote(name)}", content, headers)
    answer = connection.getresponse()
    found = (answer.status, json.loads(answer.read()))
    connection.close()
    return found


def test_a_file_of_keys_is_opened_and_exported(server: PageServer) -> None:
    assert open_file(server, "mine.txt", b"k0004\nk0011\nk0004\n") == (200, {"chosen": 2})
    lines = server.ask("/data/0/chosen.jsonl")
    assert lines.headers["content-disposition"] == "attachment; filename*=utf-8''data-chosen.jsonl"
    assert lines.text.splitlines() == [
        '{"shard": "shard_000.tar", "key": "k0004"}',
        '{"shard": "shard_001.tar", "key": "k0011"}',
    ]
    assert server.ask("/data/0/chosen.txt").text == "k0004\nk0011\n"
    assert server.ask("/data/0/chosen.csv").status == 404
    assert open_file(server, "mine.jsonl", lines.content) == (200, {"chosen": 2})
    for name, content, message in (
        ("mine.txt", b"k0004\nnone\n", "names 1 sample that data does not have: none. Nothing was chosen."),
        ("mine.csv", b"k0004", "with a key per line"),
        ("mine.jsonl", b"<script>", "names no sample"),
        ("../../etc/passwd", b"", "with a key per line"),
    ):
        status, answer = open_file(server, name, content)
        assert status == 422
        assert message in answer["error"]
    assert chosen(server) == [4, 11]


def test_a_key_with_a_line_break_is_exported_as_json_alone(tmp_path: Path) -> None:
    data = prepare(write_shards(tmp_path / "data", {"a\nb": {"txt": b"x"}, "a": {"txt": b"x"}}, 1))
    with serving(data, tmp_path / "scans") as running:
        assert post(running, "chosen?action=add&samples=1").json == {"chosen": 1}
        assert running.ask("/data/0/chosen.txt").text == "a\n"
        post(running, "chosen?action=add&samples=0")
        refused = running.ask("/data/0/chosen.txt")
        assert refused.status == 422
        assert "Export JSON lines" in refused.text
        lines = running.ask("/data/0/chosen.jsonl")
        assert open_file(running, "dir/mine.jsonl", lines.content) == (200, {"chosen": 2})


def test_what_a_browser_sends_has_limits(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.view.choosing.MAX_OPENED_BYTES", 1 << 20)
    status, answer = open_file(server, "mine.txt", b"k0004\n" * 200_000)
    assert status == 413
    assert "more than 1 MiB" in answer["error"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"Origin": server.url, "Cookie": server.cookie, "Sec-Fetch-Site": "same-origin"}
    connection.request("POST", "/data/0/tags?action=add", b"name=" + b"x" * 100_000, headers)
    assert connection.getresponse().status == 413
    connection.close()
    assert (
        post(server, "tags?action=add&samples=1&name=" + quote("\U0001d400" * 64)).status == 422
    )  # too long for a file


def test_500_samples_are_exported_trained_on_and_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a dataset in a metadataset, which names the exported file."""
    monkeypatch.setenv("ENERGON_DALI_TAGS", str(tmp_path / "tags"))
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(4):
        with tarfile.open(folder / f"shard_{shard}.tar", "w") as tar:
            for number in range(300):
                info = tarfile.TarInfo(f"s{shard}/k{number:04d}.txt")
                info.size = 1 + number % 50
                tar.addfile(info, io.BytesIO(b"x" * info.size))
    prepare(folder, {"text": "txt"}, "TextSample")

    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = None

    with serving(folder, tmp_path / "scans") as server:
        post(server, f"chosen?action=only&sort=-bytes&from=0&to=499&seen={version(server, 'sort=-bytes')}")
        exported = server.ask("/data/0/chosen.jsonl").content
        (tmp_path / "chosen.jsonl").write_bytes(exported)
        post(server, "tags?action=add&name=large")
        tagged = Tags(FolderDataset(str(folder))).path("large")
        assert tagged.read_bytes() == exported
        keys = [json.loads(line)["key"] for line in exported.splitlines()]
        assert len(set(keys)) == 500
        mixture = {
            "__module__": "megatron.energon",
            "__class__": "MetadatasetV2",
            "splits": {"train": {"path": "data", "subset": {"keys": "chosen.jsonl"}}},
        }
        (tmp_path / "mix.yaml").write_text(json.dumps(mixture))
        config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        options: dict[str, Any] = {"worker_config": config, "task_encoder": Encoder(), "repeat": False}
        for path, subset in (
            (folder, {"keys": tmp_path / "chosen.jsonl"}),
            (folder, {"keys": tagged}),
            (tmp_path / "mix.yaml", None),
        ):
            trained = get_train_dataset(path, batch_size=8, subset=subset, **options)
            with get_savable_loader(trained) as loader:
                assert sorted(key for batch in loader for key in batch.__key__) == sorted(keys)
        before = chosen(server)
        post(server, "chosen?action=only&samples=")
        assert open_file(server, "chosen.jsonl", exported) == (200, {"chosen": 500})
        assert chosen(server) == before
        assert server.ask("/data/0/chosen.jsonl").content == exported


def test_lines_of_a_jsonl_file_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_DALI_TAGS", str(tmp_path / "tags"))
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": "x" * (7 - number)}) + "\n" for number in range(7)))
    prepare_jsonl(str(file))
    with serving(file, tmp_path / "scans") as server:
        assert shown(server.ask("/data/0?sort=bytes").text) == [6, 5, 4, 3, 2, 1, 0]
        assert shown(server.ask("/data/0?sort=-key").text) == [6, 5, 4, 3, 2, 1, 0]
        post(server, "chosen?action=add&samples=2,4")
        assert server.ask("/data/0/chosen.txt").text == "2\n4\n"
        assert open_file(server, "x.txt", b"3\n")[0] == 200
        assert "has 0 parts" not in server.ask("/compare?a=0.2&b=0.4").text


# --- tags ------------------------------------------------------------------------------------------------------------


def test_samples_are_tagged_and_filtered_by_tags(server: PageServer) -> None:
    post(server, "chosen?action=only&samples=2,9,15")
    assert post(server, "tags?action=add&name=good").json == {"tags": ["good"]}
    post(server, "tags?action=add&name=good&samples=20")
    assert shown(server.ask("/data/0?tag=good").text) == [2, 9, 15, 20]
    assert shown(server.ask("/data/0?tag=good&key=k0015").text) == [15]
    assert shown(server.ask("/data/0?tag=good&text=picture&sort=-key").text) == [20, 15, 9, 2]
    post(server, "tags?action=remove&name=good&samples=9")
    assert server.ask("/data/0/chosen.txt?tag=good").text == "k0002\nk0015\nk0020\n"
    assert ">good</bdi>" in server.ask("/data/0/sample/2").text
    assert "no tags" in server.ask("/data/0/sample/9").text
    post(server, "tags?action=delete&name=good")
    assert server.ask("/data/0/chosen.txt?tag=good").status == 404
    assert post(server, "tags?action=add&name=../x&samples=1").status == 422
    assert post(server, "tags?action=add&name=&samples=1").status == 422
    assert post(server, "tags?action=sing&name=a&samples=1").status == 422


def test_all_of_a_tag_that_is_gone_is_not_all_samples(server: PageServer) -> None:
    assert post(server, "chosen?action=add&all=1&tag=gone").status == 422
    assert post(server, "chosen?action=add&from=0&to=3&sort=gone").status == 422
    assert chosen(server) == []


def test_a_search_that_failed_is_made_again_once_a_page_has_said_so() -> None:
    class Failing:
        is_over = False

        def cancel(self) -> None:
            self.is_over = True

    cache = SearchCache()
    first = cache.get("key", Failing)
    assert cache.get("key", Failing) is first
    first.is_over = True
    assert cache.get("key", Failing) is not first


def test_a_damaged_tag_is_said_and_can_be_removed(server: PageServer) -> None:
    tags = server.site.tags(server.site.catalog.entries[0])
    tags.folder.mkdir(parents=True, exist_ok=True)
    tags.path("bad").write_bytes(b"\xff\n")
    for answer in (server.ask("/data/0/chosen.jsonl?tag=bad"), post(server, "tags?action=add&samples=1&name=bad")):
        assert answer.status == 422
        assert "bad.jsonl:1: " in answer.text
    assert "damaged" in server.ask("/data/0").text
    assert post(server, "tags?action=delete&name=bad").json == {"tags": []}


def test_tags_are_in_the_users_folder_and_survive_what_the_dataset_loses(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENERGON_DALI_TAGS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    tags = Tags(FolderDataset(str(dataset)))
    assert tags.names() == []
    tags.change("né_1.x", "add", np.array([1, 4]))
    assert tags.names() == ["né_1.x"]
    assert tags.path("né_1.x").is_relative_to(tmp_path / "energon-dali" / "tags")
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == before
    with tags.path("né_1.x").open("a") as file:
        file.write('{"key": "gone"}\n')
    assert tags.samples("né_1.x").tolist() == [1, 4]
    tags.change("né_1.x", "remove", np.array([1]))
    assert [json.loads(line)["key"] for line in tags.path("né_1.x").read_text().splitlines()] == ["k0004", "gone"]
    again = Tags(FolderDataset(str(dataset)))
    assert (again.of(4), again.of(1)) == (["né_1.x"], [])
    tags.path("né_1.x").write_text("damaged")
    assert again.of(4) == []
    with pytest.raises(ConfigError, match="There is no tag"):
        tags.samples("other")


# --- comparing -------------------------------------------------------------------------------------------------------


def test_two_samples_are_shown_next_to_each_other(server: PageServer) -> None:
    page = server.ask("/compare?a=0.1&b=0.2").text
    assert "<mark>1</mark>" in page
    assert "<mark>2</mark>" in page
    assert page.count('class="full"') == 2  # a jpg and a png stand next to each other
    assert re.search(r'<tr class="differs"><th scope="row">key</th><td>k0001</td><td>k0002</td>', page)
    assert server.ask("/compare?a=0.1&b=2").status == 200
    for wrong in ("a=0.1", "a=0.1&b=0.99", "a=1.1&b=0.1", "a=0.1&b=x", "a=0.1&b=0.-1", "a=0.1&b=0.\u0663"):
        assert server.ask(f"/compare?{quote(wrong, '=&')}").status == 404
    assert server.ask("/data/0/compare").status == 404
    post(server, "chosen?action=add&samples=7,3")
    assert server.ask("/data/0/compare").headers["location"] == "/compare?a=0.3&b=0.7"


def test_texts_are_compared_word_by_word() -> None:
    assert compare_texts("a red cat, here", "a blue cat here!") == (
        [("same", "a "), ("only", "red"), ("same", " cat"), ("only", ","), ("same", " here")],
        [("same", "a "), ("only", "blue"), ("same", " cat"), ("same", " here"), ("only", "!")],
    )
    assert compare_texts("word " * 10_000, "x") is None
    assert compare_texts("", "") == ([], [])


def test_hostile_names_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_DALI_TAGS", str(tmp_path / "tags"))
    key = 'a"><img src=x onerror=alert(1)>'
    text = b"<script>alert(1)</script>"
    samples = {key: {"txt": text}, "b": {"txt": text + b"!"}}
    prepare(write_shards(tmp_path / "data", samples, 1), {"text": "txt"}, "TextSample")
    with serving(tmp_path / "data", tmp_path / "scans") as server:
        post(server, "chosen?action=add&samples=0,1")
        post(server, "tags?action=add&name=x")
        pages = [server.ask(path).text for path in ("/data/0?chosen=1", "/compare?a=0.0&b=0.1", "/data/0/sample/0")]
        assert not any("<img src=x" in page or "<script>alert" in page for page in pages)
        assert [json.loads(line)["key"] for line in server.ask("/data/0/chosen.jsonl").text.splitlines()] == [key, "b"]


def test_a_dataset_that_cannot_be_opened_has_no_choice(dataset: Path, tmp_path: Path) -> None:
    parts = [{"path": str(dataset)}, {"path": str(tmp_path / "missing")}]
    mixture = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": parts}}}
    (tmp_path / "mix.yaml").write_text(json.dumps(mixture))
    assert Catalog(str(tmp_path / "mix.yaml")).entries[1].dataset is None
    with serving(tmp_path / "mix.yaml", tmp_path / "scans") as server:
        assert server.own_post("/data/1/chosen?action=add&samples=1").status >= 400
        assert server.ask("/compare?a=0.1&b=1.0").status >= 400
