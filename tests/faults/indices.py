"""Mutated indices and documents of a dataset: either an error of ours, or everything that is read is right."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from energon_dali import (
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    prepare_metadataset,
    stateless,
)
from energon_dali.shards import prepare_dataset, prepare_jsonl
from tests.decode.mutations import mutate
from tests.faults.campaign import Campaign, Case, Lost, Outcome, refused_by_us
from tests.quiet import quiet
from tests.shards.tars import write_tar

HEADER = struct.Struct("<8s40sQQQ32s24x")
LINE = struct.Struct("<8Q")
HUGE = (0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def mutate_extents(data: bytes, random: Random) -> bytes:
    """Returns an `extents.bin` with changed numbers or columns, and matching checksums."""
    content = bytearray(data)
    if random.random() < 0.2:
        return mutate(data, random)
    _, _, shards, table, _, _ = HEADER.unpack_from(content)
    for shard in range(shards):
        line = list(LINE.unpack_from(content, table + shard * LINE.size))
        if random.random() < 0.5:
            number = random.choice((1, 2, 3, 4, 5))
            line[number] = random.choice((*HUGE, line[number] + 1, max(0, line[number] - 1), line[number] * 8))
        else:
            for _ in range(random.choice((1, 2, 8))):
                at = line[0] + random.randrange(max(1, line[1] + line[2]))
                if at < len(content):
                    content[at] = random.choice((0, 1, 127, 128, 255, content[at] ^ 1))
        section = bytes(content[line[0] : line[0] + line[1] + line[2]]) if max(line[:3]) < 2**40 else b""
        line[6] = zlib.crc32(section)
        LINE.pack_into(content, table + shard * LINE.size, *line)
    return bytes(content)


ALIASES = "\n".join(
    f"{name}: &{name} [{', '.join([inner] * 8)}]" for name, inner in (("a", "x"), ("b", "*a"), ("c", "*b"), ("d", "*c"))
)
POISON = (
    "[" * 50_000,
    "{" * 50_000,
    "- " * 3_000,
    '{"a":' * 20_000,
    "1e400",
    "9" * 6_000,
    "&a [*a]",
    ALIASES,
    "<<: {a: b}",
    "!!python/name:os.system",
    "{0..99999999}",
    "{a,b}" * 40,
    "../../../etc/passwd",
    "/dev/zero",
    "\x00",
    "\ufeff",
    "null",
    "[x]",
    "{x: y}",
    "true",
    "-1",
    "0",
    "\u202e",
    "'",
)


def mutate_text(data: bytes, random: Random) -> bytes:
    """Returns a YAML or JSON file with something that its reader does not expect."""
    text = data.decode()
    poison = random.choice(POISON)
    change = random.random()
    if change < 0.2:
        return mutate(data, random)
    if change < 0.35:
        return random.choice((poison.encode(), b"", b"\xff\xfe" + data, data * 2, data[:-1] + b"\xff"))
    tokens = [at for at, letter in enumerate(text) if letter in ":,[{ \n"]
    at = random.choice(tokens) + 1 if tokens else 0
    end = at
    while end < len(text) and text[end] not in ",]}\n":
        end += 1
    return (text[:at] + " " + poison + text[end if change < 0.8 else at :]).encode("utf-8", "replace")


def mutate_sqlite(path: Path, random: Random) -> None:
    """Changes the tables of a database, or its bytes."""
    if random.random() < 0.4:
        path.write_bytes(mutate_anywhere(path.read_bytes(), random))
        return
    with sqlite3.connect(path) as database:
        tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        tables = [table for table in tables if not table.startswith("sqlite_")]
        table = random.choice(tables)
        columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
        column = random.choice(columns)
        change = random.random()
        if change < 0.6:
            value = random.choice((None, "text", b"\xff\x00", -1, 2**62, 1.5, "x" * 100_000, ""))
            database.execute(f"update or ignore {table} set {column} = ? where rowid % 3 = 0", (value,))
        elif change < 0.7:
            database.execute(f"delete from {table} where rowid % 2")
        elif change < 0.8:
            database.execute(f"drop table {table}")
        elif change < 0.9:
            database.execute(f"alter table {table} rename column {column} to other")
        else:
            database.execute(f"alter table {table} rename to moved")
            rows = ", ".join(f"randomblob(10) as {name}" for name in columns)
            database.execute(
                f"create view {table} as with recursive n(i) as (select 1 union all select i + 1 from n) "
                f"select {rows} from n"
            )
    database.close()


def mutate_anywhere(data: bytes, random: Random) -> bytes:
    """Returns a file with a few changed bytes anywhere, or cut off."""
    content = bytearray(data)
    if random.random() < 0.2:
        return bytes(content[: random.randrange(len(content))])
    for _ in range(random.choice((1, 4, 32))):
        content[random.randrange(len(content))] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
    return bytes(content)


def at_random(change: Callable[[bytes, Random], bytes]) -> Callable[[Path, Random], None]:
    """Returns a function that changes a file in place."""
    return lambda path, random: path.write_bytes(change(path.read_bytes(), random)) and None


TARGETS: dict[str, tuple[tuple[str, ...], Callable[[Path, Random], None]]] = {
    "set/.nv-meta/extents.bin": ((), at_random(mutate_extents)),
    "set/.nv-meta/index.sqlite": (("set/.nv-meta/extents.bin",), mutate_sqlite),
    "set/a.tar.idx": (("set/.nv-meta/extents.bin", "set/.nv-meta/index.sqlite"), at_random(mutate_anywhere)),
    "set/.nv-meta/.info.json": ((), at_random(mutate_text)),
    "set/.nv-meta/split.yaml": ((), at_random(mutate_text)),
    "set/.nv-meta/dataset.yaml": ((), at_random(mutate_text)),
    "set/.nv-meta/index.uuid": ((), at_random(mutate_anywhere)),
    "lines.jsonl.idx": ((), at_random(mutate_anywhere)),
    "lines.jsonl": ((), at_random(mutate_text)),
    "mix.yaml": ((), at_random(mutate_text)),
    "join.yaml": ((), at_random(mutate_text)),
    "join index": ((), at_random(mutate_anywhere)),
}
"""File -> (files that would be used instead and are removed, how it is changed)."""


def build(base: Path) -> None:
    """Creates a dataset, a JSONL file, a blend and a join."""
    for name, keys, kind, field in (
        ("set", range(9), "TextSample", "text"),
        ("other", range(3, 12), "ImageSample", "image"),
    ):
        for shard in "ab":
            members = {f"k{n}.txt": f"{name} {n}".encode() for n in keys if n % 2 == "ab".index(shard)}
            write_tar(base / name / f"{shard}.tar", members)
        prepare_dataset(base / name)
        (base / name / ".nv-meta" / "dataset.yaml").write_text(
            f"sample_type: {{__module__: megatron.energon, __class__: {kind}}}\n"
            f"field_map: {{{field}: txt}}\nsubflavors: {{a: 1}}\n"
        )
    (base / "lines.jsonl").write_text("".join(f'{{"txt": "line {n}", "n": [{n}]}}\n' for n in range(7)))
    prepare_jsonl(str(base / "lines.jsonl"))
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
    (base / "mix.yaml").write_text(
        head + "    blend:\n    - {path: set, weight: 2, subflavors: {x: y}}\n"
        "    - {path: other, weight: 1, subset: {range: [0%, 50%]}}\n"
    )
    (base / "join.yaml").write_text(
        head + "    join:\n    - {path: set}\n    - {path: other, nonmatch: skip}\n"
        "    joiner: {__module__: megatron.energon, __class__: OCRSample}\n"
    )
    prepare_metadataset(base / "join.yaml")


@stateless
def cook(sample: dict[str, Any]) -> TextSample:
    """Returns the sample of a line."""
    return TextSample(**basic_sample_keys(sample), text=str(sample["json"]["txt"]))


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Reads texts, of shards and of lines."""

    decoder = SampleDecoder()
    cookers = (Cooker(cook),)


def look(base: Path, name: str) -> set[str]:
    """Opens a dataset, reads up to 40 samples, and returns "key: content" of each."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1, global_error_handler=quiet)
    encoder = Encoder() if name == "lines.jsonl" else DefaultTaskEncoder()
    dataset = get_train_dataset(
        base / name,
        worker_config=config,
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=name == "mix.yaml",
        task_encoder=encoder,
    )
    with get_savable_loader(dataset) as loader:
        return {
            f"{sample.__key__}: {getattr(sample, 'text', '')} {getattr(sample, 'image', '')}"
            for sample, _ in zip(loader, range(40), strict=False)
        }


OPENED = ("set", "lines.jsonl", "mix.yaml", "join.yaml")


def prepare(folder: Path) -> Case:
    """Creates the good files; the case mutates one of them."""
    logging.disable(logging.ERROR)
    build(folder / "good")
    targets = dict(TARGETS)
    indices = [path for path in (folder / "good").rglob("*") if "join" in path.name and path.suffix != ".yaml"]
    indices = [path for path in indices if path.is_file()]
    change = targets.pop("join index")
    targets |= {str(path.relative_to(folder / "good")): change for path in indices}
    names = list(targets)
    whole = {name: look(folder / "good", name) for name in OPENED}
    assert all(whole.values()), whole
    whole["mix.yaml"] = whole["set"] | look(folder / "good", "other")

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        name = names[number % len(names)]
        base = scratch / "data"
        shutil.copytree(folder / "good", base)
        others, change = targets[name]
        for other in others:
            (base / other).unlink()
        change(base / name, random)
        refused = False
        for opened in OPENED:
            found: set[str] = set()
            error = refused_by_us(lambda opened=opened, found=found: found.update(look(base, opened)), name)
            refused |= error is not None
            if error is not None and len(str(error)) > LONGEST_MESSAGE:
                raise Lost(f"{name}: the message of {opened} has {len(str(error))} letters: {str(error)[:300]}")
            wrong = found - whole[opened]
            if wrong and name != "lines.jsonl" and (opened == "set" or not name.endswith("yaml")):
                raise Lost(f"{name}: {opened} gave other contents: {wrong}")
        return Outcome(survived=int(not refused), refused=int(refused))

    return case


LONGEST_MESSAGE = 3_000
INDICES = Campaign("mutated indices and documents", 1_000, prepare, timeout_seconds=60, cases_per_child=100)
