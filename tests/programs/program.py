"""Random programs: a composition of datasets and hooks, and how the run over it is interrupted and goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from energon_dali import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.datasets.base import SavableDataset
from tests.programs.encoders import DECODERS, encoder, keeps, mixed, numbered, twice, unlucky
from tests.programs.folders import PICTURES
from tests.quiet import quiet

MOST_SEGMENTS = 4


@dataclass(frozen=True)
class Node:
    """A dataset of a tree."""

    kind: str
    """Name of a function in _BUILDERS, or "leaf"."""
    options: dict[str, Any]
    members: tuple[Node, ...] = ()
    is_endless: bool = False
    """Whether no stream ends."""

    @property
    def leaves(self) -> list[Node]:
        """The datasets at the bottom."""
        return [leaf for member in self.members for leaf in member.leaves] if self.members else [self]

    def __str__(self) -> str:
        lines = [f"{self.kind} {self.options}"]
        return "\n".join(lines + [f"  {line}" for member in self.members for line in str(member).splitlines()])


@dataclass(frozen=True)
class Segment:
    """A part of a run, from one restore to the next."""

    stop: int
    """Number of the element of the job after the last one that is delivered."""
    world: int = 1
    workers: int = 0
    decoder: str = "pil"
    ending: str = "close"
    """"close", "drop" (the loader is left to the garbage collector) or "kill" (SIGKILL, in a process of its own)."""
    decode_process: bool = False
    remote: bool = False
    """Read from the object store instead of the local folder."""
    cached: bool = False
    """Keep remote shards in a shard cache."""
    workers_later: int | None = None
    """Another number of workers after half of the elements."""
    skip: tuple[int, int, str] | None = None
    """First step to leave out, step after the last, and how."""


@dataclass(frozen=True)
class Program:
    """A run and its interruptions."""

    tree: Node
    streams: int
    segments: tuple[Segment, ...]
    batch_size_later: int | None = None
    """Another batch size from the last segment on."""

    def __str__(self) -> str:
        return "\n".join(
            [str(self.tree), f"streams {self.streams}", *map(str, self.segments), str(self.batch_size_later)]
        )


# --- drawing -------------------------------------------------------------------------------------------------------


def draw_program(random: Random, *, in_process: bool = False) -> Program:
    """Returns a program.

    Args:
        random: Source of all choices.
        in_process: Leave out what needs an object store or a process other than workers, and what takes long.
    """
    streams = random.choice((1, 2, 2, 4, 6))
    if random.random() < 0.12:
        return _draw_resized(random, streams)
    tree = _draw_any_tree(random)
    while in_process and not all(leaf.options["family"] == "drawn" for leaf in tree.leaves):
        tree = _draw_any_tree(random)
    total = random.randint(20, 44)
    count = random.choice((2, 2, 3, MOST_SEGMENTS))
    stops = sorted(random.sample(range(1, total), count - 1))
    segments = [
        _draw_segment(random, stop, streams, changes_world=tree.is_endless, in_process=in_process)
        for stop in [*stops, total]
    ]
    if tree.is_endless and random.random() < 0.25:
        number = random.randrange(count)
        begin = ([0, *stops][number]) // segments[number].world
        first = begin + random.randint(0, 4)
        skip = (first, first + random.randint(1, 6), random.choice(("auto", "run")))
        segments[number] = dataclasses.replace(segments[number], skip=skip)
    return Program(tree, streams, _decoded(tree, segments))


def _decoded(tree: Node, segments: list[Segment]) -> tuple[Segment, ...]:
    """Returns the segments, with one decoder where a hook counts damaged images with one decoder and not with others.

    The rank decodes after preencode_sample and packing; workers decode before.
    """
    for leaf in tree.leaves:
        splits = any(name.startswith("Split") for name in leaf.options["hooks"])
        if splits and any(f"'{name}'" in repr(leaf.options["path"]) for name in PICTURES):
            return tuple(dataclasses.replace(segment, decoder=segments[0].decoder) for segment in segments)
    return tuple(segments)


def _draw_any_tree(random: Random) -> Node:
    return _draw_tree(random, random.choice((0, 0, 1, 1, 2)), endless=random.random() < 0.7, outermost=True)


def _draw_segment(random: Random, stop: int, streams: int, *, changes_world: bool, in_process: bool) -> Segment:
    world = random.choice([n for n in (1, 1, 2, 3, 6) if streams % n == 0]) if changes_world else 1
    counts = [0, *(n for n in (1, 2) if streams // world % n == 0)]
    remote = not in_process and random.random() < 0.25
    return Segment(
        stop,
        world,
        random.choice(counts),
        random.choice(DECODERS),
        random.choice(("close", "drop") if in_process else ("close", "drop", "kill")),
        random.random() < 0.12,
        remote,
        remote and random.random() < 0.5,
        random.choice(counts) if random.random() < 0.15 else None,
    )


def _draw_resized(random: Random, streams: int) -> Program:
    """Returns a program that goes on with batches of another size."""
    old, new = random.choice(((4, 2), (6, 3), (2, 4), (3, 6), (6, 4), (1, 3)))
    batches = random.randint(1, 3) * (new if old % new else 1)  # of each stream, and whole ones of the new size
    hooks = random.choice(((), ("EncodeTroubled",), ("EncodeTwice",), ("Split",), ("SplitTwice", "PackByLength")))
    leaf = draw_leaf(random, endless=True, hooks=hooks, batch_size=old)
    stop = batches * streams
    segments = [
        _draw_segment(random, stop, streams, changes_world=False, in_process=True),
        _draw_segment(random, stop + 12, streams, changes_world=False, in_process=True),
    ]
    return Program(leaf, streams, _decoded(leaf, segments), batch_size_later=new)


def _draw_tree(random: Random, depth: int, *, endless: bool, outermost: bool = False) -> Node:
    if depth == 0:
        leaf = draw_leaf(random, endless=endless)
        return _draw_wrapper(random, leaf, outermost=outermost) if random.random() < 0.35 else leaf
    kind = random.choice(("blend", "blend", "concat", "mix", "repeat"))
    if kind == "blend":
        members = [_draw_tree(random, depth - 1, endless=endless) for _ in range(random.choice((1, 2, 3)))]
        weights = [random.choice((0.5, 1, 2, 5)) for _ in members]
        node = Node("blend", {"weights": weights}, tuple(members), endless)
    elif kind == "mix":
        leaves = [draw_leaf(random, endless=endless, batch_size=1) for _ in range(random.choice((1, 2)))]
        options = {"weights": [random.choice((1, 2)) for _ in leaves], "size": random.choice((2, 3))}
        node = Node("mix", options, tuple(leaves), endless)
    elif kind == "concat" and not endless:
        members = [_draw_tree(random, depth - 1, endless=False) for _ in range(2)]
        node = Node("concat", {}, tuple(members))
    else:
        inner = _draw_tree(random, depth - 1, endless=False)
        repeats = None if endless else random.choice((0.5, 1.5, 2, 3))
        node = Node("repeat", {"repeats": repeats}, (inner,), endless)
    return _draw_wrapper(random, node, outermost=outermost) if random.random() < 0.5 else node


def _draw_wrapper(random: Random, node: Node, *, outermost: bool) -> Node:
    kind = random.choice(("map", "twice", "filter", "shuffle", "iter_map", "batch", "epochize", "limit"))
    if kind in ("epochize", "limit") and node.is_endless and not outermost:
        kind = "filter"  # it would end what has to go on
    options: dict[str, Any] = {
        "shuffle": {"size": random.choice((2, 5, 20)), "first": random.choice((None, 1))},
        "batch": {"size": random.choice((1, 2, 3))},
        "epochize": {"length": random.choice((6, 12, 30))},
        "limit": {"length": random.choice((6, 12, 30))},
    }.get(kind, {})
    return Node(kind, options, (node,), node.is_endless and kind != "limit")


def draw_leaf(
    random: Random, *, endless: bool, hooks: tuple[str, ...] | None = None, batch_size: int | None = None
) -> Node:
    """Returns a dataset at the bottom of a tree.

    Args:
        random: Source of all choices.
        endless: Whether it repeats.
        hooks: Names of the hooks of its task encoder; None draws them.
        batch_size: Of its batches; None draws it.
    """
    kind = random.random()
    family = "drawn" if hooks is not None or kind < 0.86 else "interleaved" if kind < 0.96 else "videos"
    own: dict[str, Any] = {"family": family, "train": endless or random.random() < 0.5, "repeat": endless}
    if family == "drawn":
        own["path"] = (
            _draw_document(random) if own["train"] else random.choice(("a", "b", "p", "aux.yaml", "join.yaml"))
        )
        own["hooks"] = _draw_hooks(random) if hooks is None else hooks
    else:
        own["path"], own["hooks"] = {"interleaved": "interleaved/mix.yaml", "videos": "videos"}[family], ()
    options: dict[str, Any] = {"batch_size": batch_size or random.choice((1, 2, 3, 4))}
    if any(name.startswith("Pack") for name in own["hooks"]) or (family == "interleaved" and random.random() < 0.5):
        options["packing_buffer_size"] = random.choice((3, 6, 12))
    if batch_size is None and random.random() < 0.3:
        options["batch_drop_last"] = True
    if own["train"]:
        options["shuffle_buffer_size"] = random.choice((None, 1, 6, 30, 100_000))
        options["max_samples_per_sequence"] = random.choice((None, 4, 7))
        options["parallel_shard_iters"] = random.choice((None, 1, 3))
        options["shuffle_over_epochs_multiplier"] = random.choice((1, 1, 1, 2, -1, None))
        if "packing_buffer_size" in options and random.random() < 0.4:
            options["packing_first_buffer_size"] = 2
    return Node("leaf", {**own, "options": options}, (), endless)


def _draw_hooks(random: Random) -> tuple[str, ...]:
    hooks = [random.choice(("", "Encode", "EncodeTroubled", "EncodeTwice", "EncodeWithLuck", "Split", "SplitTwice"))]
    grouping = random.choice(("", "", "PackPairs", "PackAndKeep", "PackByLength", "PackSeveral", "Group"))
    hooks += [grouping, random.choice(("", "", "BatchTroubled", "" if grouping == "Group" else "BatchTwice"))]
    hooks.append(random.choice(("", "EncodeBatch")))
    return tuple(filter(None, hooks))


def _draw_document(random: Random) -> Any:
    """Returns the path of a dataset, or a metadataset over several."""

    def path() -> str:
        return random.choice(("a", "a", "b", "c", "d", "p", "q", "aux.yaml", "join.yaml"))

    kind = random.choice(("path", "path", "blend", "blend", "blend_epochized"))
    if kind == "path":
        return path()

    def entry() -> dict[str, Any]:
        if random.random() < 0.2:
            return {"path": f"{kind}.yaml"}
        made: dict[str, Any] = {"path": path(), "subflavors": {"of": random.randrange(3)}}
        if not made["path"].endswith("yaml") and made["path"] not in "dq" and random.random() < 0.25:
            made["subset"] = {"range": random.choice((["0%", "50%"], ["30%", "100%"]))}
        return made

    def amount() -> dict[str, Any]:
        if kind == "blend":
            return {"weight": random.choice((0.5, 1, 3))}
        return {"repetitions": random.choice((0.4, 1, 1.5, 2))}

    return {kind: [{**entry(), **amount()} for _ in range(random.choice((1, 2, 3)))]}


# --- building ------------------------------------------------------------------------------------------------------


def job(program: Program, world: int = 1, rank: int = 0, workers: int = 0) -> WorkerConfig:
    """Returns the configuration of a rank."""
    return WorkerConfig(
        rank=rank,
        world_size=world,
        num_workers=workers,
        num_streams=program.streams,
        seed_offset=program.streams,
        global_error_handler=quiet,
    )


def build(
    node: Node,
    base: str,
    config: WorkerConfig,
    decoder: str,
    batch_size: int | None = None,
    *,
    is_outermost: bool = True,
) -> SavableDataset[Any]:
    """Returns the dataset of a tree.

    Args:
        node: The tree.
        base: Folder or URL of the datasets.
        config: Of the rank.
        decoder: Name of the decoder of all task encoders.
        batch_size: Another size of the batches of a leaf.
        is_outermost: Whether no other dataset is around it.
    """
    if node.kind == "leaf":
        return _build_leaf(node.options, base, config, decoder, batch_size)
    members = [build(member, base, config, decoder, is_outermost=False) for member in node.members]
    options = dict(node.options)
    if node.kind in ("epochize", "limit") and is_outermost:
        options["length"] //= config.world_size  # of each rank
    return _BUILDERS[node.kind](members, **options)


def _weighted(members: list[Any], weights: list[float]) -> list[tuple[Any, float]]:
    return list(zip(members, weights, strict=True))


_BUILDERS: dict[str, Callable[..., SavableDataset[Any]]] = {
    "blend": lambda members, weights: BlendDataset(*_weighted(members, weights)),
    "concat": lambda members: ConcatDataset(*members),
    "mix": lambda members, weights, size: MixBatchDataset(
        *_weighted(members, weights), batch_size=size, batch_mix_fn=mixed
    ),
    "repeat": lambda members, repeats: RepeatDataset(*members, repeats=repeats),
    "map": lambda members: MapDataset(*members, unlucky),
    "twice": lambda members: MapDataset(*members, twice),
    "filter": lambda members: FilterDataset(*members, filter_fn=keeps),
    "shuffle": lambda members, size, first: ShuffleBufferDataset(*members, size, first=first),
    "iter_map": lambda members: IterMapDataset(*members, numbered),
    "batch": lambda members, size: BatchDataset(*members, size, mixed),
    "epochize": lambda members, length: EpochizeDataset(*members, length),
    "limit": lambda members, length: LimitDataset(*members, length),
}


def _build_leaf(
    own: dict[str, Any], base: str, config: WorkerConfig, decoder: str, batch_size: int | None
) -> SavableDataset[Any]:
    options = {
        name: value for name, value in own["options"].items() if value is not None or name != "parallel_shard_iters"
    }
    if batch_size is not None:
        options["batch_size"] = batch_size
    path = own["path"]
    if isinstance(path, str):
        place: Any = f"{base}/{path}"
    else:
        place = {"__class__": "MetadatasetV2", "splits": {"train": _placed(path, base)}}
    common = {
        "worker_config": config,
        "task_encoder": encoder(own["family"], own["hooks"], decoder),
        "allow_imports": True,
        "split_part": "train",
        **options,
    }
    if own["train"]:
        return get_train_dataset(place, repeat=own["repeat"], **common)
    return get_val_dataset(place, **common)


def _placed(value: Any, base: str) -> Any:
    """Returns a part of a document with paths below a folder or URL."""
    if isinstance(value, list):
        return [_placed(member, base) for member in value]
    if isinstance(value, dict):
        return {name: f"{base}/{inner}" if name == "path" else _placed(inner, base) for name, inner in value.items()}
    return value
