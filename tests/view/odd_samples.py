"""A dataset of 35 odd samples, each of which has broken a page of data somewhere: long, empty, foreign, damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from energon_dali.shards.prepare.dataset import prepare_dataset
from tests.av.corpus import audio_file, video_file
from tests.loader.dataset_folder import picture, write_shards

Parts = dict[str, bytes]


def _encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _flat(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    return Image.linear_gradient("L").resize(size).convert(mode)


def _npy(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def odd_images() -> dict[str, Parts]:
    """Returns samples whose images are unusual."""
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    frames = [_flat((40, 30)).rotate(90 * number) for number in range(3)]
    return {
        "one-pixel": {"png": _encoded(Image.new("RGB", (1, 1), (255, 0, 0)), "PNG"), "txt": b"one red pixel"},
        "very-wide": {"png": _encoded(_flat((4000, 3)), "PNG"), "txt": b"4000 x 3"},
        "very-tall": {"png": _encoded(_flat((3, 4000)), "PNG"), "txt": b"3 x 4000"},
        "transparent": {"png": _encoded(Image.new("RGBA", (60, 40), (0, 0, 255, 60)), "PNG")},
        "palette": {"png": _encoded(_flat((60, 40)).convert("P"), "PNG")},
        "sixteen-bit": {"tiff": _encoded(Image.new("I;16", (50, 30), 3000), "TIFF")},
        "cmyk": {"jpg": _encoded(_flat((60, 40), "CMYK"), "JPEG")},
        "animated": {"gif": _encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])},
        "upside-down": {"jpg": _encoded(_flat((60, 40)), "JPEG", exif=upside_down)},
        "cut-off": {"jpg": picture(1)[:400], "txt": b"the file ends early"},
        "not-an-image": {"jpg": b"this is text", "txt": b"named jpg"},
        "empty-image": {"jpg": b"", "txt": b"zero bytes"},
        "forty-images": {f"{number:02d}.jpg": picture(number) for number in range(40)},
    }


def odd_texts() -> dict[str, Parts]:
    """Returns samples whose texts are unusual."""
    sentence = "The quick brown fox jumps over the lazy dog. "
    return {
        "no-text": {"txt": b""},
        "one-word": {"txt": b"x" * 20_000},
        "long-text": {"jpg": picture(2), "txt": (sentence * 12_000 + "THE END").encode()},
        "long-caption": {"jpg": picture(3), "txt": (sentence * 40).encode()},
        "many-lines": {"txt": "\n".join(map(str, range(3000))).encode()},
        "arabic": {"jpg": picture(4), "txt": "صورة لقطة تجلس على السجادة، رقم 42 (cat).".encode()},
        "hebrew": {"txt": "שלום עולם: זוהי תמונה של חתול.\nA second line, in English.".encode()},
        "mixed-scripts": {"txt": "日本語とEnglishとไทยと한국어と🙂👩‍👩‍👧‍👦".encode()},
        "zalgo": {"txt": "".join(letter + "\u0301\u0328\u0334" * 8 for letter in "combining marks").encode()},
        "overrides": {"txt": "right-to-left override: \u202egpj.exe\u202c and zero width: a\u200bb".encode()},
        "not-utf-8": {"txt": b"caf\xe9 na\xefve"},
        "control-characters": {"txt": b"bell \x07, escape \x1b[31m, null \x00, tab \t."},
    }


def odd_data() -> dict[str, Parts]:
    """Returns samples with unusual JSON, arrays, media and names."""
    nested: object = "the core"
    for _ in range(40):
        nested = {"inner": nested}
    chat = {
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is on <image> and on the first?"},
            {"from": "gpt", "value": "قطة.\n\n```python\nprint('a cat')\n```"},
            {"from": "human", "value": "<image> is missing"},
        ]
    }
    return {
        "deep-json": {"json": _json(nested)},
        "wide-json": {"json": _json({f"field {number}": number / 7 for number in range(300)})},
        "not-json": {"json": b'{"a": 1,'},
        "chat": {"0.jpg": picture(5), "1.png": picture(6, "png"), "json": _json(chat)},
        "array": {"npy": _npy(np.zeros((3, 4, 5), np.float32)), "json": _json({"language": "de", "score": 0.5})},
        "bytes": {"bin": bytes(range(256)) * 10},
        "video": {"mp4": video_file("h264-b-mp4"), "json": _json({"language": "en", "score": 2})},
        "sound": {"mp3": audio_file("mp3"), "txt": b"a tone"},
        "broken-video": {"mp4": video_file("h264-b-mp4")[:3000]},
        "a/folder/" + "very-long-key-" * 12 + "end": {"txt": b"its key is long"},
    }


def odd_samples() -> dict[str, Parts]:
    """Returns all 35, key to parts."""
    return {**odd_images(), **odd_texts(), **odd_data()}


def write_odd(folder: Path) -> Path:
    """Writes and prepares the dataset, in two shards."""
    write_shards(folder, odd_samples(), shards=2)
    prepare_dataset(str(folder), split_patterns=[("train", ".*")])
    (folder / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return folder
