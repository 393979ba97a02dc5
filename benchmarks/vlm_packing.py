"""`python -m benchmarks.vlm_packing`: padding of images with captions, padded and packed, and what packs decode.

It reads an epoch of the demo's dataset with the published configuration of each family, and counts what reaches the
decoder. Text is counted in bytes, as no tokenizer is downloaded. With --page, the table of docs/vlm.md is rewritten.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.demo.dataset import CAPTIONS, own_dataset
from benchmarks.machine import commit, describe_machine, describe_versions
from energon_dali import (
    FrontEnd,
    MediaHandle,
    SampleDecoder,
    SequencePacker,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.decode import Outcome

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"(<!-- vlm packing -->\n).*?(?=<!-- end of vlm packing -->)", re.DOTALL)
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen2-VL": ({"image_processor_type": "Qwen2VLImageProcessor"}, 4096),
    "InternVL": (
        {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": 448, "width": 448},
            "crop_to_patches": True,
            "max_patches": 12,
        },
        8192,
    ),
    "LLaVA-OneVision": ({"image_processor_type": "LlavaOnevisionImageProcessor"}, 8192),
}
"""Configuration of the image processor, and tokens of a row."""
BUFFER, BATCH = 200, 8


class CountingDecoder(SampleDecoder):
    """Counts what it decodes."""

    counts: dict[str, int]

    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        for handle in handles:
            self.counts["images"] += 1
            self.counts["bytes"] += len(handle.data)
            self.counts["pixels"] += handle.width * handle.height
        return super().submit_block(handles)


class Counted(TaskEncoder[Any, Any, Any, Any]):
    """Samples that are as long as their image and their caption in bytes."""

    def __init__(self, front_end: FrontEnd, row_length: int) -> None:
        self.decoder: CountingDecoder = CountingDecoder(front_end=front_end)
        self.decoder.counts = {"images": 0, "bytes": 0, "pixels": 0}
        self.packer = SequencePacker(row_length)
        self.first_pack = 0

    @stateless
    def preencode_sample(self, sample: Any) -> dict[str, Any]:
        tokens = sample.image.num_tokens + len(sample.caption.encode())
        encoded = len(sample.image.data)
        return {
            "__key__": sample.__key__,
            "__restore_key__": sample.__restore_key__,
            "length": tokens,
            "encoded": encoded,
            "image": sample.image,
        }

    @stateless
    def postencode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        rendered = sample["image"].values
        return {**sample, "image": None, "rendered": rendered.numel() * rendered.element_size()}

    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        return self.packer(samples)

    @stateless
    def pack_selected_samples(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        self.first_pack = self.first_pack or self.decoder.counts["images"]
        return {"samples": samples}

    def batch(self, samples: list[Any]) -> Any:
        return samples


def measure(family: str, data: str, samples: int) -> dict[str, Any]:
    """Returns the figures of a family over one epoch.

    Args:
        family: Key of `FAMILIES`.
        data: The dataset.
        samples: Samples to read, for quick runs.
    """
    values, row_length = FAMILIES[family]
    front_end = replace(FrontEnd.from_processor(values), resampling="torch")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=_quiet)
    encoder = Counted(front_end, row_length)
    dataset = get_train_dataset(
        data,
        worker_config=config,
        task_encoder=encoder,
        batch_size=None,
        packing_buffer_size=BUFFER,
        shuffle_buffer_size=1000,
        repeat=False,
    )
    packs: list[list[dict[str, Any]]] = []
    with get_loader(dataset) as loader:
        for pack in loader:
            packs.append(pack["samples"])
            if sum(map(len, packs)) >= samples:
                break
        refused = loader.stats().counts.get("failed.select_samples_to_pack", 0)
    used = [sample for pack in packs for sample in pack]
    lengths = [sample["length"] for sample in sorted(used, key=lambda sample: str(sample["__key__"]))]
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist()
    batches = [[lengths[index] for index in order[at : at + BATCH]] for at in range(0, len(order), BATCH)]
    padded = sum(max(batch) * len(batch) for batch in batches)
    counts, tokens = encoder.decoder.counts, sum(lengths)
    return {
        "row_length": row_length,
        "samples": len(used),
        "refused": refused,
        "median_tokens": statistics.median(lengths),
        "most_tokens": max(lengths),
        "padding_padded": 1 - tokens / padded,
        "padding_packed": 1 - tokens / (len(packs) * row_length),
        "images_decoded": counts["images"],
        "bytes_decoded_per_token": counts["bytes"] / tokens,
        "pixels_decoded_per_token": counts["pixels"] / tokens,
        "images_decoded_for_first_pack": encoder.first_pack,
        "buffer_encoded_mib": BUFFER * statistics.mean(sample["encoded"] for sample in used) / 2**20,
        "buffer_rendered_mib": BUFFER * statistics.mean(sample["rendered"] for sample in used) / 2**20,
    }


def _quiet(*_: Any) -> None:
    """Logs nothing; what is refused is counted."""


def table(families: dict[str, dict[str, Any]]) -> str:
    """Returns the results as a table in Markdown."""
    lines = [
        "| | tokens per sample, median (most) | row | padding, batches of 8 | padding, packed | "
        "encoded bytes decoded per packed token | pixels decoded per packed token | "
        "images decoded for the first pack | buffer of 200 samples, encoded (rendered) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, of in families.items():
        lines.append(
            f"| {name} | {of['median_tokens']:,.0f} ({of['most_tokens']:,}) | {of['row_length']:,} | "
            f"{of['padding_padded']:.1%} | {of['padding_packed']:.1%} | {of['bytes_decoded_per_token']:.0f} | "
            f"{of['pixels_decoded_per_token']:.0f} | {of['images_decoded_for_first_pack']} | "
            f"{of['buffer_encoded_mib']:.0f} MiB ({of['buffer_rendered_mib']:,.0f} MiB) |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vlm_packing", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the demo's dataset is, or is made")
    parser.add_argument("--samples", type=int, default=CAPTIONS.samples, help="samples of each family at most")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/vlm-packing.json")
    parser.add_argument("--page", type=Path, help="page whose table is rewritten, such as docs/vlm.md")
    options = parser.parse_args(arguments)
    dataset = own_dataset(options.folder)
    families = {name: measure(name, dataset.path, options.samples) for name in FAMILIES}
    report = {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": commit(ROOT),
        "dataset": dataset.origin,
        "families": families,
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.page is not None:
        page = options.page.read_text()
        options.page.write_text(MARK.sub(lambda mark: mark[1] + "\n" + table(families) + "\n", page))
    print(table(families), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
