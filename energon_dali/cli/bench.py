"""`energon-dali bench` and `energon-dali tune`: how fast a dataset is on this machine, and with which settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from energon_dali.cli.dataset_options import dataset_options, find_encoder, open_dataset
from energon_dali.cli.finite_range import FiniteRange
from energon_dali.shards.documents.content import show_bytes

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.diagnosis.bench import BenchResult
    from energon_dali.diagnosis.rates import LoaderRate, Setting, StageRate
    from energon_dali.diagnosis.tune import TuneResult

_WORKERS = click.IntRange(min=0)
_DECODER = click.Choice(["own", "pil", "dali-cpu", "dali-gpu"])
_DECODER_HELP = "A decoder to measure; may be repeated. own is the encoder's. [default: all that can run here]"


@click.command("bench")
@click.argument("path")
@click.option("--num-workers", "workers", type=_WORKERS, multiple=True, help="May be repeated. [default: 0, 1, 2, ...]")
@click.option("--decoder", "decoders", type=_DECODER, multiple=True, help=_DECODER_HELP)
@click.option(
    "--prefetch-factor", type=click.IntRange(min=1, max=10_000), default=2, show_default=True, help="As in get_loader."
)
@click.option(
    "--seconds", type=FiniteRange(min=0.1, max=86_400), default=3.0, show_default=True, help="Per measurement."
)
@dataset_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end, and nothing else.")
def bench(
    path: str,
    workers: tuple[int, ...],
    decoders: tuple[Any, ...],
    prefetch_factor: int,
    seconds: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure the dataset at PATH on this machine: reading, decoding and hooks alone, and the whole loader.

    Give the options of the training run, its task encoder among them (--encoder). The order of samples is fixed by
    --num-streams (default 8), so all settings load the same batches.
    """
    from energon_dali.diagnosis import bench as benching
    from energon_dali.diagnosis.rates import Setting
    from energon_dali.diagnosis.tune import worker_counts

    job = _Job(path, given)
    counts = workers or tuple(worker_counts(job.num_streams))
    settings = [Setting(count, prefetch_factor, name) for name in decoders or job.decoders() for count in counts]
    tokens = job.mean_tokens()
    tell = None if as_json else lambda one: click.echo(_line(one, tokens))
    with _Progress() as progress:
        result = benching.bench(
            job.open, settings, seconds=seconds, report=progress.before(tell), progress=progress.show
        )
    if as_json:
        click.echo(json.dumps(as_document(result, tokens), indent=2))
        return
    for sentence in result.advice:
        click.echo(sentence)


@click.command("tune")
@click.argument("path")
@click.option("--decoder", "decoders", type=_DECODER, multiple=True, help=_DECODER_HELP)
@click.option("--seconds", type=FiniteRange(min=5, max=86_400), default=60.0, show_default=True, help="About how long.")
@click.option("--most-workers", type=_WORKERS, help="Most workers to try. [default: twice the number of cores]")
@dataset_options
@click.option("--write", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the result as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
def tune(
    path: str,
    decoders: tuple[Any, ...],
    seconds: float,
    most_workers: int | None,
    out: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the number of workers, the prefetch and the decoder that deliver the dataset at PATH fastest.

    Give the options of the training run, its task encoder among them (--encoder). The order of samples is fixed by
    --num-streams (default 8), so the settings that are found change no batch.
    """
    from energon_dali.diagnosis import tune as tuning

    job = _Job(path, given)
    with _Progress() as progress:
        result = tuning.tune(
            job.open,
            decoders=decoders or tuple(job.decoders()),
            num_streams=job.num_streams,
            seconds=seconds,
            most_workers=most_workers,
            report=progress.before(None if as_json else lambda one: click.echo(_line(one))),
            progress=progress.show,
        )
    click.echo(json.dumps(result.as_dict(), indent=2) if as_json else describe(result))
    if out is not None:  # last: what was measured is not lost if the file cannot be written
        result.write(out)


class _Progress:
    """A line on the standard error that says what is measured now, if that is a terminal; for a `with` block."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._shows:
            click.echo(f"\r\x1b[K{text} ...", nl=False, err=True)

    def before(self, tell: Callable[[Any], None] | None) -> Callable[[Any], None]:
        """Returns a function that removes the line, and calls another if there is one."""

        def report(one: Any) -> None:
            self._remove()
            if tell is not None:
                tell(one)

        return report

    def _remove(self) -> None:
        if self._shows:
            click.echo("\r\x1b[K", nl=False, err=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()


class _Job:
    """The dataset of a command, in any setting.

    Args:
        path: The dataset, metadataset or JSONL.
        given: The values of the options that `dataset_options` added.
    """

    def __init__(self, path: str, given: dict[str, Any]) -> None:
        from energon_dali.diagnosis.rates import STREAMS_PER_RANK
        from energon_dali.task_encoder.default import DefaultTaskEncoder

        self._path = path
        self.num_streams = given["num_streams"] or STREAMS_PER_RANK
        self._given = {**given, "num_streams": self.num_streams}
        self._encoder = find_encoder(given["encoder"]) or DefaultTaskEncoder()

    def decoders(self) -> list[Any]:
        """Returns the decoders to measure; only the encoder's own where the data has no media."""
        from energon_dali.diagnosis.rates import usable_decoders

        return usable_decoders(self._encoder.decoder) if self._has_media() else ["own"]

    def _has_media(self) -> bool:
        from energon_dali.decode.part_kind import find_part_kind
        from energon_dali.diagnosis.rates import Setting
        from energon_dali.diagnosis.step_plan import plan_steps

        plan = plan_steps(self.open(Setting(0)), range(1), unit="sample")
        parts = {part.rpartition("/")[2] for batch in plan for sample in batch.samples for part in sample.part_bytes}
        return not parts or any(find_part_kind(part)[0] in ("image", "av") for part in parts)

    def mean_tokens(self) -> float | None:
        """Returns the mean length of a sample in tokens, by its measures; None without measures of all datasets."""
        from energon_dali.assembly.measures import mean_tokens
        from energon_dali.assembly.mixture import open_sources
        from energon_dali.assembly.options import DatasetOptions, SourceOptions
        from energon_dali.worker_config import WorkerConfig

        given = self._given
        training = not given["validation"]
        options = DatasetOptions(
            split_part=given["split_part"] or ("train" if training else "val"),
            encoder=self._encoder,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            source=SourceOptions(allow_imports=given["allow_imports"], allow_code=given["allow_code"]),
            training=training,
        )
        blend, sources = open_sources(self._path, options, plain=True)
        return mean_tokens(blend, sources, options)

    def open(self, setting: Setting) -> SavableDataset[Any]:
        """Opens the dataset for a setting."""
        from energon_dali.diagnosis.rates import with_decoder

        encoder = with_decoder(self._encoder, setting.decoder)
        return open_dataset(self._path, self._given, num_workers=setting.num_workers, encoder=encoder)


def _line(one: StageRate | LoaderRate, tokens: float | None = None) -> str:
    """Returns one measurement as a line.

    Args:
        one: The measurement.
        tokens: Mean length of a sample; None if it is not known.
    """
    name = one.name + " alone" if hasattr(one, "name") else str(one.setting)
    if not one.samples:
        return f"{name:44} {one.problem}"
    line = f"{name:44} {one.samples_per_second:12,.1f} samples/s"
    size = getattr(one, "size_bytes", 0)
    if size:
        line += f", {show_bytes(int(size / one.seconds))}/s"
    if hasattr(one, "first_batch_seconds"):
        if tokens is not None:
            line += f", {one.samples_per_second * tokens:,.0f} tokens/s"
        line += f", first batch {one.first_batch_seconds:.2f} s"
    return f"{line} ({one.problem})" if one.problem else line


def as_document(result: BenchResult, tokens: float | None = None) -> dict[str, Any]:
    """Returns the result of a measurement as plain values.

    Args:
        result: What was measured.
        tokens: Mean length of a sample; None if it is not known.
    """
    return {
        "stages": [
            {
                "name": stage.name,
                "samples_per_second": round(stage.samples_per_second, 1),
                "seconds_per_sample": stage.seconds_per_sample,
                "bytes_per_second": round(stage.size_bytes / stage.seconds) if stage.size_bytes else None,
                "problem": stage.problem,
            }
            for stage in result.stages
        ],
        "loaders": [
            {
                **one.setting.as_dict(),
                "samples_per_second": round(one.samples_per_second, 1),
                "tokens_per_second": None if tokens is None else round(one.samples_per_second * tokens, 1),
                "idle_samples_per_second": round(one.idle_samples_per_second, 1),
                "limited_by": None if (found := one.diagnosis()) is None else found.cause,
                "other_cores": round(one.other_cores, 2),
                "first_batch_seconds": round(one.first_batch_seconds, 3),
                "stage_seconds": one.stage_seconds,
                "problem": one.problem,
            }
            for one in result.loaders
        ],
        "advice": list(result.advice),
    }


def describe(result: TuneResult) -> str:
    """Returns the settings that were found, as lines to copy."""
    setting = result.setting
    decoder = {
        "own": "the decoder that the task encoder has",
        "pil": "SampleDecoder(...)",
        "dali-cpu": 'DaliDecoder(image_decode_device="cpu", video_decode_device="cpu", ...)',
        "dali-gpu": 'DaliDecoder(image_decode_device="gpu", video_decode_device="gpu", ...)',
    }[setting.decoder]
    rate = f"{result.samples_per_second:,.1f} samples/s measured"
    if result.is_estimate:
        estimate = f"{result.estimates[setting]:,.1f}"
        rate += f", about {estimate} estimated without the other processes that keep this machine busy"
    return "\n".join(
        (
            f"Fastest: {setting}, {rate} (in {result.seconds:.0f} s)",
            f"  WorkerConfig(..., num_workers={setting.num_workers}, num_streams={result.num_streams} * world_size)",
            f"  get_savable_loader(..., prefetch_factor={setting.prefetch_factor})",
            f"  decoder: {decoder}",
            *result.advice,
        )
    )
