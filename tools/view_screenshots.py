"""Draws the screenshots of `docs/view.md`: `python tools/view_screenshots.py`. Needs Chromium and its driver.

They show the demo data, a dataset of videos made from it, a blend of both, and an encoder that packs.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import shutil
import sys
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import webdataset
from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import energon_dali as ed  # noqa: E402
from energon_dali.cli import demo_data  # noqa: E402
from energon_dali.cli.main import main as command  # noqa: E402
from tests.view.chromium import chromium, prefer_theme  # noqa: E402
from tests.view.page_server import TOKEN, PageServer, serving  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DATA = Path("/tmp/demo")
"""Folder of the datasets; must not exist."""
WIDTH, HEIGHT = 1080, 720
_COLOURS = 96

ENCODER = '''
import torch
from energon_dali import DefaultTaskEncoder, RandomResizedCrop, Sample, SampleDecoder, edataclass, stateless

class Words:
    """A toy tokenizer: a number per word."""

    known = ["<pad>", "<image>", "<bos>", "<eos>"]

    def encode(self, text):
        self.known += [word for word in text.split() if word not in self.known]
        return [2, *(self.known.index(word) for word in text.split()), 3]

    def decode(self, ids):
        return " ".join(self.known[number] for number in ids)

@edataclass
class Encoded(Sample):
    image: torch.Tensor
    input_ids: torch.Tensor
    labels: torch.Tensor

@edataclass
class Pack(Sample):
    images: torch.Tensor
    input_ids: torch.Tensor
    labels: torch.Tensor
    cu_seqlens: torch.Tensor

class Packed(DefaultTaskEncoder):
    decoder = SampleDecoder(operations=(RandomResizedCrop((160, 160)),))
    tokenizer = Words()

    @stateless
    def encode_sample(self, sample):
        ids = torch.tensor([1, 1, 1, 1, *self.tokenizer.encode(sample.caption)])
        return Encoded.derive_from(
            sample, image=sample.image, input_ids=ids, labels=torch.where(ids < 3, -100, ids)
        )

    def select_samples_to_pack(self, samples):
        return [samples[first : first + 4] for first in range(0, len(samples), 4)]

    @stateless
    def pack_selected_samples(self, samples):
        lengths = torch.tensor([0, *(len(sample.input_ids) for sample in samples)])
        return Pack.derive_from(
            samples[0],
            images=torch.stack([sample.image for sample in samples]),
            input_ids=torch.cat([sample.input_ids for sample in samples]),
            labels=torch.cat([sample.labels for sample in samples]),
            cu_seqlens=lengths.cumsum(0),
        )
'''


def write_videos(folder: Path) -> None:
    """Writes and prepares a dataset of 24 short videos of the demo's photographs."""
    scenes = demo_data._photographs()
    folder.mkdir()
    sizes = ((320, 180), (180, 320), (240, 240))
    writer = webdataset.TarWriter(str(folder / "clips-000.tar"), mtime=0)
    for number in range(24):
        scene = scenes[number % len(scenes)]
        demo_data.VIDEO_WIDTH, demo_data.VIDEO_HEIGHT = sizes[number % 3]
        demo_data.VIDEO_FRAMES = 25 + 5 * (number % 7)
        facts = {"caption": scene.caption, "source": {"number": number, "camera": "zoom"}}
        writer.write(
            {
                "__key__": f"clip-{number:03d}",
                "mp4": demo_data._encoded_video(scene.image),
                "json": json.dumps(facts).encode(),
            }
        )
    writer.close()
    quiet = ("--non-interactive", "--no-progress")
    run("prepare", str(folder), *quiet, "--split-ratio=1,0,0", "--sample-type=CrudeWebdataset")


def damage(folder: Path) -> None:
    """Overwrites the middle of some images of a dataset, so that they no longer decode."""
    from energon_dali.view.dataset import FolderDataset

    dataset = FolderDataset(str(folder))
    for index in (17, 60, 61, 130):
        sample = dataset.sample(index)
        part = sample.parts[0]
        with (folder / sample.shard).open("r+b") as shard:
            shard.seek(part.offset)
            shard.write(bytes(min(40, part.size)))


def write_run(folder: Path) -> dict[str, object]:
    """Trains nothing on the captions for 12 steps on two ranks; returns the options that show this run."""

    class Encoder(ed.DefaultTaskEncoder[object, object, object, object]):
        decoder = None

        @ed.stateless(failure_tolerance=0)
        def encode_sample(self, sample: ed.Sample) -> ed.Sample:
            if sample.__key__.endswith("7"):
                raise ed.SkipSample
            return sample

    (folder / "states").mkdir()
    for rank in range(2):
        config = ed.WorkerConfig(rank=rank, world_size=2, num_workers=0)
        dataset = ed.get_train_dataset(
            folder / "captions", worker_config=config, batch_size=5, global_batch_size=20, task_encoder=Encoder()
        )
        with ed.get_savable_loader(dataset) as loader:
            for _ in islice(iter(loader), 24):
                pass
            (folder / "states" / f"rank_{rank}.json").write_text(json.dumps(loader.save_state_rank()))
    draws = random.Random(0)
    losses = [2 + 3 * math.exp(-step / 300) + draws.gauss(0, 0.08) for step in range(1234)]
    losses[777] += 2.5
    rows = "".join(f"{step},{loss:.4f}\n" for step, loss in enumerate(losses))
    (folder / "loss.csv").write_text(f"step,loss\n{rows}")
    return {"run": (str(folder / "states"),), "loss": str(folder / "loss.csv")}


def draw_run(window: webdriver.Chrome, folder: Path) -> None:
    """Draws the pages of chosen samples and of a run."""
    with serving(folder / "captions", folder / "scans", **write_run(folder)) as server:
        draw(window, server, "/compare?a=0.8&b=0.9", "view-compare")
        draw(window, server, "/run", "view-run")
        draw(window, server, "/run/step/2", "view-step")


def run(*arguments: str) -> None:
    """Runs a command of `energon-dali`."""
    command(list(arguments), standalone_mode=False)


def draw(window: webdriver.Chrome, server: PageServer, path: str, name: str, *, dark: bool = False) -> None:
    """Opens a page and stores what it looks like as `docs/images/NAME.png`."""
    prefer_theme(window, "dark" if dark else "light")
    mark = "&" if "?" in path else "?"
    window.get(f"{server.url}{path}{mark}token={TOKEN}")
    WebDriverWait(window, 60).until(
        lambda w: w.execute_script(
            "return document.readyState == 'complete' && document.getElementById('main') != null"
        )
    )
    visible = "[...document.images].filter(image => image.getBoundingClientRect().top < innerHeight)"
    loaded = f"return {visible}.every(image => image.complete && image.naturalWidth > 0)"
    played = "return [...document.querySelectorAll('video')].every(video => video.readyState == 4)"
    WebDriverWait(window, 60).until(lambda w: w.execute_script(loaded) and w.execute_script(played))
    if "/sample/" in path and "encoded" not in path:
        WebDriverWait(window, 60).until(lambda w: w.execute_script("return document.body.dataset.facts == 'shown'"))
    image = Image.open(io.BytesIO(window.get_screenshot_as_png())).convert("RGB")
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    print(f"docs/images/{name}.png, {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


def main() -> None:
    """Makes the datasets, scans them, and draws all pages."""
    with ExitStack() as stack:
        folder = DATA  # a fixed name, because the pages show it
        folder.mkdir()
        stack.callback(shutil.rmtree, folder)
        os.environ["ENERGON_DALI_TAGS"] = str(folder / "tags")  # not those of whoever draws
        run("demo-data", str(folder))
        damage(folder / "captions")
        write_videos(folder / "videos")
        blend = [{"weight": 3, "path": "captions"}, {"weight": 1, "path": "videos"}]
        form = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        (folder / "blend.yaml").write_text(json.dumps({**form, "splits": {"train": {"blend": blend}}}, indent=1))
        (folder / "my_encoder.py").write_text(ENCODER)
        sys.path.insert(0, str(folder))
        with chromium(folder / "profile", width=WIDTH, height=HEIGHT) as window:
            with serving(folder / "blend.yaml", folder / "scans") as server:
                server.site.scan.start()
                server.site.scan.wait()
                draw(window, server, "/", "view-overview")
                draw(window, server, "/data/0?text=cat&min_width=300", "view-grid")
                draw(window, server, "/data/0", "view-grid-dark", dark=True)
                draw(window, server, "/data/0/sample/9", "view-sample")
                draw(window, server, "/data/1", "view-videos")
                draw(window, server, "/data/1/sample/2", "view-video")
                draw(window, server, "/data/0/statistics", "view-statistics")
                draw(window, server, "/data/0/failures", "view-failures")
                draw(window, server, "/mixture", "view-mixture")
                draw(window, server, "/blend?size=24", "view-blend")
            draw_run(window, folder)
            options = {"encoder": "my_encoder:Packed", "batch_size": 1, "packing_buffer_size": 8}
            with serving(folder / "captions", folder / "scans", **options) as server:
                draw(window, server, "/encoder", "view-encoder")


if __name__ == "__main__":
    main()
