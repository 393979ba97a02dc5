"""How samples are shown in Chromium: whole texts, enlarged images, strips, waveforms, blends, and the focus.

Run by `make test-browser`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from energon_dali.view import pages
from tests.loader.dataset_folder import captioning_dataset
from tests.view.chromium import chromium
from tests.view.odd_samples import odd_samples, write_odd
from tests.view.page_server import PageServer, serving
from tests.view.test_browser import all_of, arrive, enter, go, is_complete, one, press, wait

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
KEYS = list(odd_samples())
WIDTHS = (1440, 600)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_odd(tmp_path_factory.mktemp("display") / "odd")


@pytest.fixture(scope="module")
def server(odd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with serving(odd, tmp_path_factory.mktemp("scans")) as running:
        running.site.scan.start()
        assert running.site.scan.wait(120)
        yield running


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_errors(window: webdriver.Chrome) -> Iterator[None]:
    """No script fails, and the policy of the page refuses nothing of its own."""
    window.get_log("browser")
    yield
    errors = [entry["message"] for entry in window.get_log("browser") if entry["level"] == "SEVERE"]
    ways = ("/thumbnail", "/image", "/strip", "/waveform")  # status 422 for what cannot be decoded
    assert [message for message in errors if not any(way in message for way in ways)] == []


def resize(window: webdriver.Chrome, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def sample(server: PageServer, key: str) -> str:
    return f"{server.url}/data/0/sample/{KEYS.index(key)}"


def test_no_page_is_wider_than_the_window(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    paths = ["", "?size=96", "/statistics", "/failures", *(f"/sample/{number}" for number in range(len(KEYS)))]
    wide = []
    for width in WIDTHS:
        resize(window, width)
        for path in paths:
            go(window, f"{server.url}/data/0{path}")
            if window.execute_script("return document.documentElement.scrollWidth > innerWidth"):
                wide.append((width, path))
    resize(window, 1280)
    assert wide == []


def test_texts_are_shown_to_their_end(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    for key in ("long-caption", "many-lines", "deep-json", "wide-json"):
        go(window, sample(server, key))
        cut = "return [...document.querySelectorAll('.part pre')].map(e => getComputedStyle(e).webkitLineClamp)"
        assert window.execute_script(cut) == ["none"]
        scrolls = "const e = document.querySelector('.part pre'); e.scrollTop = 1e9; return e.scrollTop > 0"
        assert window.execute_script(scrolls) == (key != "long-caption")
    go(window, sample(server, "long-text"))
    text = "document.querySelector('.part pre').textContent"
    shown = window.execute_script(f"return {text}.length")
    assert not window.execute_script(f"return {text}.endsWith('THE END')")
    for _ in range(3):
        buttons = all_of(window, "[data-more]")
        if not buttons:
            break
        window.execute_script("arguments[0].scrollIntoView({block: 'center'})", buttons[0])
        buttons[0].click()
        wait(window, lambda w, known=shown: w.execute_script(f"return {text}.length") > known)
        shown = window.execute_script(f"return {text}.length")
    assert all_of(window, "[data-more]") == []
    assert shown == len(odd_samples()["long-text"]["txt"])
    assert window.execute_script(f"return {text}.endsWith('THE END')")


def test_texts_have_the_direction_of_their_script(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    direction = "return getComputedStyle(document.querySelector('.part pre')).direction"
    for key, expected in (("arabic", "rtl"), ("hebrew", "rtl"), ("one-word", "ltr"), ("mixed-scripts", "ltr")):
        go(window, sample(server, key))
        assert window.execute_script(direction) == expected, key


def test_the_focus_is_kept_from_page_to_page(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=10")

    def focus() -> str:
        return str(window.execute_script("const e = document.activeElement; return e.dataset.sample || e.rel || e.id"))

    press(window, "j", "j", "j")
    assert focus() == "2"
    press(window, Keys.ENTER)
    arrive(window, "/data/0/sample/2")
    press(window, "j")
    arrive(window, "/data/0/sample/3")
    press(window, "u")
    arrive(window, "/data/0?size=10")
    wait(window, lambda _: focus() == "3")
    press(window, *["j"] * 7)  # from the last card to the first of the next page
    arrive(window, "/data/0?size=10&page=2")
    wait(window, lambda _: focus() == "10")
    press(window, "k")
    arrive(window, "/data/0?size=10")
    wait(window, lambda _: focus() == "9")
    window.execute_script("document.querySelector('a[rel=next]').focus()")
    press(window, Keys.ENTER)
    arrive(window, "/data/0?size=10&page=2")
    wait(window, lambda _: focus() == "next")
    window.back()
    arrive(window, "/data/0?size=10")
    wait(window, lambda _: focus() == "next")


def test_images_are_enlarged_and_say_their_pixels(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    go(window, sample(server, "sixteen-bit"))
    one(window, "img[data-zoom]").click()
    wait(window, lambda w: one(w, "#lightbox").get_attribute("data-shown"))
    assert one(window, "#pixel").text == "50 \u00d7 30"
    view = one(window, ".lightbox-view")
    ActionChains(window).move_to_element_with_offset(view, 5, 5).perform()
    wait(window, lambda w: one(w, "#pixel").text == "x 25, y 15: I;16 3000")
    scale = "return document.querySelector('.lightbox-view img').getBoundingClientRect().width / 50"
    before = window.execute_script(scale)
    press(window, "+")
    assert window.execute_script(scale) == pytest.approx(before * 1.5)
    press(window, Keys.ARROW_RIGHT)
    wait(window, lambda w: one(w, "#pixel").text.endswith("I;16 3000"))
    press(window, "0")
    assert window.execute_script(scale) == pytest.approx(before)
    press(window, Keys.ESCAPE)
    wait(window, lambda w: not one(w, "#lightbox").is_displayed())
    arrive(window, f"/data/0/sample/{KEYS.index('sixteen-bit')}")
    go(window, sample(server, "forty-images"))
    all_of(window, "img[data-zoom]")[1].click()
    wait(window, lambda w: one(w, "#lightbox").get_attribute("data-shown"))
    press(window, "j")
    third = all_of(window, "img[data-zoom]")[2].get_attribute("src")
    wait(window, lambda w: one(w, "#lightbox").get_attribute("data-shown") == third)


def test_strips_and_waveforms_seek(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    for key, player in (("video", "video"), ("sound", "audio")):
        go(window, sample(server, key))
        media = f"document.querySelector('{player}')"
        wait(window, lambda w, media=media: w.execute_script(f"return {media}.readyState > 0 && {media}.duration > 0"))
        ready = "const s = document.querySelector('.seek:not([hidden]) img'); return s.naturalWidth > 0"
        wait(window, lambda w, ready=ready: w.execute_script(ready))
        strip = one(window, ".seek:not([hidden])")
        window.execute_script("arguments[0].scrollIntoView({block: 'center'})", strip)
        ActionChains(window).move_to_element(strip).click().perform()
        share = window.execute_script(f"return {media}.currentTime / {media}.duration")
        assert share == pytest.approx(0.5, abs=0.02)
        assert strip.get_attribute("role") == "slider"
        press(window, Keys.ARROW_RIGHT)
        later = window.execute_script(f"return {media}.currentTime / {media}.duration")
        assert later == pytest.approx(share + 1 / 40, abs=0.01)
        arrive(window, f"/data/0/sample/{KEYS.index(key)}")  # the arrow did not lead to the next sample
        press(window, Keys.END)
        assert float(strip.get_attribute("aria-valuenow")) > 0
        left = window.execute_script(
            "return parseFloat(document.querySelector('.seek:not([hidden]) .playhead').style.left)"
        )
        assert left > 90
    assert len(all_of(window, "audio ~ .seek:not([hidden])")) == 1


def test_bars_lead_to_their_samples(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0/statistics")
    for chart in ("widths", "text_lengths", "formats", "sizes"):
        go(window, f"{server.url}/data/0/statistics")
        bar = one(window, f"#chart-{chart} a")
        words = bar.get_attribute("aria-label")
        assert words.endswith(": show them")
        bar.click()
        wait(window, lambda w: w.execute_script("return document.body.dataset.page == 'grid'") and is_complete(w))
        assert len(all_of(window, ".card")) > 0, (chart, words)
        assert len(all_of(window, ".chip")) > 0


@pytest.fixture(scope="module")
def blend(odd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, and in the split val one more that is missing."""
    folder = tmp_path_factory.mktemp("blend")
    paths = [captioning_dataset(folder / "captions", count=20), odd, folder / "none"]
    uses = [{"weight": 3 - number, "path": str(path), "split_part": "train"} for number, path in enumerate(paths)]
    splits = {"train": {"blend": uses[:2]}, "val": {"blend": uses}}
    form = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}
    (folder / "blend.yaml").write_text(json.dumps(form))
    return folder / "blend.yaml"


def test_a_blend_is_one_grid_with_a_colour_for_each_dataset(
    window: webdriver.Chrome, blend: Path, tmp_path: Path
) -> None:
    with serving(blend, tmp_path / "scans") as server:
        enter(window, server, "/blend?size=24")
        cards = all_of(window, ".card")
        assert len(cards) == 24
        colour = "return getComputedStyle(arguments[0]).borderTopColor"
        found = {window.execute_script(colour, card) for card in cards}
        names = {name.text for name in all_of(window, ".dataset-name")}
        assert (len(found), names) == (2, {"captions", "odd"})
        legend = [window.execute_script(colour, card) for card in all_of(window, ".dataset")]
        assert set(legend) == found
        addresses = [str(card.get_attribute("href")) for card in cards]
        cards[3].click()
        arrive(window, addresses[3].partition("?")[0].removeprefix(server.url))
        press(window, "j")
        arrive(window, addresses[4].partition("?")[0].removeprefix(server.url))
        press(window, "u")
        arrive(window, "/blend?split=train&size=24")
        wait(window, lambda w: w.execute_script("return document.activeElement.dataset.sample == 'at-4'"))
        go(window, f"{server.url}/blend?split=val")
        assert "is not a folder" in one(window, ".dataset.missing").text
        assert len(all_of(window, ".card")) == 48


def test_a_conversation_has_its_images_in_place(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    go(window, sample(server, "chat"))
    turns = all_of(window, ".chat .turn")
    assert [turn.find_element("tag name", "h3").text for turn in turns] == ["human", "gpt", "human"]
    loaded = "return [...document.querySelectorAll('.chat img')].map(i => i.naturalWidth)"
    wait(window, lambda w: w.execute_script(loaded) == [64, 64])
    lefts = [window.execute_script("return arguments[0].getBoundingClientRect().left", turn) for turn in turns]
    assert lefts[0] > lefts[1]  # the two sides
    said = "return getComputedStyle(document.querySelector('.turn.assistant .said')).direction"
    assert window.execute_script(said) == "rtl"
    all_of(window, ".chat img")[1].click()
    wait(window, lambda w: one(w, "#lightbox").get_attribute("data-shown"))
    press(window, Keys.ESCAPE)
    one(window, ".as-json summary").click()
    assert '"conversations"' in one(window, ".as-json pre").text


def test_values_of_json_fields_lead_to_their_samples(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    facets = one(window, "#facets > summary")
    window.execute_script("arguments[0].scrollIntoView({block: 'center'})", facets)
    facets.click()
    wait(window, lambda w: len(all_of(w, "#facets li a")) > 2)
    assert [value.text for value in all_of(window, "#facets details:first-of-type li a span:first-child")] == [
        "de",
        "en",
    ]
    one(window, "#facets li a").click()
    wait(window, lambda w: "field=language" in w.current_url and is_complete(w))
    assert [card.text for card in all_of(window, ".card .key")] == ["array"]
    one(window, ".views a:not([aria-current])").click()
    wait(window, lambda w: "view=table" in w.current_url and is_complete(w))
    assert [cell.text for cell in all_of(window, ".fields .cell")] == ["de", "0.5"]
    press(window, "j", Keys.ENTER)
    arrive(window, f"/data/0/sample/{KEYS.index('array')}")
    press(window, "u")
    wait(window, lambda w: "view=table" in w.current_url)
    wait(window, lambda w: w.execute_script("return document.activeElement.dataset.sample") == str(KEYS.index("array")))


TOKENS = """
import torch
from energon_dali import DefaultTaskEncoder, Sample, edataclass, stateless

class Words:
    known = ["<pad>", "<|image_pad|>", "picture", "number", *map(str, range(100))]
    def encode(self, text):
        return [1] * 1024 + [self.known.index(word) for word in text.split()]
    def decode(self, ids):
        return " ".join(self.known[number] for number in ids)

@edataclass
class Encoded(Sample):
    input_ids: torch.Tensor
    cu_seqlens: torch.Tensor

class Folded(DefaultTaskEncoder):
    decoder = None
    tokenizer = Words()

    @stateless
    def encode_sample(self, sample):
        ids = torch.tensor(self.tokenizer.encode(sample.caption.decode()))
        return Encoded.derive_from(sample, input_ids=ids, cu_seqlens=torch.tensor([0, len(ids)]))

    def select_samples_to_pack(self, samples):
        return [samples]

    @stateless
    def pack_selected_samples(self, samples):
        lengths = torch.tensor([0] + [len(sample.input_ids) for sample in samples])
        ids = torch.cat([sample.input_ids for sample in samples])
        return Encoded.derive_from(samples[0], input_ids=ids, cu_seqlens=lengths.cumsum(0))
"""


def test_image_tokens_are_folded_and_segments_and_words_lead_to_samples(
    window: webdriver.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folding_encoder.py").write_text(TOKENS)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = captioning_dataset(tmp_path / "data", count=12)
    options = {"encoder": "folding_encoder:Folded", "batch_size": 1, "packing_buffer_size": 3}
    with serving(data, tmp_path / "scans", **options) as server:
        enter(window, server, "/encoder")
        assert all_of(window, ".error") == [], one(window, "main").text
        assert [token.text for token in all_of(window, ".token.folded b")] == ["image x 1,024"] * 3
        segments = all_of(window, "svg.strip a")
        assert len(segments) == 3
        made_of = [link.get_attribute("href") for link in all_of(window, "main p.path a")]
        assert [window.execute_script("return arguments[0].href.baseVal", link) for link in segments] == [
            str(address).removeprefix(server.url) for address in made_of
        ]
        server.site.scan.start()
        assert server.site.scan.wait(60)
        word = next(token for token in all_of(window, "a.token") if token.text.startswith("picture"))
        word.click()
        wait(window, lambda w: "text=picture" in w.current_url and is_complete(w))
        assert len(all_of(window, ".card")) == 12


def test_what_takes_long_is_seen_to_be_on_its_way(
    window: webdriver.Chrome, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = pages.collect_statistics

    def wait_first(*arguments: object, **options: object) -> object:
        time.sleep(1.5)
        return slow(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pages, "collect_statistics", wait_first)
    enter(window, server)
    window.execute_script(
        """sessionStorage.removeItem("seen");
        new MutationObserver(() => document.getElementById("waiting") && sessionStorage.setItem("seen", "1"))
            .observe(document.body, {childList: true});
        document.querySelector("nav a[href$=statistics]").click();"""
    )
    wait(window, lambda w: w.execute_script("return document.body.dataset.page == 'statistics'"))
    assert window.execute_script("return sessionStorage.getItem('seen')") == "1"
    assert all_of(window, "#waiting") == []
