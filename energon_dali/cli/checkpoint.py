"""`energon-dali checkpoint`: inspects saved loader states, and redistributes them over another number of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from energon_dali.datasets.step_entries import cursor_of
from energon_dali.datasets.stream import State
from energon_dali.errors import StateError
from energon_dali.loader.loader_state import merge_states, split_state, unpack_config
from energon_dali.loader.state_compatibility import source_config
from energon_dali.loader.state_file import StateFile, find_state_files, read_state_file, write_state_files
from energon_dali.shards.documents.content import excerpt_names

_SHOWN_DATASETS = 12

_FILES = click.Path(exists=True, path_type=Path)


@click.group()
def checkpoint() -> None:
    """Inspect and redistribute saved loader states."""


@checkpoint.command("info")
@click.argument("input_files", nargs=-1, required=True, type=_FILES)
def checkpoint_info(input_files: tuple[Path, ...]) -> None:
    """Show what the states in INPUT_FILES (or folders of them) hold, and which layouts can continue them."""
    files = [read_state_file(path) for path in find_state_files(input_files)]
    for line in describe([state for file in files for state in file.states]):
        click.echo(line)


@checkpoint.command("redist")
@click.argument("input_files", nargs=-1, required=True, type=_FILES)
@click.argument("output_path", type=click.Path(path_type=Path))
@click.option("--new-world-size", type=click.IntRange(min=1), help="Write one state per rank, for this many ranks.")
@click.option("--global", "as_global", is_flag=True, help="Write one state for all ranks; it fits every layout.")
@click.option("--force-overwrite", is_flag=True, help="Replace existing files.")
def checkpoint_redist(
    input_files: tuple[Path, ...], output_path: Path, new_world_size: int | None, as_global: bool, force_overwrite: bool
) -> None:
    """Redistribute the states in INPUT_FILES (those of all ranks, or a global one) over another number of ranks.

    The files are written into the folder OUTPUT_PATH, and are named like the input files.
    """
    if as_global == (new_world_size is not None):
        raise click.UsageError("Give either --new-world-size or --global.")
    files = [read_state_file(path) for path in find_state_files(input_files)]
    whole = merge_states([state for file in files for state in file.states])
    for line in describe_unequal(whole):
        click.echo(line, err=True)
    states = [whole] if new_world_size is None else split_state(whole, new_world_size)
    names = output_names(files, len(states), as_global=as_global)
    written = [output_path / name for name in names]
    taken = [path for path in written if path.exists()]
    if taken and not force_overwrite:
        raise StateError(f"{taken[0]} already exists. Choose another folder, or give --force-overwrite.")
    write_state_files(dict(zip(written, states, strict=True)), wrapped=files[0].wrapped)
    for path in written:
        click.echo(f"Wrote {path}")
    others = [path.name for path in find_state_files([output_path]) if path not in written]
    if others:
        click.echo(
            f"Note: {output_path} also holds {excerpt_names(others)}. Remove the files of other checkpoints: a restore "
            "from this folder would read them too.",
            err=True,
        )


def output_names(files: Sequence[StateFile], count: int, *, as_global: bool) -> list[str]:
    """Returns the names of the files to write.

    Several input names that differ in one number give the pattern; otherwise the rank follows the name.
    """
    first = files[0].path
    pattern = _numbered(sorted(file.path.name for file in files))
    if pattern is None:
        stem = first.stem.removesuffix("_global")
        head, digits, tail = f"{stem}_rank", 0, first.suffix
    else:
        head, digits, tail = pattern
    if as_global:
        return [f"{head.rstrip('_-.') or 'state'}_global{first.suffix}"]
    return [f"{head}{rank:0{digits}d}{tail}" for rank in range(count)]


def _numbered(names: Sequence[str]) -> tuple[str, int, str] | None:
    """Returns (text before, number of digits, text after) of the number in which the names differ, or None."""
    if len(set(names)) < 2:
        return None
    for match in re.finditer(r"\d+", names[0]):
        head, tail = names[0][: match.start()], names[0][match.end() :]
        numbered = re.compile(re.escape(head) + r"\d+" + re.escape(tail))
        if all(numbered.fullmatch(name) for name in names):
            return head, len(match.group()), tail
    return None


def describe(states: Sequence[State]) -> Iterator[str]:
    """Yields lines about the states of one checkpoint.

    Raises:
        StateError: The states are from different jobs, or cannot be read.
    """
    first = states[0]
    streams: dict[str, Any] = {}
    given: dict[str, int] = {}
    for state in states:
        if state["num_streams"] != first["num_streams"] or state["config"] != first["config"]:
            raise StateError("These states are from different jobs. Give the files of one checkpoint.")
        if state["world_size"] != first["world_size"]:
            sizes = sorted({state["world_size"], first["world_size"]})
            raise StateError(
                f"These states were saved by {sizes[0]} and by {sizes[1]} ranks, so they are not from one save. Give "
                "the files of one checkpoint. `checkpoint redist` does not remove files that were in its output folder."
            )
        if twice := streams.keys() & state["streams"].keys():
            raise StateError(f"Streams {_numbers(twice)} are in more than one of these states. Give each of them once.")
        streams.update(state["streams"])
        given.update(state["given"])
    total, world_size = first["num_streams"], first["world_size"]
    if "cursor" in first:
        yield from _describe_steps(states, given)
        return
    counts = [streams[number]["count"] for number in sorted(streams, key=int)]
    missing = [number for number in range(total) if str(number) not in streams]
    ended = sum(bool(stream["ended"]) for stream in streams.values())
    yield f"Saved by:  {world_size} ranks; given here: {_numbers(given)}"
    yield f"Streams:   {total}" + (f"; missing here: {_numbers(missing)}" if missing else ", all given")
    yield f"Batches:   {sum(counts):,} delivered, {min(counts):,} to {max(counts):,} per stream"
    yield "Epoch:     " + ", ".join(f"rank {rank}: {given[rank]:,} batches" for rank in sorted(given, key=int)[:8])
    if ended:
        yield f"           {ended} streams have reached the end of the epoch"
    yield from describe_unequal({"streams": streams, "given": given})
    yield "Fits:      " + ("the ranks that saved it; all of them together: " if missing else "") + fitting(total)
    yield "Dataset:"
    yield from _outline(unpack_config(first), "  ")


def _describe_steps(states: Sequence[State], given: dict[str, int]) -> Iterator[str]:
    """Yields lines about the states of a job with global batches."""
    first = states[0]
    cursors = [cursor_of(state) for state in states]
    cursor, per_step = cursors[0], first["micro_batches"]
    step_size, micro_batch = first["global_batch"]
    yield f"Saved by:  {first['world_size']} ranks; given here: {_numbers(given)}"
    begun = f", and {cursor.micro_batch} of {per_step} micro-batches of it" if cursor.micro_batch else ""
    yield f"Steps:     {cursor.step:,} delivered{begun}; the next sample is number {cursor.unit:,} of the job"
    config = unpack_config(first)
    packs = source_config(config).get("packs")
    items = "samples" if packs is None else "packs"
    yield f"Sizes:     {step_size:,} {items} per step, micro-batches of {micro_batch}"
    if packs is not None:
        length, window = f"{packs['max_length']:,} {packs['length']}", f"{packs['window']:,} samples"
        yield f"Packs:     {cursor.packs:,} delivered, of up to {length}, from windows of {window}"
    if first["balance"]:
        yield f"Balance:   {first['balance']}"
    one = cursor.weights_over[:-1]
    for change in cursor.weights:
        until = "" if change.until is None else f", which are reached at {one} {change.until:,}"
        yield f"Weights:   from {one} {change.at:,}: {' '.join(f'{weight:g}' for weight in change.weights)}{until}"
    for begin, end in cursor.skipped:
        yield f"Left out:  steps {begin:,} to {end - 1:,}"
    if any(other != cursor for other in cursors):
        yield "Note:      the ranks are at different positions. If these are files of two saves, give those of one."
    yield "Fits:      any number of ranks and workers"
    yield "Dataset:"
    yield from _outline(config, "  ")


def describe_unequal(state: State) -> Iterator[str]:
    """Yields a note if the ranks are at different positions, as in files of two saves.

    This is not an error: ranks need not step together, and a state does not say which save it belongs to.

    Args:
        state: Has "streams" and "given" of all or some ranks.
    """
    if "cursor" in state:
        return
    streams, given = state["streams"].values(), state["given"].values()
    counts = [stream["count"] for stream in streams]
    if any(stream["ended"] for stream in streams) or (max(counts) - min(counts) <= 1 and len(set(given)) <= 1):
        return
    yield (
        f"Note:      the streams have delivered {min(counts):,} to {max(counts):,} batches. Ranks that step together "
        "deliver the same number: if these are files of two saves, give those of one."
    )


def fitting(num_streams: int) -> str:
    """Returns the layouts that a number of streams can be divided among."""
    sizes = [size for size in range(1, num_streams + 1) if num_streams % size == 0]
    return "ranks x workers of " + ", ".join(map(str, sizes))


def _numbers(numbers: Any) -> str:
    listed = sorted(map(int, numbers))
    shown = ", ".join(map(str, listed[:16]))
    return shown + (", ..." if len(listed) > 16 else "")


def _outline(config: dict[str, Any], indent: str) -> Iterator[str]:
    """Yields the tree of datasets, each with its settings."""
    plain = {name: value for name, value in config.items() if name not in ("type", "inner", "source", "order", "place")}
    settings = ", ".join(f"{name}={_short(value)}" for name, value in plain.items() if value is not None)
    yield f"{indent}{config.get('type', '?')}" + (f" ({settings})" if settings else "")
    inner = config.get("inner", config.get("source", []))
    children = inner if isinstance(inner, list) else [inner]
    for child in children[:_SHOWN_DATASETS]:
        yield from _outline(child, indent + "  ")
    if len(children) > _SHOWN_DATASETS:
        yield f"{indent}  ... and {len(children) - _SHOWN_DATASETS} more"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
