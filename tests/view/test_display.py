"""How samples are shown: whole texts, conversations, JSON fields, pixels, waveforms, links to samples, and blends."""

from __future__ import annotations

import html
import io
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from PIL import Image

from energon_dali import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energon_dali.task_encoder.cooking import Cooker
from energon_dali.view.conversation import find_conversation
from energon_dali.view.encoded_fields import FieldDescriber
from energon_dali.view.encoder_session import find_places
from energon_dali.view.json_fields import find_facets
from energon_dali.view.plain_fields import MAX_FIELDS, plain_fields, stored_fields
from energon_dali.view.query import GridQuery, SampleFilter, field_pairs, read_query
from energon_dali.view.viewed_sample import ViewedPart
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards
from tests.view.odd_samples import odd_samples, write_odd
from tests.view.page_server import PageServer, serving
from tests.view.test_scan import scan_here

KEYS = list(odd_samples())


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_odd(tmp_path_factory.mktemp("display") / "odd")


@pytest.fixture(scope="module")
def server(odd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    scans = tmp_path_factory.mktemp("scans")
    scan_here(odd, scans)
    with serving(odd, scans) as running:
        yield running


def shown(server: PageServer, query: str) -> list[str]:
    """Returns the keys of the samples of a grid."""
    page = server.ask(f"/data/0?size=96&{query}").text
    return [KEYS[int(number)] for number in re.findall(r'data-sample="(\d+)"', page)]


def address(key: str, part: int = 0) -> str:
    return f"/data/0/sample/{KEYS.index(key)}/part/{part}"


def test_there_are_35_odd_samples_and_each_has_a_page(server: PageServer) -> None:
    assert len(KEYS) == 35
    for number, key in enumerate(KEYS):
        page = server.ask(f"/data/0/sample/{number}")
        assert page.status == 200
        assert f'<h1 class="key" dir="auto">{key}</h1>' in page.text


@pytest.mark.parametrize("key", ["long-text", "bytes", "not-utf-8", "arabic"])
def test_a_text_comes_to_its_end_in_pieces(server: PageServer, key: str) -> None:
    content = next(content for name, content in odd_samples()[key].items() if name in ("txt", "bin"))
    part = list(odd_samples()[key]).index("txt" if "txt" in odd_samples()[key] else "bin")
    page = server.ask(f"/data/0/sample/{KEYS.index(key)}").text
    text = html.unescape(re.findall(r'<pre class="(?:text|bytes)"[^>]*>(.*?)</pre>', page, re.DOTALL)[-1])
    rest = re.search(r"text\?start=(\d+)", page)
    start = int(rest[1]) if rest else None
    while start is not None:
        piece = server.ask(f"{address(key, part)}/text?start={start}").json
        text += piece["text"]
        assert piece["rest"] is None or piece["rest"] > start
        start = piece["rest"]
    if key == "bytes":
        rows = [line.split("  ")[1] for line in text.splitlines()]
        assert bytes.fromhex(" ".join(rows)) == content
    else:
        assert text == content.decode("utf-8", "replace")


def test_pieces_divide_no_letter(tmp_path: Path) -> None:
    from energon_dali.view.content import MOST_TEXT_BYTES, more_of_part, show_part

    class Dataset:
        path = "x"
        content = ("a" + "é" * MOST_TEXT_BYTES).encode()

        def read(self, sample: object, part: object, start: int, size: int) -> bytes:
            return self.content[start : start + size]

    part = ViewedPart(0, "txt", 0, len(Dataset.content))
    first = show_part(Dataset(), None, part)  # type: ignore[arg-type]
    text, rest = first.text, first.rest
    while rest is not None:
        more, rest = more_of_part(Dataset(), None, part, rest)  # type: ignore[arg-type]
        text += more
    assert text == Dataset.content.decode()


def test_pixels_are_those_of_the_file(server: PageServer) -> None:
    middle = "pixel?x=0.5&y=0.5"
    found = server.ask(f"{address('sixteen-bit')}/{middle}").json
    assert (found["mode"], found["values"], found["x"], found["y"]) == ("I;16", [3000], 25, 15)
    assert server.ask(f"{address('transparent')}/{middle}").json["values"] == [0, 0, 255, 60]
    palette = server.ask(f"{address('palette')}/pixel?x=1&y=1").json
    assert (palette["x"], palette["y"], len(palette["values"]), len(palette["color"])) == (59, 39, 1, 4)
    upright = [server.ask(f"{address('upside-down')}/pixel?x=0&y={y}").json["values"][0] for y in (0, 1)]
    assert upright[0] > upright[1]
    for wrong in (
        f"{address('cut-off')}/{middle}",
        f"{address('no-text')}/{middle}",
        f"{address('one-pixel')}/pixel?x=nan",
    ):
        answer = server.ask(wrong)
        assert (answer.status, list(answer.json)) == (422, ["error"])


def test_sound_has_a_waveform_and_a_silent_video_none(server: PageServer) -> None:
    picture = server.ask(f"{address('sound')}/waveform")
    values = np.asarray(Image.open(io.BytesIO(picture.content)))
    assert values.shape == (96, 960, 4)
    columns = (values[..., 3] > 0).sum(0)
    assert columns.min() >= 1
    assert columns.max() > 10
    silent = server.ask(f"{address('video', 1)}/waveform")
    assert (silent.status, silent.content) == (204, b"")
    assert server.ask(f"{address('not-an-image')}/waveform").status == 422


# --- JSON ---------------------------------------------------------------------------------------------------------


def test_a_conversation_is_a_chat_with_its_images_in_place(server: PageServer) -> None:
    page = server.ask(f"/data/0/sample/{KEYS.index('chat')}").text
    chat = page[page.index('<ol class="chat">') : page.index("</ol>", page.index('<ol class="chat">'))]
    turns = re.findall(r'<li class="turn (\w+)"><h3 dir="auto">(\w+)</h3>', chat)
    assert turns == [("user", "human"), ("assistant", "gpt"), ("user", "human")]
    assert re.findall(r'/part/(\d)/image\?v=\w+" target', chat) == ["0", "1"]
    assert chat.index("/part/0/image") < chat.index("What is on") < chat.index("/part/1/image") < chat.index("and on")
    assert "the sample has no such part" in chat
    assert "&#34;conversations&#34;" in page  # the JSON is there as well


PICTURES = [
    ViewedPart(0, "0.jpg", 0, 1),
    ViewedPart(1, "b.png", 0, 1),
    ViewedPart(2, "mp4", 0, 1),
    ViewedPart(3, "mp3", 0, 1),
]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}],
            [("user", ["0.jpg", "what?"])],
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "image": "x/b.png"}, {"type": "video"}, "t"]}
                ]
            },
            [("user", ["b.png", "mp4", "t"])],
        ),
        (
            {"conversations": [{"from": "gpt", "value": "<image_2> <image_1><audio>x"}]},
            [("gpt", ["b.png", "0.jpg", "mp3", "x"])],
        ),
        ({"texts": [{"user": "q <image_0>", "assistant": "a"}]}, [("user", ["q ", "0.jpg"]), ("assistant", ["a"])]),
        (
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": None}],
            [("user", ["q"]), ("assistant", [])],
        ),
        ({"messages": []}, None),
        ({"messages": [{"role": "user"}]}, None),
        ({"messages": ["a"], "turns": 3}, None),
        ([1, 2], None),
        ("text", None),
    ],
)
def test_conversations_of_many_forms(value: Any, expected: Any) -> None:
    found = find_conversation(value, PICTURES)
    if expected is None:
        assert found is None
        return
    assert found is not None
    pieces = [[piece.text if piece.part is None else piece.part.name for piece in turn.pieces] for turn in found.turns]
    assert [(turn.speaker, said) for turn, said in zip(found.turns, pieces, strict=True)] == expected


def test_plain_fields_of_json() -> None:
    value = {"a": {"b": True, "c": [1, "x", None]}, "d": [{"e": 1}], "f": "y" * 101, "g": 2.5, "h": 10**40}
    assert list(plain_fields(value)) == [
        ("a.b", "true"),
        ("a.c", 1),
        ("a.c", "x"),
        ("a.c", "null"),
        ("f", "y" * 101),
        ("g", 2.5),
    ]
    assert "f" not in dict(stored_fields(value))
    assert len(stored_fields({str(number): number for number in range(1000)})) == MAX_FIELDS


def test_fields_filter_count_and_fill_a_table(server: PageServer) -> None:
    assert shown(server, "field=language%3Dde") == ["array"]
    assert shown(server, "field=language%3Den+AND+score%3D2.0") == ["video"]
    assert shown(server, "field=language%3Dfr") == []
    found = server.ask("/data/0/facets").json
    facets = {facet["name"]: facet for facet in found["facets"]}
    assert found["share"] == 1
    assert [(value["value"], value["count"]) for value in facets["language"]["values"]] == [("de", 1), ("en", 1)]
    href = facets["language"]["values"][0]["href"]
    assert shown(server, href.partition("?")[2]) == ["array"]
    narrowed = server.ask("/data/0/facets?field=language%3Dde").json["facets"]
    assert [facet["name"] for facet in narrowed] == ["language", "score"]
    assert "field=language%3Dde+AND+score%3D0.5" in narrowed[1]["values"][0]["href"]
    table = server.ask("/data/0?view=table&field=language%3Dde").text
    assert re.findall(r'<th dir="auto">(\w+)</th>', table) == ["language", "score"]
    assert re.findall(r'<div class="cell">(.*?)</div>', table) == ["de", "0.5"]
    assert "276 more fields have no column" in server.ask("/data/0?view=table&size=96").text.replace("278", "276")


def test_fields_of_an_address() -> None:
    assert field_pairs("a=1 AND b.c=x=y AND flag AND =z") == [
        ("a", "1", 1.0),
        ("b.c", "x=y", "x=y"),
        ("flag", "true", "true"),
    ]
    query, _ = read_query({"field": "a=1", "page": "3", "view": "table"})
    assert query.with_field("b", 2).address() == "?field=a%3D1+AND+b%3D2&view=table"
    assert query.with_field("a", 1).wanted.field == "a=1"
    assert field_pairs('a="x AND y" AND "b = c" = " 2 " AND d="1" AND e=5" AND f="\\ud800"') == [
        ("a", "x AND y", "x AND y"),
        ("b = c", " 2 ", " 2 "),
        ("d", "1", "1"),
        ("e", '5"', '5"'),
        ("f", "?", "?"),
    ]
    assert field_pairs(f"a={'9' * 400}")[0][2] == math.inf


AWKWARD = (
    *("", " ", "a AND b", "x AND", "AND x", " AND ", " outer ", "\u00a0outer\u2003", "a=b", "=", "a\nb", "a\r\tb\0c"),
    *('"', '"quoted"', 'say "hi"', '"open', "back\\slash\\", '\\" AND "x="', "{}", "%20+&#;", "\u00e9\u4e2d\U0001f600"),
    *("1", "1.0", "1_0", "1e3", " 2", "nan", "inf", "\u0663", "true", "9007199254740993", "9" * 100, "\x01" * 100),
)
NUMBERS = (0, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 - 1, 0.1, -2.5, 1e300, 1e22)


def test_every_value_is_read_back_from_its_link() -> None:
    numbers = random.Random(5)
    tokens = [*AWKWARD, "AND", "x", "y z"]
    strings = [*AWKWARD, *("".join(numbers.choices(tokens, k=3))[:100] for _ in range(2000))]
    for _ in range(3000):
        pairs = {
            (numbers.choice(strings), value): None
            for value in numbers.choices([*strings, *NUMBERS * 20], k=numbers.randrange(1, 4))
        }
        query = GridQuery()
        for name, value in pairs:
            query = query.with_field(name, value)
        link = query.address().removeprefix("?")
        found = field_pairs(read_query(dict(parse_qsl(link)))[0].wanted.field)
        assert [(name, value, type(value)) for name, _, value in found] == [
            (name, value, type(value)) for name, value in pairs
        ], query.wanted.field


def test_every_facet_links_to_its_samples(tmp_path: Path) -> None:
    values = [*AWKWARD, *NUMBERS]
    names = ("plain", "a=b", " AND ", '"', "n" * 200)
    samples = {
        f"k{number:03d}": {"json": json.dumps({names[number % len(names)]: value}).encode()}
        for number, value in enumerate(values)
    }
    data = prepare(write_shards(tmp_path / "data", samples))
    scan_here(data, tmp_path / "scans")
    with serving(data, tmp_path / "scans") as server:
        site = server.site
        found = {facet.name: facet for facet in find_facets(site.scan, SampleFilter(), most=99)}
        assert set(found) == set(names)
        for number, value in enumerate(values):
            name = names[number % len(names)]
            assert (value, 1) in found[name].values
            link = GridQuery().with_field(name, value).address(size=96)
            shown_there = re.findall(r'data-sample="(\d+)"', server.ask(f"/data/0{link}").text)
            assert shown_there == [str(number)], (name, value)


# --- links --------------------------------------------------------------------------------------------------------


def test_every_bar_leads_to_its_samples(server: PageServer) -> None:
    page = server.ask("/data/0/statistics").text
    charts = re.findall(r'<figure id="chart-([\w-]+)">(.*?)</figure>', page, re.DOTALL)
    assert {"widths", "sizes", "aspect_ratios", "durations", "text_lengths", "bytes", "formats", "modes"} <= {
        name for name, _ in charts
    }
    for name, chart in charts:
        bars = re.findall(r'<a href="([^"]+)" aria-label="([^"]+): show them">', chart)
        assert bars, name
        for href, words in bars:
            count = int(words.rpartition(": ")[2].replace(",", ""))
            found = shown(server, html.unescape(href).partition("?")[2])
            assert 0 < len(found) <= count, (name, words)  # a sample may have several parts


def test_a_histogram_of_one_value_says_it(tmp_path: Path) -> None:
    data = captioning_dataset(tmp_path / "data", count=8)
    scan_here(data, tmp_path / "scans")
    with serving(data, tmp_path / "scans") as server:
        page = server.ask("/data/0/statistics").text
        heights = page[page.index('id="chart-heights"') : page.index("</figure>", page.index('id="chart-heights"'))]
        assert ">48 px</text>" in heights
        assert "All of them have this value." in heights
        (href,) = re.findall(r'<a href="([^"]+)"', heights)
        assert len(re.findall("data-sample=", server.ask(html.unescape(href)).text)) == 8


def test_runs_of_a_token_are_folded_and_words_are_found() -> None:
    words = {5: "<|image_pad|>", 6: "\u2581cat", 7: ","}
    row = [6, *[5] * 1024, 7, 7, 6, *[-100] * 9]
    (field,) = FieldDescriber(lambda token: words[token]).describe({"input_ids": row})
    (shown_row,) = field.rows
    tokens = [
        (token.name if token.count > 1 else token.text, token.position, token.count) for token in shown_row.tokens
    ]
    assert tokens == [
        ("\u2581cat", 0, 1),
        ("image", 1, 1024),
        (",", 1025, 1),
        (",", 1026, 1),
        ("\u2581cat", 1027, 1),
        ("token -100", 1028, 9),
    ]
    assert [token.word for token in shown_row.tokens] == ["cat", "", "", "", "cat", ""]
    assert (shown_row.num_shown, shown_row.length) == (len(row), len(row))


def test_places_of_packed_samples() -> None:
    first = (
        "PackingDataset",
        0,
        ("encode", 0, "Webdataset", 64, 0),
        ("encode", 1, "BlendDataset", 1, "Webdataset", 192, 3),
    )
    second = ("PackingDataset", 1, ("encode", 2, "Webdataset", 3, 0))
    assert find_places(("BatchDataset", 0, first, second)) == [[(0, 64), (1, 192)], [(0, 3)]]
    assert find_places(("encode", 0, "BlendDataset", 2, "Webdataset", 7, 1)) == [[(2, 7)]]
    assert find_places(("BatchDataset", 0, ("other", 1))) == find_places(None) == find_places(()) == []


# --- blends -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blend(odd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets; in the split val, one more that is missing."""
    folder = tmp_path_factory.mktemp("blend")
    paths = [captioning_dataset(folder / "captions", count=20), odd, folder / "none"]
    uses = [{"weight": 3 - number, "path": str(path), "split_part": "train"} for number, path in enumerate(paths)]
    splits = {"train": {"blend": uses[:2]}, "val": {"blend": uses}}
    form = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}
    (folder / "blend.yaml").write_text(json.dumps(form))
    return folder / "blend.yaml"


@pytest.fixture(scope="module")
def blended(blend: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with serving(blend, tmp_path_factory.mktemp("blended")) as running:
        yield running


def cards(page: str) -> list[tuple[int, int]]:
    """Returns (dataset, index) of each card."""
    return [(int(a), int(b)) for a, b in re.findall(r'class="card[^"]*" href="/data/(\d+)/sample/(\d+)', page)]


@pytest.mark.parametrize(("seed", "window"), [(0, 0), (7, 16)])
def test_a_blend_is_in_the_order_of_training(blend: Path, blended: PageServer, seed: int, window: int) -> None:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.decoder = None
    encoder.cookers = (Cooker(lambda sample: sample),)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1, seed_offset=seed)
    options = {"batch_size": None, "shuffle_buffer_size": window or None}
    dataset = get_train_dataset(str(blend), worker_config=config, task_encoder=encoder, **options)
    places = []
    with get_loader(dataset) as loader:
        for sample, _ in zip(loader, range(96), strict=False):
            key = sample["__restore_key__"] if isinstance(sample, dict) else sample.__restore_key__
            places.append((key[key.index("BlendDataset") + 1], key[-2]))
    path = f"/blend?split=train&seed={seed}&window={window}"
    pages = [cards(blended.ask(f"{path}&page={page}").text) for page in (1, 2)]
    assert pages[0] + pages[1] == places
    assert re.search(r"pass [23]<", blended.ask(f"{path}&page=2").text)  # 72 draws of 20 samples
    far = blended.ask(f"{path}&page=1000000").text
    assert len(cards(far)) == 48


def test_the_samples_of_a_blend_lead_on_to_each_other(blended: PageServer) -> None:
    page = blended.ask("/blend?split=train&size=10&page=2").text
    places = cards(page)
    href = html.unescape(re.findall(r'class="card[^"]*" href="([^"]+)"', page)[4])
    sample = blended.ask(href).text
    assert re.search(r'rel="up" href="([^"]+)"', sample)[1] == "/blend?split=train&amp;size=10&amp;page=2"  # type: ignore[index]
    for relation, place in (("prev", places[3]), ("next", places[5])):
        found = re.search(rf'rel="{relation}" href="/data/(\d+)/sample/(\d+)\?', sample)
        assert found is not None
        assert (int(found[1]), int(found[2])) == place
    for wrong in ("blend=none&at=3", "blend=train&at=x", "blend=train&at=" + "9" * 30):
        assert blended.ask(f"/data/0/sample/1?{wrong}").status == 200


def test_datasets_follow_each_other_where_one_is_missing(blended: PageServer) -> None:
    for query in ("split=val", "split=val&order=dataset", "split=val&page=999999"):
        answer = blended.ask(f"/blend?{query}")
        assert answer.status == 200
        assert answer.text.count("is not a folder") == (1 if "order" in query else 2)
    page = blended.ask("/blend?split=val&order=dataset&size=24").text
    assert cards(page) == [(0, number) for number in range(20)] + [(1, number) for number in range(4)]
    assert "<strong>55</strong> samples, one dataset after the other" in page
    assert len(set(re.findall(r"of-dataset (c\d)", page))) == 3
    mixture = blended.ask("/mixture?split=val")
    assert mixture.status == 422
    assert "is not a folder" in mixture.text
    assert blended.ask("/mixture?split=train").status == 200


def test_a_blend_is_that_of_a_metadataset(server: PageServer) -> None:
    assert server.ask("/blend").status == 404


def test_a_dataset_has_the_samples_of_its_subset(tmp_path: Path) -> None:
    data = prepare(write_shards(tmp_path / "data", {f"k{n}": {"txt": b"x"} for n in range(20)}, 2))
    (tmp_path / "some.txt").write_text("k3\nk17\nk18\n")
    subsets = [{"keys": "some.txt"}, {"range": [2, 6]}, {"range": ["50%", "100%"], "keys": "some.txt"}]
    nodes = [{"path": data.name, "weight": 1, "subset": subset} for subset in subsets]
    broken = {"path": data.name, "weight": 1, "subset": {"keys": "none.txt"}}
    mix = tmp_path / "mix.yaml"
    splits = {"train": {"blend": nodes}, "val": {"blend": [*nodes, broken]}}
    mix.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}))
    with serving(mix, tmp_path / "scans") as running:
        overview = running.ask("/").text
        assert re.findall(r"<span>(\d+ of 20) samples</span>", overview) == ["3 of 20", "4 of 20", "2 of 20"] * 2
        for page in (running.ask("/blend?order=dataset").text, running.ask("/blend?split=val").text):
            assert "<strong>9</strong> samples, one dataset after the other" in page
            assert re.findall(r">#(\d+)</span>", page) == ["3", "17", "18", "2", "3", "4", "5", "17", "18"]
        assert "none.txt is missing" in running.ask("/blend?split=val").text
