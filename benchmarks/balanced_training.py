"""Steps per second of four ranks that wait for each other, balanced and not: `python -m benchmarks.balanced_training`.

Four gloo processes load samples and *sleep* instead of computing, for as long as a law says that is not the cost by
which the samples are dealt, with noise. All ranks wait for each other after the vision encoder, and after the language
model: once per step, or at each micro-batch. The ways to load take turns in the same processes. Writes
benchmarks/results/balanced-training.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import energon_dali as ed
from benchmarks.balance_mixture import draw_measures
from benchmarks.machine import commit, describe_machine, describe_versions
from energon_dali.assembly.measuring import measure_datasets
from energon_dali.plan.balance import PER, Per
from energon_dali.plan.costs import Cost, terms_of
from energon_dali.plan.rng import Int64Array
from tests.loader.dataset_folder import prepare, write_shards

COMMAND = "python -m benchmarks.balanced_training"
ROOT = Path(__file__).resolve().parent.parent
RANKS, MICRO_BATCHES, SAMPLES_PER_MICRO_BATCH = 4, 4, 4
SAMPLES = 20_000
COLUMNS = ("tokens", "vision_patches", "vision_squares")
COST = ed.TransformerCost(4096, 32, vision_hidden_size=1280, vision_layers=32)
NOISE = 0.05
WARM_UP = 5
"""First steps, which are not counted: processes start and queues fill."""


class Measured(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Reads the sizes of a sample from its text."""

    decoder = None

    def measure_sample(self, sample: Any) -> dict[str, int]:
        tokens, patches, squares = map(int, sample.text.split())
        vision = min(tokens, patches // 4)
        return {
            "text_tokens": tokens - vision,
            "vision_tokens": vision,
            "vision_patches": patches,
            "vision_squares": squares,
        }

    def batch(self, samples: list[Any]) -> Batch:
        return Batch(np.array([list(map(int, sample.text.split())) for sample in samples], np.int64))


@dataclass
class Batch:
    """Sizes of the samples of a micro-batch: int64[n, 3], in the order of `COLUMNS`."""

    sizes: Int64Array


def seconds_of(sizes: Int64Array, random: np.random.Generator) -> tuple[float, float]:
    """Returns how long a micro-batch takes the vision encoder and the language model.

    The law has other exponents than the cost, which is quadratic, a constant per micro-batch, and noise.
    """
    tokens, patches, _ = sizes.T.astype(float)
    vision = 1e-7 * (patches**1.15).sum()
    language = 1e-7 * (tokens**1.3).sum() + 1e-3
    noise = np.exp(NOISE * random.standard_normal(2))
    return float(vision * noise[0]), float(language * noise[1])


def write_dataset(folder: Path) -> Path:
    """Writes a dataset whose texts are the sizes of samples of the mixture, and measures it."""
    measures = draw_measures(np.random.default_rng(0), SAMPLES)
    rows = zip(*(measures[name].tolist() for name in COLUMNS), strict=True)
    texts = {f"{number:06d}": {"txt": " ".join(map(str, row)).encode()} for number, row in enumerate(rows)}
    prepare(write_shards(folder, texts, 16), {"text": "txt"}, "TextSample")
    for _ in measure_datasets(str(folder), Measured()):
        pass
    return folder


def open_loader(folder: str, rank: int, balance: ed.Balance | None, *, streams: bool, per_step: int) -> Any:
    """Returns the loader of a rank.

    Args:
        folder: The dataset.
        rank: The rank.
        balance: How global batches are dealt; None deals them in their random order.
        streams: Whether each rank loads streams of its own instead of its part of global batches.
        per_step: Samples of a step of all ranks.
    """
    options: dict[str, Any] = {} if streams else {"global_batch_size": per_step, "balance": balance}
    dataset = ed.get_train_dataset(
        folder,
        worker_config=ed.WorkerConfig(
            rank=rank, world_size=RANKS, num_workers=0, num_streams=RANKS if streams else None
        ),
        batch_size=SAMPLES_PER_MICRO_BATCH,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=Measured(),
        **options,
    )
    return ed.get_savable_loader(dataset)


def train(loader: Any, per: Per, steps: int, rank: int) -> Iterator[tuple[float, Int64Array, float, int]]:
    """Yields (seconds, sums of terms per barrier, seconds of sleep, tokens) of each step of a rank."""
    random = np.random.default_rng(rank)
    batches = iter(loader)
    for _ in range(steps):
        start = time.perf_counter()
        sizes, slept = [], 0.0
        waiting = []
        for _ in range(MICRO_BATCHES):
            batch = next(batches)
            sizes.append(batch.sizes)
            waiting.append(seconds_of(batch.sizes, random))
            if per == "micro_batch" or len(waiting) == MICRO_BATCHES:
                for network in range(2):
                    seconds = sum(one[network] for one in waiting)
                    time.sleep(seconds)
                    slept += seconds
                    dist.barrier()
                waiting = []
        terms = np.stack([terms_of(dict(zip(COLUMNS, one.T, strict=True))).sum(0) for one in sizes])
        terms = terms.sum(0)[None] if per == "step" else terms
        yield time.perf_counter() - start, terms, slept, int(sum(one[:, 0].sum() for one in sizes))


def run_rank(rank: int, folder: str, store: str, steps: int, repetitions: int, results: Any) -> None:
    """Body of a process: trains with all ways to load, in turn."""
    warnings.simplefilter("ignore", UserWarning)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    rows: list[dict[str, Any]] = []
    for per in PER:
        fitted: Cost | None = None
        for repetition in range(repetitions):
            ways: dict[str, Any] = {
                "global batches, dealt at random": None,
                "streams": "streams",
                "balanced by TransformerCost": ed.Balance(COST, per=per),
            }
            if fitted is not None:
                ways["balanced by fit_cost"] = ed.Balance(fitted, per=per)
            order = list(ways)[:: 1 if repetition % 2 else -1]
            for name in order:
                way = ways[name]
                streams = way == "streams"
                per_step = RANKS * MICRO_BATCHES * SAMPLES_PER_MICRO_BATCH
                balance = None if streams else way
                with open_loader(folder, rank, balance, streams=streams, per_step=per_step) as loader:
                    measured = list(train(loader, per, steps + WARM_UP, rank))[WARM_UP:]
                everyone: list[Any] = [None] * RANKS
                dist.all_gather_object(everyone, measured)
                if way is None and fitted is None:
                    terms = np.array([[one[1] for one in of_rank] for of_rank in everyone]).transpose(1, 2, 0, 3)
                    seconds = np.array([max(of_rank[step][0] for of_rank in everyone) for step in range(steps)])
                    fitted = ed.fit_cost(terms, seconds)
                elapsed = sum(one[0] for one in measured)
                busy = sum(one[2] for of_rank in everyone for one in of_rank) / RANKS
                tokens = sum(one[3] for of_rank in everyone for one in of_rank)
                rows.append(
                    {
                        "per": per,
                        "way": name,
                        "repetition": repetition,
                        "steps_per_second": steps / elapsed,
                        "tokens_per_second": tokens / elapsed,
                        "busy_share": busy / elapsed,
                        "cost": repr(way.cost) if isinstance(way, ed.Balance) else "",
                    }
                )
    dist.barrier()
    dist.destroy_process_group()
    if not rank:
        results.put(rows)


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the median of each way, next to dealing at random in the same repetition."""
    found = []
    for per in PER:
        base = {row["repetition"]: row for row in rows if row["per"] == per and "random" in row["way"]}
        for way in dict.fromkeys(row["way"] for row in rows if row["per"] == per):
            own = [row for row in rows if (row["per"], row["way"]) == (per, way)]
            ratios = [row["steps_per_second"] / base[row["repetition"]]["steps_per_second"] for row in own]
            found.append(
                {
                    "per": per,
                    "way": way,
                    "steps_per_second": round(statistics.median(row["steps_per_second"] for row in own), 3),
                    "tokens_per_second": round(statistics.median(row["tokens_per_second"] for row in own)),
                    "busy_share": round(statistics.median(row["busy_share"] for row in own), 4),
                    "to_random": round(statistics.median(ratios), 3),
                    "lowest_to_random": round(min(ratios), 3),
                    "highest_to_random": round(max(ratios), 3),
                }
            )
    return found


def main() -> None:
    """Trains, prints the medians, and writes all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steps of a run (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="runs of each way (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/balanced-training.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "mixture")
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        given = (str(dataset), f"{folder}/store", options.steps, options.repetitions, results)
        ranks = [context.Process(target=run_rank, args=(rank, *given)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        rows = results.get()
        for process in ranks:
            process.join()
    summary = summarise(rows)
    document = {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": commit(ROOT),
        "command": f"{COMMAND} --steps {options.steps} --repetitions {options.repetitions}",
        "summary": summary,
        "runs": rows,
    }
    for row in summary:
        print(
            f"waits per {row['per']:11}, {row['way']:32}: {row['steps_per_second']:6.2f} steps/s, "
            f"{row['to_random']:.2f} of random ({row['lowest_to_random']:.2f} to {row['highest_to_random']:.2f}), "
            f"ranks compute {row['busy_share']:.0%} of the time"
        )
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
