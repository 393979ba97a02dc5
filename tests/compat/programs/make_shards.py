"""Writes the shards that the other programs of this folder read: `python make_shards.py FOLDER`."""

import io
import json
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

SHARDS, SAMPLES = 4, 6


def png(rng, height, width):
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def parts(kind, number, rng):
    words = " ".join(f"w{int(rng.integers(0, 90))}" for _ in range(int(rng.integers(2, 9))))
    if kind == "vqa":
        question = {"question": words, "answers": [f"answer {number}", "no"]}
        return {"png": png(rng, 12, 16), "json": json.dumps(question).encode()}
    if kind == "chat":
        turns = [{"role": "user", "content": f"<image> {words}"}, {"role": "assistant", "content": f"reply {number}"}]
        images = [png(rng, 8, 10) for _ in range(number % 3)]
        return {"json": json.dumps(turns).encode(), "jpgs": pickle.dumps(images)}
    if kind == "latents":
        latents = {"latents": rng.standard_normal((4, 3, 5)).astype(np.float32), "prompt": words}
        return {"pickle": pickle.dumps(latents), "txt": words.encode(), "debug.pkl": pickle.dumps([number])}
    if kind == "captions":
        return {"png": png(rng, int(rng.integers(9, 20)), int(rng.integers(9, 20))), "txt": words.encode()}
    return {"txt": words.encode()}


def main(folder):
    for kind in ("vqa", "chat", "latents", "captions", "texts"):
        rng = np.random.default_rng(sum(kind.encode()))
        target = Path(folder) / kind
        target.mkdir(parents=True, exist_ok=True)
        for shard in range(SHARDS):
            with tarfile.open(target / f"part-{shard}.tar", "w") as tar:
                for index in range(SAMPLES):
                    number = shard * SAMPLES + index
                    for suffix, content in parts(kind, number, rng).items():
                        member = tarfile.TarInfo(f"{kind}{number:03d}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main(sys.argv[1])
