"""Cards that notebooks show of objects (`_repr_html_`): a title, small images, a table, and a text to open.

What a card shows comes from data, so all of it is escaped and cut to a limit. Colours are those of the page, which may
be dark or light: text inherits its colour, and lines and bars are half transparent. A card has no scripts, no ids and
no style sheet, which would affect the rest of the page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from energon_dali.samples.description import describe, is_array
from energon_dali.samples.thumbnails import count_images, thumbnails

MOST_ROWS = 40
MOST_TEXT = 300
"""Characters of a cell."""
MOST_LINES = 200
"""Lines of a text to open."""
MOST_IMAGES = 8
_LINE_TEXT = 200
_SHORT_TEXT = 24

_FRAME = (
    "border:1px solid rgba(128,128,128,.5);border-radius:6px;padding:.6em .9em;margin:.3em 0;max-width:60em;"
    "box-sizing:border-box;overflow-x:auto;line-height:1.45;font-size:.95em"
)
_NAME = (
    "text-align:left;vertical-align:top;font-weight:normal;opacity:.72;padding:.1em 1.2em .1em 0;border:0;"
    "white-space:nowrap;background:transparent"
)
_CELL = "text-align:left;vertical-align:top;padding:.1em 0;border:0;background:transparent;overflow-wrap:anywhere"
_IMAGE = "display:block;max-width:112px;max-height:112px;border-radius:3px"
_BAR = "display:inline-block;vertical-align:middle;height:.55em;border-radius:2px;background:rgba(42,127,98,.75)"
_TRACK = (
    "display:inline-block;vertical-align:middle;width:6em;height:.55em;border-radius:2px;margin-right:.7em;"
    "background:rgba(128,128,128,.25);line-height:0"
)

BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")


def card(
    title: str,
    rows: Iterable[tuple[str, str | Bar]] = (),
    *,
    note: str = "",
    images: Sequence[tuple[str, str]] = (),
    text: tuple[str, str] = ("", ""),
    opened: bool = False,
) -> str:
    """Returns a card as HTML.

    Args:
        title: Its first line.
        rows: Names and values of its table.
        note: What follows the title in small letters.
        images: (caption, data URI) of small images.
        text: (title, content) of a text in a fixed font.
        opened: Whether the text is open at first.
    """
    shown = list(rows)
    cut = [("", f"{len(shown) - MOST_ROWS:,} more")] if len(shown) > MOST_ROWS else []
    parts = [
        f'<div style="{_FRAME}">',
        f'<div><b>{escaped(title)}</b> <span style="opacity:.72">{escaped(note)}</span></div>',
        _figures(images[:MOST_IMAGES]),
        _table([*shown[:MOST_ROWS], *cut]),
        _details(*text, opened=opened) if text[1] else "",
        "</div>",
    ]
    return "".join(parts)


class Bar:
    """A value with a bar of a share.

    Args:
        share: 0 to 1.
        text: The value.
    """

    def __init__(self, share: float, text: str) -> None:
        self.share = min(1.0, max(0.0, share))
        self.text = text


def escaped(text: str, most: int = MOST_TEXT) -> str:
    """Returns text for HTML, cut to a limit, with characters replaced that cannot be seen or turn the direction.

    Args:
        text: Any text, such as a caption.
        most: Most characters.
    """
    more = f" … ({len(text):,} characters)" if len(text) > most else ""
    shown = "".join(
        character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}"
        for character in text[:most]
    )
    return html.escape(shown).replace("\n", " ") + more


def sample_card(sample: Any, values: Mapping[str, Any]) -> str:
    """Returns the card of a sample or a batch: its decoded images, and a line for each field.

    Nothing is decoded or fetched: encoded media show what their headers say.

    Args:
        sample: The sample.
        values: Its values by name.
    """
    key = values.get("__key__")
    keys = list(key) if isinstance(key, (list, tuple)) else None
    note = f"batch of {len(keys):,}" if keys is not None else str(key if key is not None else "")
    fields = {name: value for name, value in values.items() if name not in BASE_FIELDS}
    rows = [(name, _line(value)) for name, value in fields.items()]
    if keys is not None:
        rows.append(("__key__", in_words(keys)))
    sources = values.get("__sources__")
    rows += [(name, in_words(values[name])) for name in BASE_FIELDS[1:3] if _says_something(values.get(name))]
    if sources:
        shown = "; ".join(f"{one.shard_name}: {', '.join(one.file_names)}" for one in sources[:MOST_IMAGES])
        rows.append(("__sources__", f"{sources[0].dataset_path}: {shown}"))
    return card(type(sample).__name__, rows, note=note, images=_images_of(fields))


def _says_something(value: Any) -> bool:
    """Returns whether a value of a base field is worth a line: not None, not empty, and not a list of such values."""
    return any(map(_says_something, value)) if isinstance(value, list) else value not in (None, {}, ())


def _line(value: Any) -> str:
    """Returns a field in words; of an object of the user that fails even then, its type."""
    try:
        return in_words(value)
    except Exception as error:
        return f"{type(value).__name__}, which cannot be shown: {type(error).__name__}"


def _count(value: Any) -> int:
    """Returns how many images a value holds; none if looking at it fails."""
    try:
        return count_images(value)
    except Exception:
        return 0


def in_words(value: Any) -> str:
    """Returns a value as a cell says it, such as "uint8 [3, 480, 640]", or the beginning of a text.

    Args:
        value: Anything.
    """
    if isinstance(value, str):
        return value
    if is_array(value):
        device = str(getattr(value, "device", "cpu"))
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind} {list(value.shape)}{'' if device == 'cpu' else f' on {device}'}"
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, str) for one in value):
        texts = "; ".join(one[:_LINE_TEXT] for one in value[:MOST_IMAGES])
        return f"{len(value):,}: {texts}{'; …' if len(value) > MOST_IMAGES else ''}"
    if hasattr(value, "thumbnail") and hasattr(value, "mode"):
        return f"PIL image, {value.mode}, {value.size[0]} x {value.size[1]}"
    return describe(value)


def _images_of(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (name of the field, data URI) of the images that fields hold, with a share of them for each field."""
    found: list[tuple[str, Any, int]] = []
    for name, value in fields.items():
        frames = getattr(value, "frames", None) if type(value).__name__ == "Clips" else value
        parts = frames if isinstance(frames, list) else [frames]
        found += [(name, part, count) for part in parts[:MOST_IMAGES] if (count := _count(part))]
    images: list[tuple[str, str]] = []
    for number, (name, value, _) in enumerate(found):
        room = MOST_IMAGES - len(images)
        share = max(1, room - (len(found) - number - 1))
        images += [(name, uri) for uri in thumbnails(value, min(room, share))]
    return images


def _figures(images: Sequence[tuple[str, str]]) -> str:
    if not images:
        return ""
    figures = "".join(
        f'<figure style="margin:0"><img src="{uri}" alt="{escaped(caption, 80)}" style="{_IMAGE}">'
        f'<figcaption style="font-size:.8em;opacity:.72">{escaped(caption, 20)}</figcaption></figure>'
        for caption, uri in images
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:.5em;margin:.5em 0">{figures}</div>'


def _table(rows: Sequence[tuple[str, str | Bar]]) -> str:
    if not rows:
        return ""
    lines = "".join(
        f'<tr style="background:transparent"><th style="{_NAME}">{escaped(name, 60)}</th>'
        f'<td style="{_CELL}">{_bar(value) if isinstance(value, Bar) else escaped(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table style="border-collapse:collapse;border:0;margin:.4em 0 .2em">{lines}</table>'


def _bar(bar: Bar) -> str:
    text = escaped(bar.text)
    words = f'<span style="white-space:nowrap">{text}</span>' if len(text) <= _SHORT_TEXT else text
    return f'<span style="{_TRACK}"><span style="{_BAR};width:{bar.share:.1%}"></span></span>{words}'


def _details(title: str, content: str, *, opened: bool) -> str:
    lines = content.splitlines()
    shown = [escaped(line, _LINE_TEXT) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        shown.append(f"… {len(lines) - MOST_LINES:,} more lines")
    text = "\n".join(shown)
    return (
        f'<details{" open" if opened else ""} style="margin:.3em 0 0">'
        f'<summary style="cursor:pointer;opacity:.85">{escaped(title)}</summary>'
        f'<pre style="margin:.4em 0 0;background:transparent;color:inherit;border:0;padding:0;font-size:.9em;'
        f'overflow-x:auto">{text}</pre></details>'
    )
