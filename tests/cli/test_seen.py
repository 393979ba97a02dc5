"""`energon-dali seen` writes what a checkpoint has seen, and says where that is not exact."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

import energon_dali as ed
from energon_dali.cli.main import main
from energon_dali.loader.loader_state import merge_states, split_state
from tests.loader.test_global_batches import Encoder, Job, take, write_blend

BAD = frozenset({"a003", "a017", "b011", "b012"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blend(tmp_path_factory.mktemp("texts"))


def write_states(folder: Path, states: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, state in enumerate(states):
        (folder / f"state_{rank}.json").write_text(json.dumps(state))
    return folder


def run_seen(states: Path, dataset: Path, output: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["seen", str(states), "--dataset", str(dataset), "--output", str(output), *options])


def times(table: Any) -> dict[str, int]:
    return {row["key"]: row["seen"] for row in table.to_pylist() if row["seen"]}


@pytest.mark.parametrize("on_missing", ["spare", "shrink"])
def test_a_table_says_what_was_seen(folder: Path, tmp_path: Path, on_missing: str) -> None:
    job = Job(folder / "blend.yaml", 2, 24, 3, encoder=Encoder(BAD), options={"on_missing": on_missing})
    steps, states = job.run(18)
    done = run_seen(write_states(tmp_path / "states", states), folder / "blend.yaml", tmp_path / "seen.parquet")
    assert done.exit_code == 0, done.output
    table = pyarrow.parquet.read_table(tmp_path / "seen.parquet")
    assert times(table) == Counter(text.split()[0] for texts in steps.values() for text in texts)
    rows = {row["key"]: row for row in table.to_pylist()}
    assert {key for key, row in rows.items() if row["failed"]} <= BAD
    assert all(not rows[key]["seen"] for key in BAD & rows.keys())
    failed = sum(row["failed"] for row in rows.values())
    spares = sum(row["spare"] for row in rows.values())
    assert spares == (failed if on_missing == "spare" else 0)
    assert f"They were seen {sum(times(table).values()):,} times, {spares} times" in done.output
    assert f"{failed} failed" in done.output
    one = rows["a021"]
    assert (one["dataset"], one["source"], one["shard"], one["index"], one["number"]) == (
        str(folder / "a"),
        "a",
        "shard_001.tar",
        1,
        21,
    )
    assert table.schema.metadata[b"energon_dali.complete"] == b"true"
    assert table.schema.metadata[b"energon_dali.step"] == b"4"
    assert table.schema.metadata[b"energon_dali.micro_batch"] == b"2"


def test_the_order_is_that_of_the_state(folder: Path, tmp_path: Path) -> None:
    """A validation in file order, and a training over epochs."""
    dataset = ed.get_val_dataset(
        folder / "a",
        split_part="train",
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=4,
        global_batch_size=16,
        task_encoder=Encoder(),
    )
    with ed.get_savable_loader(dataset) as loader:
        keys = [text.split()[0] for batch in take(loader, 6) for text in batch.text]
        states = write_states(tmp_path / "val", [loader.save_state_rank()])
    done = run_seen(states, folder / "a", tmp_path / "val.parquet")
    assert done.exit_code == 0, done.output
    assert times(pyarrow.parquet.read_table(tmp_path / "val.parquet")) == dict.fromkeys(keys, 1)
    options = {"repeat": False, "batch_drop_last": True, "parallel_shard_iters": 3, "uneven": "ragged"}
    steps, saved = Job(folder / "a", 1, 25, 5, options={**options, "virtual_epoch_length": 2}).run(7)
    states = write_states(tmp_path / "train", saved)
    done = run_seen(states, folder / "a", tmp_path / "train.parquet", "--no-keys")
    assert done.exit_code == 0, done.output
    table = pyarrow.parquet.read_table(tmp_path / "train.parquet")
    assert "key" not in table.column_names
    found = {f"a{row['number']:03d}": row["seen"] for row in table.to_pylist()}
    assert found == Counter(text.split()[0] for texts in steps.values() for text in texts)


def test_states_on_other_ranks_are_still_exact(folder: Path, tmp_path: Path) -> None:
    first, states = Job(folder / "blend.yaml", 4, 24, 3, encoder=Encoder(BAD)).run(4)
    written = split_state(merge_states(states), 3)
    second, states = Job(folder / "blend.yaml", 3, 30, 5, encoder=Encoder(BAD)).run(5, written)
    done = run_seen(write_states(tmp_path / "states", states), folder / "blend.yaml", tmp_path / "seen.parquet")
    assert done.exit_code == 0, done.output
    assert "Incomplete" not in done.output
    expected = Counter(text.split()[0] for steps in (first, second) for texts in steps.values() for text in texts)
    assert times(pyarrow.parquet.read_table(tmp_path / "seen.parquet")) == expected


def test_what_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    _, states = Job(folder / "blend.yaml", 2, 24, 3, encoder=Encoder(BAD)).run(8)
    output = tmp_path / "seen.parquet"
    done = run_seen(write_states(tmp_path / "states", states[:1]), folder / "blend.yaml", output)
    assert done.exit_code == 0, done.output
    assert "Incomplete: The log of rank 1 is missing for units 0 to 47 of the job" in done.output
    facts = pyarrow.parquet.read_schema(output).metadata
    assert facts[b"energon_dali.complete"] == b"false"
    assert "The log of rank 1" in json.loads(facts[b"energon_dali.incomplete"])[0]
    states[1]["log"]["parts"][0]["dropped"] = 3
    done = run_seen(write_states(tmp_path / "states", states), folder / "blend.yaml", output)
    assert "Incomplete: The log has no room for 3 units" in done.output


def test_resizing_loses_the_logs_of_ranks_that_leave(folder: Path, tmp_path: Path) -> None:
    job = Job(folder / "blend.yaml", 2, 24, 6, encoder=Encoder(BAD))
    with job.loader(0) as loader:
        list(take(loader, 4))
        loader.resize(0, 1)
        list(take(loader, 4))
        states = write_states(tmp_path / "states", [loader.save_state_rank()])
    done = run_seen(states, folder / "blend.yaml", tmp_path / "seen.parquet")
    assert "Incomplete: The log of rank 1 is missing for units 0 to 47 of the job" in done.output
    assert "48 to" not in done.output


def test_other_states_are_refused(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "seen.parquet"
    loader = ed.get_savable_loader(ed.get_train_dataset(folder / "a", batch_size=4))
    states = write_states(tmp_path / "streams", [loader.save_state_rank()])
    done = run_seen(states, folder / "a", output)
    assert done.exit_code == 1
    assert "without global batches" in done.output
    _, saved = Job(folder / "blend.yaml", 1, 24, 6).run(2)
    states = write_states(tmp_path / "states", saved)
    done = run_seen(states, folder / "b", output)
    assert done.exit_code == 1
    assert "The state is of another dataset" in done.output
    assert not output.exists()
