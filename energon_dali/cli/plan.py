"""`energon-dali plan`: shows which samples the steps of a job hold, on which rank, without reading a sample."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from energon_dali.cli.dataset_options import counting_bar, dataset_options, find_object, open_dataset
from energon_dali.cli.finite_range import FiniteRange
from energon_dali.cli.planned_loads import describe_loads, loads_as_json, plot_loads
from energon_dali.diagnosis.plan_difference import PlanComparison, PlanDifference, StepDifference
from energon_dali.diagnosis.planned_loads import plan_loads
from energon_dali.diagnosis.step_plan import PlannedBatch, PlannedSample, StepPlan, plan_steps, uncooked_encoder
from energon_dali.errors import ConfigError, EnergonDaliError
from energon_dali.loader.loader_state import merge_states
from energon_dali.loader.state_file import find_state_files, read_state_file
from energon_dali.shards.documents.content import printable, printable_lines, show_bytes

_SHOWN_STEPS = 10
"""Most steps of a difference that are shown as text; JSON has all of them."""
_SHOWN_OF_DIFFERENCE = 8
"""Most samples of a step that are shown for each side of a difference."""


class _Steps(click.ParamType[range]):
    """One step, or FIRST..LAST with both included."""

    name = "FIRST..LAST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", str(value).replace(",", "").replace("_", ""))
        if match is None:
            self.fail(f"{value!r} is not a step or a range of steps: write 1000 or 1000..1010.", param, ctx)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            self.fail(f"{value!r} ends before it begins.", param, ctx)
        return range(first, last + 1)


@click.command("plan")
@click.argument("path")
@click.option("--step", "steps", type=_Steps(), required=True, help="A step, or a range with its last step included.")
@click.option("--world-size", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks of the job.")
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="Show this rank; may be repeated.")
@click.option("--num-workers", type=click.IntRange(min=0), help="Workers per rank: gives the number of streams.")
@dataset_options
@click.option(
    "--state",
    "state_paths",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Plan on from a saved loader state: a file of all ranks, or the files (or folder) of each.",
)
@click.option(
    "--unit",
    type=click.Choice(["batch", "sample"]),
    default="batch",
    show_default=True,
    help="What a step is: sample shows the order before packing, grouping and batching.",
)
@click.option("--tokens", metavar="MODULE:NAME", help="Function from a planned sample to its number of tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--loads", is_flag=True, help="With --balance: show what each rank has to compute, and how long ranks wait."
)
@click.option("--compare", is_flag=True, help="As --loads, without balance, balanced per step, and per micro-batch.")
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --loads or --compare: draw the first step, as .png, .svg or .pdf; needs matplotlib.",
)
@click.option("--diff", metavar="OPTIONS", help="Compare with the same plan under other options, such as '--seed 1'.")
@click.option("--diff-path", metavar="PATH", help="Compare with the same plan of another path.")
@click.option(
    "--max-moved",
    metavar="SHARE",
    type=FiniteRange(0, 1),
    help="With --diff or --diff-path: the share of the samples, 0 to 1, that may move without an exit status of 1. "
    "[default: 0]",
)
@click.pass_context
def plan(
    context: click.Context,
    /,
    path: str,
    as_json: bool,
    diff: str | None,
    diff_path: str | None,
    max_moved: float | None,
    loads: bool,
    compare: bool,
    plot: Path | None,
    **given: Any,
) -> None:
    """Show which samples the steps of a job on PATH hold, on which rank, with their sizes.

    PATH is a prepared dataset, a metadataset (.yaml) or a .jsonl file. The options are those that the training run
    gives to get_train_dataset and WorkerConfig. Only indices are read.

    With --loads or --compare, the costs of ranks and micro-batches are shown in place of the samples, relative to the
    mean: of jobs with --balance, by what `energon-dali measure` stored.

    With --diff or --diff-path, two plans are compared: how many samples come at another step, are new or no
    longer come. The exit status is 0 if none does, 1 if some do, and 2 after an error.
    """
    if loads or compare or plot is not None:
        if diff is not None or diff_path is not None:
            raise click.UsageError("--loads, --compare and --plot show one plan: leave --diff and --diff-path out.")
        show_loads(path, compare=compare, plot=plot, as_json=as_json, **given)
        return
    if diff is None and diff_path is None:
        if max_moved is not None:
            raise click.UsageError("--max-moved limits a difference: give --diff or --diff-path as well.")
        first = make_plan(path, **given)
        if as_json:
            click.echo(json.dumps(as_document(first), indent=2))
        else:
            for line in describe(first):
                click.echo(line)
        return
    try:
        first = make_plan(path, **given)
        other = other_options(context, diff or "")
        second = make_plan(diff_path or other["path"], **{name: other[name] for name in given})
        difference = show_difference(PlanComparison(first, second), as_json=as_json)
    except EnergonDaliError as error:
        raise _DifferenceError(printable_lines(str(error))) from error
    context.exit(difference.changed_share > (max_moved or 0.0))


class _DifferenceError(click.ClickException):
    """An error of a comparison, whose exit status differs from that of plans that differ."""

    exit_code = 2


def show_difference(comparison: PlanComparison, *, as_json: bool) -> PlanDifference:
    """Prints a comparison of two plans, and returns its summary."""
    if not as_json:
        for line in describe_differences(comparison):
            click.echo(line)
        return comparison.summary
    steps = [difference_as_json(one) for one in comparison]
    found = comparison.summary
    summary = {**asdict(found), "kept": found.kept, "changed_share": found.changed_share}
    click.echo(json.dumps({"summary": summary, "notes": comparison.notes, "steps": steps}, indent=2))
    return found


def other_options(context: click.Context, diff: str) -> dict[str, Any]:
    """Returns the values of the command with those of `--diff` in place of its own.

    Args:
        context: Of the command.
        diff: Options, as in a shell.

    Raises:
        ConfigError: An option is unknown or invalid.
    """
    try:
        words = shlex.split(diff)
    except ValueError as error:
        raise ConfigError(f"--diff {diff!r} cannot be split into options: {error}. Close the quotation.") from error
    try:
        return dict(plan.make_context("--diff", [context.params["path"], *words], default_map=context.params).params)
    except click.ClickException as error:
        raise ConfigError(f"--diff {diff!r}: {error.format_message()}") from error


def make_plan(
    path: str,
    steps: range,
    world_size: int,
    ranks: tuple[int, ...],
    num_workers: int | None,
    state_paths: tuple[Path, ...],
    unit: Any,
    tokens: str | None,
    **dataset: Any,
) -> StepPlan:
    """Returns the plan that the options of the command describe.

    Raises:
        ConfigError: An option is invalid.
        DatasetError: The dataset cannot be read.
        StateError: A state is of another dataset, or after the steps.
    """
    opened, state = _open(path, world_size, num_workers, state_paths, dataset)
    with counting_bar("Planning", "step") as progress:
        return plan_steps(
            opened,
            steps,
            ranks=ranks or None,
            state=state,
            unit=unit,
            count_tokens=None if tokens is None else find_object(tokens, "--tokens"),
            progress=progress,
        )


def _open(
    path: str, world_size: int, num_workers: int | None, state_paths: tuple[Path, ...], dataset: dict[str, Any]
) -> tuple[Any, Any]:
    """Returns (the dataset, the state of all ranks or None) that the options of the command name."""
    # Crude samples are planned without the cookers of the training run.
    encoder = uncooked_encoder() if dataset["encoder"] is None else None
    opened = open_dataset(path, dataset, world_size=world_size, num_workers=num_workers, encoder=encoder)
    states = [state for file in find_state_files(state_paths) for state in read_state_file(file).states]
    return opened, merge_states(states) if states else None


def show_loads(
    path: str,
    steps: range,
    world_size: int,
    ranks: tuple[int, ...],
    num_workers: int | None,
    state_paths: tuple[Path, ...],
    unit: Any,
    tokens: str | None,
    *,
    compare: bool,
    plot: Path | None,
    as_json: bool,
    **dataset: Any,
) -> None:
    """Prints what the ranks have to compute in the steps that the options of the command describe.

    Raises:
        ConfigError: An option is invalid, or nothing has a cost.
        DatasetError: The dataset cannot be read.
        StateError: A state is of another dataset, or after the steps.
    """
    if tokens is not None or unit != "batch":
        raise click.UsageError("--loads, --compare and --plot show no samples: leave --unit and --tokens out.")
    if dataset["balance"] is None:
        raise click.UsageError("--loads, --compare and --plot need --balance: it says what a sample costs.")
    opened, state = _open(path, world_size, num_workers, state_paths, dataset)
    per = opened.global_batches.balance.per
    found = list(plan_loads(opened, steps, compare=compare, state=state))
    if plot is not None:
        plot_loads(found, per, plot)
    if as_json:
        click.echo(json.dumps(loads_as_json(found, per), indent=2))
        return
    for line in describe_loads(found, per, ranks):
        click.echo(line)


def describe(steps: StepPlan) -> Iterator[str]:
    """Yields lines: a heading per step, a line per batch, a line per sample."""
    step = -1
    for batch in steps:
        if batch.step != step:
            step = batch.step
            yield f"Step {step:,}"
        size = sum(sample.size_bytes for sample in batch.samples)
        tokens = _tokens(batch)
        yield (
            f"  rank {batch.rank}, stream {batch.stream}: {len(batch.samples)} samples, {show_bytes(size)}"
            f"{'' if tokens is None else f', {tokens:,} tokens'}"
        )
        for sample in batch.samples:
            yield "    " + _line(sample)
    for note in steps.notes:
        yield f"Note: {note}"


def _tokens(batch: PlannedBatch) -> int | None:
    known = [sample.num_tokens for sample in batch.samples]
    return None if None in known or not known else sum(number or 0 for number in known)


def _line(sample: PlannedSample) -> str:
    parts = ", ".join(f"{part} {show_bytes(size)}{_media(sample, part)}" for part, size in sample.part_bytes.items())
    name = sample.key or f"sample {sample.index}"
    tokens = "" if sample.num_tokens is None else f", {sample.num_tokens:,} tokens"
    where = f"{sample.dataset} {sample.shard} {name}"
    return printable(f"{where} (pass {sample.epoch}): {parts or 'size unknown'}{tokens}")


def _media(sample: PlannedSample, part: str) -> str:
    facts = asdict(sample.media[part]) if part in sample.media else {}  # type: ignore[call-overload]
    shown = []
    for prefix in ("", "video_"):
        if facts.get(f"{prefix}width"):
            shown.append(f"{facts[f'{prefix}width']} x {facts[f'{prefix}height']}")
    shown += [f"{facts[name]:.1f} s" for name in ("video_duration", "audio_duration") if facts.get(name)][:1]
    return f" ({', '.join(shown)})" if shown else ""


def as_document(steps: StepPlan) -> dict[str, Any]:
    """Returns a plan as plain values."""
    batches = [
        {
            "step": batch.step,
            "rank": batch.rank,
            "stream": batch.stream,
            "bytes": sum(sample.size_bytes for sample in batch.samples),
            "tokens": _tokens(batch),
            "samples": [sample_as_json(sample) for sample in batch.samples],
        }
        for batch in steps
    ]
    return {"steps": [steps.steps.start, steps.steps.stop], "notes": steps.notes, "batches": batches}


def sample_as_json(sample: PlannedSample) -> dict[str, Any]:
    """Returns a planned sample as plain values."""
    return {
        "dataset": sample.dataset,
        "shard": sample.shard,
        "key": sample.key,
        "index": sample.index,
        "epoch": sample.epoch,
        "bytes": sample.size_bytes if sample.part_bytes else None,
        "parts": sample.part_bytes,
        "media": {part: asdict(facts) for part, facts in sample.media.items()},  # type: ignore[call-overload]
        "tokens": sample.num_tokens,
    }


def describe_differences(comparison: PlanComparison) -> Iterator[str]:
    """Yields lines about the first steps that differ, and a summary of all."""
    differing = 0
    for one in comparison:
        if one.is_same:
            continue
        differing += 1
        if differing > _SHOWN_STEPS:
            continue
        yield (
            f"Step {one.step:,}: {len(one.only_first)} of {one.num_first} samples removed, {len(one.only_second)} of "
            f"{one.num_second} added"
        )
        for sign, samples in (("-", one.only_first), ("+", one.only_second)):
            for sample in samples[:_SHOWN_OF_DIFFERENCE]:
                yield f"  {sign} {_line(sample)}"
            if len(samples) > _SHOWN_OF_DIFFERENCE:
                yield f"  {sign} ... {len(samples) - _SHOWN_OF_DIFFERENCE} more"
    if differing > _SHOWN_STEPS:
        yield f"... {differing - _SHOWN_STEPS:,} more steps differ"
    found = comparison.summary
    yield f"{found.num_same_steps:,} of {found.num_steps:,} steps hold the same samples."
    yield f"Of {max(found.num_first, found.num_second):,} samples:"
    for count, what in (
        (found.kept, "come at the same step"),
        (found.moved, "come at another step"),
        (found.gone, "no longer come"),
        (found.new, "are new"),
    ):
        yield f"  {count:,} ({found.share_of(count):.2%}) {what}"
    if found.reordered:
        yield f"Within their steps, {found.reordered:,} of them come on another rank or at another place."


def difference_as_json(one: StepDifference) -> dict[str, Any]:
    """Returns a difference as plain values."""
    return {
        "step": one.step,
        "same": one.is_same,
        "reordered": one.reordered,
        "only_first": [sample_as_json(sample) for sample in one.only_first],
        "only_second": [sample_as_json(sample) for sample in one.only_second],
    }
