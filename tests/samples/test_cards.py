"""What notebooks and terminals show of samples, datasets, loaders, statistics and plans."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import energon_dali as ed
from energon_dali.samples.cards import MOST_IMAGES, MOST_ROWS, Bar, card, escaped
from energon_dali.samples.thumbnails import MOST_BYTES, SIDE_PX, count_images, thumbnails

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe\x1b[31m\ud800&amp;"
VOID = ("img", "br")


class Page(HTMLParser):
    """Reads a card, and refuses tags that are not closed in their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("id", "class")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def captioning(**fields: Any) -> ed.CaptioningSample:
    return ed.CaptioningSample(**{"__key__": "000", "__restore_key__": ("a", 1), "caption": "A cat", **fields})


def test_a_sample_shows_its_image_and_its_fields() -> None:
    page = Page(captioning(image=torch.rand(3, 600, 400))._repr_html_())
    assert page.tags.count("img") == 1
    assert "float32 [3, 600, 400]" in page.text
    assert "A cat" in page.text
    assert "style" not in page.tags
    assert "script" not in page.tags


def test_a_batch_shows_a_few_of_its_images() -> None:
    batch = captioning(__key__=[str(n) for n in range(64)], image=torch.rand(64, 3, 32, 32), caption=["A cat"] * 64)
    html = batch._repr_html_()
    page = Page(html)
    assert page.tags.count("img") == MOST_IMAGES
    assert "batch of 64" in page.text
    assert len(html) < 60_000


def test_what_comes_from_data_is_escaped() -> None:
    handle = ed.DaliDecoder(image_decode_device="cpu").stage("jpg", _jpeg(40, 30))
    sample = captioning(__key__=HOSTILE, image=handle, caption=HOSTILE * 100)
    setattr(sample, "<script>", HOSTILE)
    html = sample._repr_html_()
    page = Page(html)
    assert not {"script", "img"} & set(page.tags)
    assert len(html) < 10_000
    assert "\u202e" not in html
    assert "\x1b" not in html
    html.encode()


def test_encoded_media_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = ed.DaliDecoder(image_decode_device="cpu").stage("jpg", _jpeg(40, 30))
    monkeypatch.setattr("energon_dali.decode.images.open_image", lambda *_: pytest.fail("an image was decoded"))
    page = Page(handle._repr_html_())
    assert "40 x 30 pixels" in page.text
    assert "40x30" in Page(captioning(image=handle)._repr_html_()).text


def test_a_handle_shows_its_tokens() -> None:
    front_end = ed.FrontEnd.from_processor({"image_processor_type": "Qwen2VLImageProcessor"})
    handle = ed.SampleDecoder(front_end=front_end).stage("jpg", _jpeg(640, 480))
    assert "391 tokens" in Page(handle._repr_html_()).text


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (torch.zeros(3, 32, 40), 1),
        (torch.zeros(5, 2, 3, 32, 40, dtype=torch.bfloat16), 10),
        (np.zeros((32, 40, 3), np.uint8), 1),
        (np.zeros((32, 40), np.uint8), 1),
        (torch.full((4, 3, 32, 32), float("nan")), 4),
        (torch.full((3, 32, 32), 7.0), 1),
        (torch.randn(3, 32, 32), 1),
        (Image.new("CMYK", (500, 20)), 1),
        (torch.zeros(8, 512), 0),
        (torch.zeros(3, 4, 4), 0),
        (torch.zeros(0, 3, 32, 32), 0),
        (torch.zeros(3, 32, 32, dtype=torch.int64), 0),
        (torch.zeros(()), 0),
        ("text", 0),
        (None, 0),
    ],
)
def test_thumbnails(value: Any, count: int) -> None:
    assert count_images(value) == count
    made = thumbnails(value, 4)
    assert len(made) == min(4, count)
    for uri in made:
        kind, _, content = uri.partition(";base64,")
        assert kind in ("data:image/png", "data:image/jpeg")
        file = base64.b64decode(content)
        assert len(file) <= MOST_BYTES
        assert max(Image.open(io.BytesIO(file)).size) <= SIDE_PX


def test_thumbnails_show_the_pixels() -> None:
    red = torch.zeros(2, 3, 900, 300)
    red[1, 0] = 1.0
    first, second = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))) for uri in thumbnails(red, 2)
    )
    assert first.max() < 10
    assert second[..., 0].min() > 240
    assert second[..., 1].max() < 15


class Failing:
    """An object of a user that cannot even be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


def test_what_cannot_be_shown_does_not_fail() -> None:
    closed = Image.new("RGB", (9, 9))
    closed.close()
    page = Page(captioning(image=closed, caption=Failing())._repr_html_())
    assert "PIL image, RGB, 9 x 9" in page.text
    assert "Failing, which cannot be shown: RuntimeError" in page.text
    assert "img" not in page.tags


def test_cards_are_bounded() -> None:
    rows: list[tuple[str, str | Bar]] = [(f"name {n}" * 50, "value " * 1000) for n in range(10_000)]
    html = card("title" * 1000, rows, note="note" * 1000, text=("lines", "line\n" * 100_000))
    page = Page(html)
    assert page.tags.count("tr") == MOST_ROWS + 1
    assert f"{10_000 - MOST_ROWS:,} more" in page.text
    assert len(html) < 60_000
    assert "width:100.0%" in card("a", [("b", Bar(7.0, "c"))])
    assert escaped("a\nb<") == "a b&lt;"


def test_plain_representations_are_short_and_without_data() -> None:
    sample = captioning(image=torch.zeros(3, 64, 64))
    assert repr(sample) == (
        "CaptioningSample(__key__='000', __restore_key__=['a', 1], __subflavors__=None, "
        "image=Tensor(shape=(3, 64, 64), dtype=torch.float32, device=cpu), caption='A cat')"
    )
    crude = ed.CrudeSample({"__key__": "000", "jpg": b"x" * 100_000})
    assert repr(crude) == "CrudeSample({__key__: '000', jpg: bytes(100000 bytes)})"
    assert "bytes(100000 bytes)" in Page(crude._repr_html_()).text

    @ed.edataclass
    class Point:
        x: int

    @ed.edataclass
    class Named(ed.Sample):
        name: str

        def __repr__(self) -> str:
            return self.name

    assert repr(Point(x=1)).endswith("Point(x=1)")
    assert repr(Named(__key__="k", __restore_key__=(), name="mine")) == "mine"


def test_clips_show_frames() -> None:
    clips = ed.Clips(frames=torch.zeros(2, 4, 3, 32, 32, dtype=torch.uint8), timestamps=torch.zeros(2, 4))
    sample = ed.VidQASample(__key__="v", __restore_key__=(), video=clips, context="What?")
    page = Page(sample._repr_html_())
    assert page.tags.count("img") == MOST_IMAGES
    assert re.search(r"frames=\(2, 4, 3, 32, 32\)", page.text)


def _jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 100, 50)).save(file, "jpeg")
    return file.getvalue()
