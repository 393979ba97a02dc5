from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.candidates.remote_meter import byte_sums, own_shards, samples_of, wanted_bytes
from benchmarks.candidates.task import Task
from benchmarks.data.recipe import TEXT_BYTES, Recipe
from benchmarks.results import judge_bar
from benchmarks.scale import synthetic
from benchmarks.workload import Bar, Candidate, Workload
from benchmarks.workload_run import prepared
from energon_dali.shards import RawSample, ShardReader, WebdatasetFolder


def texts(folder: Path, rows: list[tuple[int, int]]) -> list[tuple[str, bytes]]:
    reader = ShardReader(WebdatasetFolder(str(folder)))
    samples = reader.read([shard for shard, _ in rows], [sample for _, sample in rows])
    reader.close()
    assert all(isinstance(sample, RawSample) for sample in samples), samples
    return [(sample.key, bytes(sample.parts["txt"])) for sample in samples]


def test_a_made_up_index_leads_to_the_right_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "MOST_MEMBERS", 150)
    folder = tmp_path / "index"
    folder.mkdir()
    synthetic.write_synthetic(folder, 2000, 10)
    opened = WebdatasetFolder(str(folder))
    assert opened.num_samples == 2000
    assert opened.index.source == "extents"
    found = texts(folder, [(0, 0), (9, 199), (3, 150), (3, 149)])
    members = [0, 49, 0, 149]
    assert found == [(synthetic.key_of(member), synthetic.text_of(member)) for member in members]
    assert (
        sum(path.is_file() and path.suffix == ".idx" for path in folder.rglob("*")) == 1
    )  # no shard is an ordinary one
    with pytest.raises(ValueError, match="do not divide"):
        synthetic.write_synthetic(tmp_path, 11, 2)


def test_linked_shards_are_read_like_those_that_were_written(tmp_path: Path) -> None:
    recipe = Recipe(name="linked", samples=60, shards=12, own_shards=3, style="text")
    folder = prepared(recipe, tmp_path)
    assert len(list(folder.glob("*.tar"))) == len(list(folder.glob("*.tar.idx"))) == 12
    assert len({os.stat(path).st_ino for path in folder.glob("*.tar")}) == 3
    opened = WebdatasetFolder(str(folder))
    assert (opened.num_samples, opened.index.source) == (60, "extents")
    everything = texts(folder, [(shard, sample) for shard in range(12) for sample in range(5)])
    assert everything[:15] * 4 == everything
    assert len(dict(everything[:15])) == 15

    task = Task(
        program="", action="time", dataset=str(folder), output="text", batch_size=1, warmup_samples=0, samples=1
    )
    assert len(own_shards(task)) == 3
    assert wanted_bytes(task) == TEXT_BYTES
    assert [(sample["__key__"], sample["txt"]) for sample in samples_of(task)] == everything[:15]
    assert byte_sums(task, {"000003"}).keys() == {"000003"}
    assert prepared(recipe, tmp_path) == folder


def test_bars_on_differences() -> None:
    candidates = tuple(Candidate(name=name, program="scale") for name in "ab")
    work = Workload(name="w", title="", metric="m", unit="", recipe=Recipe(name="r", samples=1), candidates=candidates)
    runs = {"a": [{"m": 100.0}, {"m": 90.0}], "b": [{"m": 40.0}, {"m": 0.0}]}
    judged = judge_bar(Bar(of="a", to="b", at_most=64, difference=True), work, runs)
    assert (judged["ratios"], judged["met"]) == ([60.0, 90.0], False)
    assert judge_bar(Bar(of="a", to="b"), work, runs)["ratios"] == [2.5]
    assert np.isclose(judge_bar(Bar(of="b", to="a"), work, runs)["ratio"], 0.2)
