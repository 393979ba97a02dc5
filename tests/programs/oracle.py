"""What a run delivers is what its plan says, less what fails: at every position, after every restore, in every layout.

The plan of a composition is asked for all rows at once. The run reads them in pieces, each of which goes on from a
state: with other ranks, other workers, and from a folder or an object store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from energon_dali import get_savable_loader
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import SourceDataset
from energon_dali.diagnosis.step_plan import PlannedBatch, StepPlan, plan_steps
from energon_dali.errors import DatasetError
from energon_dali.loader.loader_state import merge_states
from tests.programs.program import Node, Program, build, draw_leaf, job
from tests.programs.run import END, Differs, taken

WORKERS = (0, 1, 3)
_STREAMS = (1, 2, 3, 6, 12)
_BATCHES_PER_STREAM = 9
_RESTORED_ONE_BY_ONE = 24
"""Batches after each of which a run starts again."""
_PIECES = 4
_TREE_STEPS = 25
_ATTEMPTS = 20

Row = tuple[str, int, int]
"""(name of the dataset, number in it, pass)."""


@dataclass(frozen=True)
class Piece:
    """A part of a run, from one restore to the next."""

    stop: int
    """Number of the batch of the job after the last one that is delivered."""
    world: int
    workers: int
    is_remote: bool


def fails(row: Row) -> bool:
    """Returns whether a sample of `tests.programs.folders` never arrives: a cut image, or a line without a file."""
    name, number, _ = row
    if name in ("p", "q"):
        return number % 9 == 5
    return name == "lines.jsonl" and (number % 6 == 4 or number > 16)


def draw_composition(random: Random) -> Program:
    """Returns one dataset, or a blend of some, whose hooks drop nothing."""
    return Program(draw_leaf(random, endless=True, hooks=("BatchOfRows",)), random.choice(_STREAMS), ())


def draw_tree(random: Random, depth: int, *, endless: bool) -> Node:
    """Returns datasets over finished batches, none of which is ever dropped."""
    if depth == 0:
        leaf = draw_leaf(random, endless=endless, hooks=("BatchOfRows",))
        return replace(leaf, options={**leaf.options, "path": random.choice("abc")})
    kind = random.choice(("blend", "repeat") if endless else ("blend", "concat", "repeat"))
    if kind == "repeat":
        repeats = None if endless else random.choice((0.5, 1, 1.5, 2))
        return Node(kind, {"repeats": repeats}, (draw_tree(random, depth - 1, endless=False),), endless)
    count = random.choice((1, 2, 3))
    members = tuple(draw_tree(random, random.randrange(depth), endless=endless) for _ in range(count))
    weights = {"weights": [random.choice((0.5, 1, 3)) for _ in members]} if kind == "blend" else {}
    return Node(kind, weights, members, endless)


def draw_pieces(random: Random, streams: int, *, with_remote: bool) -> list[Piece]:
    """Returns a run in pieces, of which the first ones together have every number of workers that the streams allow."""
    total = streams * _BATCHES_PER_STREAM
    stops = [*sorted(random.sample(range(1, total), _PIECES - 1)), total]
    pieces = []
    for number, stop in enumerate(stops):
        fitting = [
            (world, workers)
            for world in range(1, streams + 1)
            for workers in WORKERS
            if streams % (world * max(1, workers)) == 0
        ]
        wanted = [layout for layout in fitting if layout[1] == WORKERS[number % len(WORKERS)]]
        pieces.append(Piece(stop, *random.choice(wanted or fitting), with_remote and random.random() < 0.4))
    return pieces


def planned_batches(dataset: SavableDataset[Any], count: int, batch_size: int) -> list[list[Row]]:
    """Returns the first batches of a job, in the order of the job, as the plan of its source has them.

    Args:
        dataset: The composition, whose streams never end.
        count: Number of batches.
        batch_size: Samples per batch.
    """
    source = _source_of(dataset)
    num_streams = source.worker_config.layout.num_streams
    streams = []
    for stream in range(num_streams):
        wanted = -(-count // num_streams) * batch_size
        delivered: list[Row] = []
        size = 2 * wanted
        while len(delivered) < wanted:
            rows = source.plan.rows(0, size, stream)
            delivered = [row for row in _named(source, rows.as_tuples()) if not fails(row)]
            size *= 2
        streams.append(delivered)
    return [streams[place % num_streams][place // num_streams * batch_size :][:batch_size] for place in range(count)]


def _source_of(dataset: SavableDataset[Any]) -> SourceDataset:
    while not isinstance(dataset, SourceDataset):
        (dataset,) = dataset.children
    return dataset


def _named(source: SourceDataset, rows: Any) -> list[Row]:
    return [
        (_last(source.sources[of].name), source.sources[of].reader.index_of(shard, inside), number)
        for of, shard, inside, number in rows
    ]


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def check_composition(seed: int, base: str, remote: str = "") -> str:
    """Runs a composition, and returns what it is.

    Args:
        seed: Its number.
        base: Folder of the datasets.
        remote: Their URL.

    Raises:
        Differs: It delivers something else than its plan says.
    """
    random = Random(f"composition {seed}")
    program = draw_composition(random)
    dataset = build(program.tree, base, job(program), "pil")
    total = program.streams * _BATCHES_PER_STREAM
    batch_size = program.tree.options["options"]["batch_size"]
    expected = planned_batches(dataset, total, batch_size)
    _check_query(program, dataset)
    _check_one_by_one(program, base, expected)
    _check_pieces(program, draw_pieces(random, program.streams, with_remote=bool(remote)), base, remote, expected)
    return str(program)


def check_tree(seed: int, base: str) -> str:
    """Compares the steps of a tree of datasets over batches with its plan, on every rank, and returns what it is.

    Args:
        seed: Its number.
        base: Folder of the datasets.

    Raises:
        Differs: It delivers something else than its plan says.
    """
    random = Random(f"tree {seed}")
    for _ in range(_ATTEMPTS):
        program, world = _draw_tree_program(random)
        first = random.choice((0, 0, 3, 11))
        try:
            plan = plan_steps(build(program.tree, base, job(program, world), "pil"), range(first, first + _TREE_STEPS))
        except DatasetError:  # a stream has nothing to repeat
            continue
        _check_steps(program, world, first, plan, base, random.choice((0, 1)))
        return str(program)
    raise AssertionError(f"No tree of seed {seed} can run.")


def _draw_tree_program(random: Random) -> tuple[Program, int]:
    endless = random.random() < 0.5
    tree = draw_tree(random, random.choice((1, 2, 3)), endless=endless)
    if random.random() < 0.4:
        kind = random.choice(("epochize", "limit"))
        tree = Node(kind, {"length": random.choice((12, 24, 36))}, (tree,), endless and kind == "epochize")
    streams = random.choice(_STREAMS)
    world = random.choice([number for number in range(1, streams + 1) if streams % number == 0])
    return Program(tree, streams, ()), world


def _check_steps(program: Program, world: int, first: int, plan: StepPlan, base: str, workers: int) -> None:
    planned = {(batch.rank, batch.step): _rows_of(batch) for batch in plan}
    stop = first + _TREE_STEPS
    for rank in range(world):
        dataset = build(program.tree, base, job(program, world, rank, workers), "pil")
        with get_savable_loader(dataset, start_method="fork") as loader:
            ends = not program.tree.is_endless
            found = taken(loader, 2 * stop if ends else stop, with_ends=ends, view=lambda batch: batch["rows"])
        steps = [rows for rows in found if rows != END]
        expected = [planned[rank, step] for step in range(first, stop) if (rank, step) in planned]
        _compare(program, f"rank {rank} of {world}", first, steps[first : first + len(expected)], expected)


def _rows_of(batch: PlannedBatch) -> list[Row]:
    return [(_last(sample.dataset), sample.index, sample.epoch) for sample in batch.samples]


def _check_query(program: Program, dataset: SavableDataset[Any]) -> None:
    """Compares what `energon-dali plan` says of single samples with the rows."""
    source = _source_of(dataset)
    count = program.streams * 8
    found = [row for batch in plan_steps(dataset, range(count), unit="sample") for row in _rows_of(batch)]
    by_stream = [_named(source, source.plan.rows(0, 8, stream).as_tuples()) for stream in range(program.streams)]
    _compare(program, "the query", 0, [[row] for row in found], [[rows[n]] for n in range(8) for rows in by_stream])


def _check_one_by_one(program: Program, base: str, expected: list[list[Row]]) -> None:
    """Starts again after each batch."""
    state = None
    found = []
    for _ in expected[:_RESTORED_ONE_BY_ONE]:
        with get_savable_loader(build(program.tree, base, job(program), "pil")) as loader:
            loader.restore_state_rank(state)
            found.append(next(iter(loader))["rows"])
            state = json.loads(json.dumps(loader.save_state_rank()))
    _compare(program, "one by one", 0, found, expected[: len(found)])


def _check_pieces(program: Program, pieces: list[Piece], base: str, remote: str, expected: list[list[Row]]) -> None:
    begin, state = 0, None
    for piece in pieces:
        found: dict[int, list[Row]] = {}
        states = []
        for rank in range(piece.world):
            config = job(program, piece.world, rank, piece.workers)
            own = [place for place in range(begin, piece.stop) if place % program.streams in config.streams]
            dataset = build(program.tree, remote if piece.is_remote else base, config, "pil")
            with get_savable_loader(dataset, start_method="fork") as loader:
                loader.restore_state_global(state)
                found |= zip(own, (batch["rows"] for batch in islice(loader, len(own))), strict=True)
                states.append(loader.save_state_rank())
        state = json.loads(json.dumps(merge_states(states)))
        places = range(begin, piece.stop)
        _compare(program, str(piece), begin, [found[place] for place in places], [expected[at] for at in places])
        begin = piece.stop


def _compare(program: Program, what: str, begin: int, found: list[list[Row]], expected: list[list[Row]]) -> None:
    for place, (one, other) in enumerate(zip(found, expected, strict=True), begin):
        if list(map(tuple, one)) != other:
            raise Differs(f"{what}: batch {place} holds {one}, and the plan says {other}\n{program}")
