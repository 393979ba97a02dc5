"""Compares the settings that `energon-dali tune` finds with the best of a full grid, on text, images and videos.

    python -m benchmarks.tuned_settings --json benchmarks/results/tuned-settings.json [--seconds 60] [--only images]

For each dataset `bench` measures the stages, `tune` chooses, and then every setting of the grid is measured, several
times in turns. The fastest of the grid by medians and the chosen one are then measured again in turns, in pairs: the
ratio is the median over the pairs, so luck in the grid favours none of them. Rates are by the clock on a machine that
does nothing else, and by CPU time (`LoaderRate.idle_samples_per_second`) where `tune` found other processes at work.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data.recipe import Recipe, make_dataset
from benchmarks.environments import ROOT
from benchmarks.machine import commit, describe_machine, describe_versions
from energon_dali import DefaultTaskEncoder, Resize, SampleDecoder, VideoClips, WorkerConfig, batch_list
from energon_dali.assembly.datasets import get_train_dataset
from energon_dali.diagnosis.bench import bench, measure_loader
from energon_dali.diagnosis.rates import Setting, usable_decoders, with_decoder
from energon_dali.diagnosis.tune import tune, worker_counts
from energon_dali.shards import prepare_dataset
from energon_dali.shards.meta.dataset_config import sample_config, write_dataset_config
from energon_dali.shards.storage import StoragePath

STREAMS = 8
CACHE = ROOT / ".cache" / "benchmarks"


class Text(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Encodes text as bytes."""

    decoder = None

    def encode_sample(self, sample: Any) -> Any:
        """Returns the sample with its bytes in place of the text."""
        sample.text = list(sample.text if isinstance(sample.text, bytes) else sample.text.encode())
        return sample


class Images(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Resizes images in the decoder."""

    decoder = SampleDecoder(image_decode="torchrgb8", operations=[Resize((224, 224))])


class Videos(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Takes a clip of 8 frames of each video."""

    decoder = SampleDecoder(av_decode=VideoClips(1, 8, size=(112, 112)))

    def batch(self, samples: list[Any]) -> Any:
        """Returns the clips and keys."""
        return {"__key__": [one.__key__ for one in samples], "video": batch_list([one.image for one in samples])}

    def encode_batch(self, batch: Any) -> Any:
        """Returns the batch as it is."""
        return batch


@dataclass(frozen=True, slots=True)
class Case:
    """One dataset, and how it is trained on."""

    recipe: Recipe
    """The data."""
    sample_type: str
    """In dataset.yaml."""
    field_map: dict[str, str]
    """In dataset.yaml."""
    encoder: Callable[[], Any]
    """Makes the task encoder."""
    batch_size: int
    """Samples per batch."""
    has_media: bool
    """Whether decoders make a difference."""


CASES = {
    "text": Case(
        Recipe(name="tuned-text", samples=20_000, style="text", distinct=1_000),
        "TextSample",
        {"text": "txt"},
        Text,
        64,
        False,
    ),
    "images": Case(
        Recipe(name="tuned-images", samples=800, style="jpeg", distinct=100),
        "ImageSample",
        {"image": "jpg"},
        Images,
        16,
        True,
    ),
    "videos": Case(
        Recipe(name="tuned-videos", samples=64, style="video", distinct=8, seconds=2, width=320, height=180),
        "ImageSample",
        {"image": "mp4"},
        Videos,
        4,
        True,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases; returns 1 if a chosen setting is below 0.95 of the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--seconds", type=float, default=60.0, help="for tune, per dataset")
    parser.add_argument("--window", type=float, default=1.0, help="seconds per measurement of the grid")
    parser.add_argument("--rounds", type=int, default=3, help="measurements per setting of the grid")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of measurements in the comparison at the end")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.tuned_settings", *(arguments or sys.argv[1:])]),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(ROOT),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "cases": {},
    }
    for name in options.only:
        report["cases"][name] = measured = run(CASES[name], options)
        print(f"{name}: {measured['chosen']} reaches {measured['ratio']:.3f} of {measured['best']}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(one["ratio"] < 0.95 for one in report["cases"].values()))


def run(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Returns what was measured on one dataset."""
    folder = prepared(case)

    def opened(setting: Setting) -> Any:
        job = WorkerConfig(rank=0, world_size=1, num_workers=setting.num_workers, num_streams=STREAMS)
        encoder = with_decoder(case.encoder(), setting.decoder)
        return get_train_dataset(str(folder), worker_config=job, batch_size=case.batch_size, task_encoder=encoder)

    decoders = usable_decoders(case.encoder().decoder) if case.has_media else ["own"]
    stages = bench(opened, [Setting(0)], seconds=options.window)
    found = tune(opened, decoders=decoders, num_streams=STREAMS, seconds=options.seconds)  # type: ignore[arg-type]
    grid = [
        Setting(count, prefetch, decoder)  # type: ignore[arg-type]
        for decoder in decoders
        for count in worker_counts(STREAMS)
        for prefetch in ((1, 2, 4) if count else (2,))
    ]

    def rate_of(setting: Setting, seconds: float) -> float:
        one = measure_loader(opened, setting, seconds)
        return one.idle_samples_per_second if found.is_estimate else one.samples_per_second

    rates: dict[Setting, list[float]] = {setting: [] for setting in grid}
    for _ in range(options.rounds):
        for setting in grid:
            rates[setting].append(rate_of(setting, options.window))
    best = max(grid, key=lambda setting: statistics.median(rates[setting]))
    pairs = []
    for number in range(options.pairs if best != found.setting else 0):
        both = [found.setting, best] if number % 2 else [best, found.setting]
        rate = {one: rate_of(one, 2 * options.window) for one in both}
        pairs.append(rate[found.setting] / rate[best])
    return {
        "stages": {one.name: round(one.samples_per_second, 1) for one in stages.stages},
        "advice": list(stages.advice),
        "chosen": str(found.setting),
        "tune": found.as_dict(),
        "best": str(best),
        "ratio": statistics.median(pairs) if pairs else 1.0,
        "pairs": [round(one, 3) for one in pairs],
        "grid": [
            {**setting.as_dict(), "samples_per_second": [round(rate, 1) for rate in rates[setting]]} for setting in grid
        ],
    }


def prepared(case: Case) -> Path:
    """Returns the folder of the dataset of a case, which is made if it is not there."""
    folder = make_dataset(case.recipe, CACHE, progress=False)
    if not (folder / ".nv-meta" / "dataset.yaml").exists():
        prepare_dataset(str(folder), split_patterns=[("train", ".*")])
        write_dataset_config(StoragePath.of(folder), sample_config(case.sample_type, case.field_map))
    return folder


if __name__ == "__main__":
    sys.exit(main())
