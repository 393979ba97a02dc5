"""Each page shows what the dataset has, and each address leads where it says."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from energon_dali import measure_datasets
from energon_dali.cli.media_options import check_image
from energon_dali.errors import DatasetError
from energon_dali.shards import prepare_dataset, prepare_jsonl
from energon_dali.view.app import listen
from energon_dali.view.catalog import Catalog
from tests.assembly.measured_encoders import Letters
from tests.av.corpus import audio_file, video_file
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards
from tests.view.page_server import PageServer, serving
from tests.view.test_scan import scan_here

COUNT = 30


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty samples; 3 is cut off, 4 is a video, 5 audio, 6 has other kinds of parts."""
    samples = {f"k{number:04d}": captioning_sample(number) for number in range(COUNT)}
    kind = next(name for name in samples["k0003"] if name not in ("txt", "json"))
    samples["k0003"][kind] = samples["k0003"][kind][:150]
    samples["k0004"] = {"mp4": video_file("h264-b-mp4"), "txt": b"a film"}
    samples["k0005"] = {"mp3": audio_file("mp3"), "txt": b"a tone"}
    tiff = io.BytesIO()
    Image.new("I;16", (20, 10), 3000).save(tiff, "TIFF")
    array = io.BytesIO()
    np.save(array, np.zeros((3, 4), np.float32))
    samples["k0006"] = {"tiff": tiff.getvalue(), "npy": array.getvalue(), "bin": bytes(600), "txt": b"\xff no text"}
    folder = write_shards(tmp_path_factory.mktemp("pages") / "data", samples)
    prepare(folder, {"image": "jpg,png,webp,mp4,mp3,tiff", "caption": "txt"})
    (folder / ".nv-meta" / "split.yaml").write_text(
        json.dumps(
            {
                "split_parts": {"train": ["shard_000.tar", "shard_001.tar"], "val": ["shard_002.tar"]},
                "exclude": ["shard_001.tar/k0012"],
            }
        )
    )
    return folder


@pytest.fixture(scope="module")
def server(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    scans = tmp_path_factory.mktemp("scans")
    scan_here(dataset, scans)
    with serving(dataset, scans) as running:
        yield running


def shown(page: str) -> list[int]:
    """Returns the numbers of the samples of a grid."""
    return [int(number) for number in re.findall(r'class="card" href="/data/0/sample/(\d+)', page)]


def test_the_only_dataset_is_the_start(server: PageServer) -> None:
    answer = server.ask("/")
    assert (answer.status, answer.headers["location"]) == (303, "/data/0")


def test_pages_have_all_samples_in_order(server: PageServer) -> None:
    found = [shown(server.ask(f"/data/0?size=10&page={page}").text) for page in (1, 2, 3)]
    assert found == [list(range(10)), list(range(10, 20)), list(range(20, 30))]
    last = server.ask("/data/0?size=10&page=999999999").text
    assert shown(last) == found[2]
    assert "of 3" in last


def test_a_split_has_its_samples_without_the_excluded_one(server: PageServer) -> None:
    assert shown(server.ask("/data/0?split=train").text) == [*range(12), *range(13, 20)]
    assert shown(server.ask("/data/0?split=val").text) == list(range(20, 30))
    unknown = server.ask("/data/0?split=none").text
    assert len(shown(unknown)) == COUNT
    assert "There is no split" in unknown


def test_conditions_that_the_index_knows_need_no_scan(dataset: Path, tmp_path: Path) -> None:
    plain = write_shards(tmp_path / "plain", {f"a/{number}": captioning_sample(number) for number in range(24)})
    prepare_dataset(str(plain), split_patterns=[("train", ".*"), ("val", ".*")], check_part=check_image)
    catalog = Catalog(str(plain))
    samples = [catalog.entries[0].opened.sample(number) for number in range(24)]
    with serving(plain, tmp_path / "scans") as server:

        def found(query: str) -> list[int]:
            page = server.ask(f"/data/0?{query}").text
            assert "a scan has to read" not in page
            return shown(page)

        assert found("key=a/1") == [s.index for s in samples if "a/1" in s.key]
        assert found("shard=_001") == list(range(8, 16))
        images = [next(part for part in sample.parts if part.kind == "image") for sample in samples]
        assert found("format=png") == [n for n, image in enumerate(images) if image.format.startswith("png")]
        assert found("min_width=65&max_width=65") == [n for n, image in enumerate(images) if image.width == 65]
        wide = [n for n, image in enumerate(images) if image.width / image.height >= 66 / 48]
        assert found("min_aspect=1.375") == wide
        middle = sorted(s.size for s in samples)[12]
        assert found(f"min_bytes={middle}&split=val") == [s.index for s in samples if s.size >= middle]
        assert found("part=webp") == [s.index for s in samples if any(p.name == "webp" for p in s.parts)]
        assert found("key=1&format=jpeg&max_height=47") == []
        partial = server.ask("/data/0?text=picture").text
        assert "a scan has to read" in partial
        assert "among the 0.0 % that were scanned" in partial
    catalog.close()


def test_conditions_that_a_scan_knows(server: PageServer) -> None:
    assert shown(server.ask("/data/0?fails=1").text) == [3, 6]
    assert shown(server.ask("/data/0?fails=1&reason=utf").text) == [6]
    assert shown(server.ask("/data/0?text=film").text) == [4]
    assert shown(server.ask("/data/0?text=picture&split=val").text) == list(range(20, 30))
    assert shown(server.ask("/data/0?min_duration=0.01").text) == [4, 5]
    assert shown(server.ask("/data/0?kind=audio").text) == [5]
    assert shown(server.ask("/data/0?text=picture&size=10&page=2").text) == list(range(13, 23))
    wrong = server.ask("/data/0?min_width=wide&max_width=1e400").text
    assert wrong.count("cannot be understood") == 2


def test_find_leads_to_a_sample_or_to_the_search(server: PageServer) -> None:
    ways = {
        "k0007": "/data/0/sample/7",
        "%237": "/data/0/sample/7",
        "k00": "/data/0?key=k00",
        "%23x": "/data/0?key=%23x",
        "//evil.example": "/data/0?key=%2F%2Fevil.example",
    }
    for text, way in ways.items():
        assert server.ask(f"/data/0/find?key={text}").headers["location"] == way


def test_a_sample_shows_parts_place_and_neighbours(server: PageServer) -> None:
    page = server.ask("/data/0/sample/13?split=train").text
    assert "picture number 13" in page
    assert "&#34;number&#34;: 13" in page
    assert '<a rel="prev" href="/data/0/sample/11?split=train&amp;position=11">' in page  # 12 is excluded
    assert '<a rel="next" href="/data/0/sample/14?split=train&amp;position=13">' in page
    assert '<a rel="up" href="/data/0?split=train">' in page
    offset = server.site.catalog.entries[0].opened.sample(13).parts[0].offset
    assert f"{offset:,}" in page
    assert "shard_001.tar" in page
    last = server.ask("/data/0/sample/29?size=10").text
    assert 'rel="next"' not in last
    assert '<a rel="up" href="/data/0?size=10&amp;page=3">' in last


def test_other_kinds_of_parts_are_described(server: PageServer) -> None:
    page = server.ask("/data/0/sample/6").text
    assert "NumPy array of &#39;&lt;f4&#39;, shape (3, 4)" in page
    assert "00000000  00 00 00 00" in page
    assert "Byte 0 is not UTF-8" in page
    picture = server.ask("/data/0/sample/6/part/2/image")  # no browser shows TIFF
    assert picture.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(picture.content)).size == (20, 10)


def test_thumbnails_are_small_pictures_of_each_kind(server: PageServer) -> None:
    for number in (0, 1, 2, 4, 5, 6):
        sample = server.site.catalog.entries[0].opened.sample(number)
        part = next(part.number for part in sample.parts if part.kind in ("image", "av"))
        answer = server.ask(f"/data/0/sample/{number}/part/{part}/thumbnail")
        assert answer.status == 200
        image = Image.open(io.BytesIO(answer.content))
        image.load()
        assert max(image.size) <= 256
        assert f"image/{(image.format or '').lower()}" == answer.headers["content-type"]
    broken = server.ask("/data/0/sample/3/part/0/thumbnail")
    assert (broken.status, broken.headers["content-type"]) == (422, "image/svg+xml")
    strip = Image.open(io.BytesIO(server.ask("/data/0/sample/4/part/0/strip").content))
    assert strip.width > 4 * strip.height


@pytest.mark.usefixtures("warm_workers")
def test_facts_say_why_a_sample_fails(server: PageServer) -> None:
    broken = server.ask("/data/0/sample/3/facts").json
    assert broken["stage"] in ("load", "decode")
    assert broken["reason"]
    sound = server.ask("/data/0/sample/0/facts").json
    assert sound["reason"] == ""
    assert {part["name"]: part["text_length"] for part in sound["parts"]}["txt"] == len("picture number 0")


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-", 0, None),
        ("bytes=0-99", 0, 100),
        ("bytes=100-", 100, None),
        ("bytes=-50", -50, None),
        ("bytes=10-9999999999", 10, None),
        ("bytes=0-0", 0, 1),
    ],
)
def test_players_get_the_range_that_they_ask_for(server: PageServer, header: str, start: int, stop: int | None) -> None:
    content = video_file("h264-b-mp4")
    answer = server.ask("/data/0/sample/4/part/0", headers={"Range": header})
    assert answer.content == content[start:stop]
    assert answer.headers["content-type"] == "video/mp4"
    if len(answer.content) < len(content):
        first = start % len(content)
        assert answer.status == 206
        assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.content) - 1}/{len(content)}"


def test_ranges_outside_are_refused_and_heads_have_no_body(server: PageServer) -> None:
    size = len(video_file("h264-b-mp4"))
    for header in (f"bytes={size}-", "bytes=5-4", "bytes=-0"):
        answer = server.ask("/data/0/sample/4/part/0", headers={"Range": header})
        assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{size}")
    for header in ("bytes=-", "bytes=0-1,3-4", "lines=1-2"):  # not understood: the whole
        assert len(server.ask("/data/0/sample/4/part/0", headers={"Range": header}).content) == size
    head = server.ask("/data/0/sample/4/part/0", "HEAD")
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", str(size))


def test_statistics_and_failures_of_the_scan(server: PageServer) -> None:
    page = server.ask("/data/0/statistics").text
    assert 'id="chart-widths"' in page
    assert "Lengths of texts" in page
    assert server.ask("/data/0/statistics?split=val").text.count("<dd>10</dd>") == 2
    failures = server.ask("/data/0/failures").text
    assert "30 of 30 samples were scanned (100 %)" in failures
    assert failures.count(">k0003</a>") == 2  # by reason, and one by one


def test_the_command_restores_the_sample(
    server: PageServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = server.site.catalog.entries[0].opened
    words = shlex.split(page.restore_command(page.sample(20)))
    assert words[:3] == ["python", "-i", "-c"]
    scope: dict[str, object] = {}
    exec(words[3], scope)
    assert "caption='picture number 20'" in repr(scope["sample"])
    for crude in (jsonl(tmp_path / 'it\'s "lines".jsonl'), crude_folder(tmp_path / "it's crude")):
        dataset = Catalog(str(crude)).entries[0].opened
        exec(shlex.split(dataset.restore_command(dataset.sample(2)))[3], scope)
        assert getattr(scope["sample"], "index", None) == 2
        dataset.close()
    assert capsys.readouterr().out.count("RawSample(") == 2


def jsonl(path: Path) -> Path:
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(120)))
    prepare_jsonl(str(path))
    return path


def crude_folder(path: Path) -> Path:
    write_shards(path, {f"c{number}": {"txt": b"x"} for number in range(4)}, 2)
    prepare(path)
    (path / ".nv-meta" / "dataset.yaml").write_text(
        '{"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}'
    )
    return path


def test_a_jsonl_file_has_lines_as_samples(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "lines.jsonl")
    with serving(path, tmp_path / "scans") as server:
        assert shown(server.ask("/data/0?page=3").text) == list(range(96, 120))
        assert shown(server.ask("/data/0?key=11").text) == [11, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119]
        assert len(shown(server.ask("/data/0?min_bytes=16&size=96").text)) == 20
        assert "&#34;number&#34;: 77" in server.ask("/data/0/sample/77").text
        assert server.ask("/data/0/find?key=77").headers["location"] == "/data/0/sample/77"


def test_a_sample_shows_its_measures(tmp_path: Path) -> None:
    samples = {f"k{number}": captioning_sample(number) for number in range(3)}
    folder = write_shards(tmp_path / "data", samples)
    prepare(folder, {"image": "jpg,png,webp", "caption": "txt"})
    with serving(folder, tmp_path / "scans") as server:
        assert "Measures" not in server.ask("/data/0/sample/1").text
        measure_datasets(folder, Letters())
        page = server.ask("/data/0/sample/1").text
    assert "tests.assembly.measured_encoders:Letters" in page
    assert f'<td>text_tokens</td><td class="n">{len(samples["k1"]["txt"])}</td>' in page


def test_a_metadataset_shows_its_datasets_and_its_mixture(dataset: Path, tmp_path: Path) -> None:
    lines = jsonl(tmp_path / "lines.jsonl")
    blend = [
        {"weight": 3, "path": str(dataset), "split_part": "train"},
        {"weight": 1, "path": str(lines), "split_part": "train"},
    ]
    broken = [{"weight": 1, "path": str(tmp_path / "none"), "split_part": "train"}]
    path = tmp_path / "meta.yaml"
    path.write_text(
        json.dumps(
            {
                "__module__": "megatron.energon",
                "__class__": "MetadatasetV2",
                "splits": {"train": {"blend": blend}, "val": {"blend": [*blend, *broken]}},
            }
        )
    )
    with serving(path, tmp_path / "scans") as server:
        page = server.ask("/").text
        assert page.count('<a href="/data/0?split=train">data</a>') == 2
        assert "75.0 %" in page
        assert "is not a folder" in page
        assert "&#34;number&#34;: 5" in server.ask("/data/1/sample/5").text
        for address in ("/data/2", "/data/2/sample/0", "/data/2/statistics", "/data/2/failures"):
            unreadable = server.ask(address)
            assert unreadable.status == 404
            assert "is not a folder" in unreadable.text
        mixture = server.ask("/mixture?split=train&draws=4000&seed=1").text
        shares = [float(share) for share in re.findall(r'class="n">([\d.]+) %', mixture)]
        assert shares[0::2] == [75, 25]
        assert abs(shares[1] - 75) < 3
        assert shares[1] + shares[3] == pytest.approx(100)


def test_the_mixture_of_weights_over_time_is_shown_over_steps(dataset: Path, tmp_path: Path) -> None:
    blend = [
        {"weight": {"step": {"0": 3, "40": 1}, "over": "steps"}, "path": str(dataset), "split_part": "train"},
        {"weight": 1, "path": str(jsonl(tmp_path / "lines.jsonl")), "split_part": "train"},
    ]
    path = tmp_path / "meta.yaml"
    splits = {
        "train": {"blend": blend},
        "val": {"blend_epochized": [{"path": str(dataset), "split_part": "train"}] * 2},
    }
    path.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}))
    with serving(path, tmp_path / "scans") as server:
        assert server.ask("/").text.count("They change over steps, until 40") == 1
        page = server.ask("/mixture").text
        assert 'name="steps" min="1" max="1000000000" value="50"' in page
        assert 'name="size" min="1" max="131072" value="1024"' in page
        assert "Weights change while the job runs." in page
        assert re.search(r"<title>steps 40 to 44: 50\.\d\d %, wanted 50\.00 %</title>", page)
        found = server.ask("/mixture/shares?steps=80&size=256&seed=3").json
        assert (found["samples_per_step"], found["num_draws"]) == (256, 80 * 256)
        assert found["window_edges"] == list(range(0, 81, 8))
        assert found["rows"][0]["wanted_windows"] == [0.75] * 5 + [0.5] * 5
        assert found["rows"][0]["windows"] == pytest.approx([0.75] * 5 + [0.5] * 5, abs=0.02)
        assert found["rows"][0]["wanted"] == 0.625
        assert found["rows"][0]["given"] == pytest.approx(0.625, abs=0.001)
        plain = server.ask("/mixture/shares?split=val&draws=20").json
        assert (plain["samples_per_step"], plain["window_edges"], plain["num_draws"]) == (None, [], 20)
        for wrong in ("steps=0&size=0", "steps=99999999999&size=x", "steps=9999999999&size=999999999&seed=9999999999"):
            assert server.ask(f"/mixture?{wrong}").status == 200


def test_the_scan_is_started_cancelled_and_followed(dataset: Path, tmp_path: Path) -> None:
    with serving(dataset, tmp_path / "scans") as server:
        state = server.ask("/scan").json
        assert (state["scanned"], state["total"], state["running"], state["complete"]) == (0, COUNT, False, False)
        assert server.own_post("/scan/start").status == 303
        assert server.ask("/scan").json["running"]
        assert server.own_post("/scan/cancel").status == 303
        assert not server.ask("/scan").json["running"]


def test_a_shard_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "data", {f"k{number}": {"txt": b"x"} for number in range(6)})
    prepare(folder)
    with serving(folder, tmp_path / "scans") as server:
        (folder / "shard_001.tar").unlink()
        assert shown(server.ask("/data/0").text) == list(range(6))
        page = server.ask("/data/0/sample/2")
        assert page.status == 200
        assert "shard_001.tar is missing" in page.text
        part = server.ask("/data/0/sample/2/part/0")
        assert part.status == 500
        assert "shard_001.tar is missing" in part.text
    with pytest.raises(DatasetError, match="is not prepared"):
        Catalog(str(tmp_path))


def test_the_port_is_on_loopback_alone() -> None:
    with listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(Exception, match=f"Port {listener.getsockname()[1]} of 127.0.0.1 cannot be used"):
            listen(listener.getsockname()[1])
