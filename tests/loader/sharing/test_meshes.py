"""Ranks that share their batches: each has what it would have alone, and none waits for one that has died."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import energon_dali as ed
from tests.integrations.phases import number_shards
from tests.loader.sharing.mesh_job import Plan, command, open_loader, taken

pytestmark = pytest.mark.timeout(300)  # interpreters with torch, perhaps on a busy machine
ROOT = Path(__file__).parents[3]

DP2_TP2 = Plan({"dp": 2, "tp": 2}, ["dp"], ["tp"])
TP3 = Plan({"tp": 3}, [], ["tp"], workers=1, batches=200, pause_seconds=0.01)
LARGE = [
    Plan({"dp": 2, "cp": 2, "tp": 2}, ["dp"], ["cp", "tp"], workers=1),
    Plan({"pp": 2, "dp": 2, "tp": 2}, ["dp"], ["pp", "tp"], workers=2),
    Plan({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, ["dp_replicate", "dp_shard"], ["tp"]),
]
"""The meshes of eight ranks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_shards(tmp_path_factory.mktemp("numbers"), 40)


class Jobs:
    """Runs jobs.

    Args:
        python: Runs programs.
        folder: The dataset.
        out: Folder for what ranks report.
    """

    def __init__(self, python: str, folder: Path, out: Path) -> None:
        self.python, self.folder, self.out = python, folder, out
        self._number = 0

    def run(self, plan: Plan) -> dict[int, Any]:
        """Returns the report of each rank that was not killed."""
        self._number += 1
        out = self.out / str(self._number)
        out.mkdir()
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command(self.python, self.folder, out, plan), env=variables, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found = {}
        for rank in range(math.prod(plan.mesh.values())):
            file = out / f"rank-{rank}.json"
            if file.exists():
                found[rank] = json.loads(file.read_text())
        return found


@pytest.fixture
def jobs(warm_python: str, folder: Path, tmp_path: Path) -> Jobs:
    return Jobs(warm_python, folder, tmp_path)


def alone(folder: Path, plan: Plan, ranks: int, state: Any = None) -> list[list[list[Any]]]:
    """Returns what each data-parallel rank takes if it reads for itself."""
    found = []
    for rank in range(ranks):
        config = ed.WorkerConfig(rank=rank, world_size=ranks, num_workers=plan.workers)
        with open_loader(folder, config, plan) as loader:
            if state is not None:
                loader.restore_state_global(state)
            found.append(taken(loader, plan))
    return found


def data_ranks(plan: Plan) -> int:
    return math.prod(plan.mesh[name] for name in plan.data)


def check_equal(folder: Path, plan: Plan, reports: dict[int, Any], state: Any = None) -> None:
    """Checks that each rank of a job took what it would have taken alone, batches and states."""
    expected = alone(folder, plan, data_ranks(plan), state)
    assert len(reports) == math.prod(plan.mesh.values())
    for rank, report in reports.items():
        assert "error" not in report, (rank, report["error"])
        assert report["seen"] == expected[report["data_rank"]], rank
        assert report["length"] == reports[0]["length"]
    readers = [report for report in reports.values() if report["kind"] == "ReaderLoader"]
    assert len(readers) == data_ranks(plan)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(replace(DP2_TP2, workers=1, batches=14, repeat=False, keep=True), id="ends of epochs"),
        pytest.param(replace(DP2_TP2, global_batch_size=8, pause_seconds=0.01), id="global batches"),
        pytest.param(
            replace(
                DP2_TP2,
                batches=8,
                calls=[[3, "skip_steps", {"first": 4, "stop": 6}], [4, "change_workers", {"num_workers": 0}]],
            ),
            id="calls",
        ),
        pytest.param(
            replace(DP2_TP2, workers=1, batches=9, calls=[[3, "close", {}], [7, "close", {}]], pause_seconds=0.05),
            id="closed and opened again",
        ),
        pytest.param(replace(DP2_TP2, workers=1, batches=12, interrupted=1, keep=True), id="follower interrupted"),
        pytest.param(replace(DP2_TP2, megatron=True, batches=3), id="Megatron"),
        pytest.param(replace(DP2_TP2, global_batch_size=8, packs=True), id="packs"),
    ],
)
def test_each_rank_has_the_batches_of_a_rank_that_reads_for_itself(jobs: Jobs, folder: Path, plan: Plan) -> None:
    check_equal(folder, plan, jobs.run(plan))


@pytest.mark.sweep
@pytest.mark.parametrize("plan", LARGE, ids=lambda plan: " ".join(f"{name}{size}" for name, size in plan.mesh.items()))
@pytest.mark.parametrize("global_batch_size", [None, 24])
def test_large_meshes_and_their_states_on_others(
    jobs: Jobs, folder: Path, tmp_path: Path, plan: Plan, global_batch_size: int | None
) -> None:
    plan = replace(plan, global_batch_size=global_batch_size)
    reports = jobs.run(plan)
    check_equal(folder, plan, reports)
    states = [report["state"] for report in reports.values() if report["state"] is not None]
    assert all(state == states[0] for state in states)
    file = tmp_path / "state.json"
    file.write_text(json.dumps(states[0]))
    workers = plan.workers if global_batch_size is None else 0
    other = Plan({"dp": data_ranks(plan), "tp": 2}, ["dp"], ["tp"], 4, workers, global_batch_size, state=str(file))
    check_equal(folder, other, jobs.run(other), states[0])


@pytest.mark.parametrize("killed", [{"rank": 0}, {"rank": 1}, {"worker_of": 0}], ids=["reader", "follower", "worker"])
def test_when_one_is_killed_the_others_end_with_an_error(jobs: Jobs, killed: dict[str, int]) -> None:
    reports = jobs.run(replace(TP3, kill={**killed, "after": 5}))
    assert len(reports) == (3 if "worker_of" in killed else 2)
    for report in reports.values():
        assert report["error"][0] == "WorkerDiedError", report["error"]
        assert report["seconds"] < 60


KINDS = {"R": "ReaderLoader", "F": "FollowerLoader", "N": "RelayLoader", "S": "SavableDataLoader"}


@pytest.mark.parametrize(
    ("nodes", "across_nodes", "kinds"),
    [
        ("aabb", True, "RFNF"),
        pytest.param("aabb", False, "RFRF", marks=pytest.mark.sweep),
        pytest.param("abcd", True, "RNNN", marks=pytest.mark.sweep),
        pytest.param("abcd", False, "SSSS", marks=pytest.mark.sweep),
        pytest.param("abba", True, "RNFF", marks=pytest.mark.sweep),
    ],
)
def test_ranks_on_several_nodes(jobs: Jobs, folder: Path, nodes: str, across_nodes: bool, kinds: str) -> None:
    plan = Plan({"tp": 4}, [], ["tp"], nodes=nodes, across_nodes=across_nodes, workers=1, batches=24, repeat=False)
    reports = jobs.run(plan)
    expected = alone(folder, plan, 1)[0]
    for rank, report in reports.items():
        assert "error" not in report, report["error"]
        assert report["kind"] == KINDS[kinds[rank]]
        assert report["seen"] == expected


@pytest.mark.parametrize("after", [0, 4])
def test_all_ranks_say_the_same_of_steps_after_a_resize(jobs: Jobs, folder: Path, after: int) -> None:
    calls = [[after, "resize", {"rank": 0, "world_size": 2}]]
    plan = Plan({"tp": 4}, [], ["tp"], nodes="aabb", across_nodes=True, global_batch_size=8, calls=calls, batches=9)
    reports = jobs.run(plan)
    assert [report.get("kind", report) for report in reports.values()] == [KINDS[kind] for kind in "RFNF"]
    check_equal(folder, plan, reports)


def test_a_restored_state_says_nothing_of_the_present_steps(jobs: Jobs, folder: Path, tmp_path: Path) -> None:
    plan = Plan({"tp": 2}, [], ["tp"], global_batch_size=8)
    with open_loader(folder, ed.WorkerConfig(rank=0, world_size=1, num_workers=0), plan) as loader:
        taken(loader, replace(plan, calls=[[4, "resize", {"rank": 0, "world_size": 2}]]))
        state = loader.save_state_rank()
    assert state["micro_batches"] == 2
    file = tmp_path / "state.json"
    file.write_text(json.dumps(state))
    plan = replace(plan, state=str(file))
    check_equal(folder, plan, jobs.run(plan), state)


@pytest.mark.parametrize("interrupted", [2, pytest.param(3, marks=pytest.mark.sweep)])
def test_a_relay_goes_on_after_calls_and_interruptions(jobs: Jobs, folder: Path, interrupted: int) -> None:
    calls = [[2, "close", {}], [5, "skip_steps", {"first": 7, "stop": 9}], [10, "close", {}]]
    plan = Plan({"tp": 4}, [], ["tp"], nodes="aabb", across_nodes=True, workers=1, batches=12, calls=calls, keep=True)
    check_equal(folder, replace(plan, interrupted=interrupted), jobs.run(replace(plan, interrupted=interrupted)))


@pytest.mark.parametrize("late", [0, pytest.param(2, marks=pytest.mark.sweep)])
def test_a_rank_that_closes_late_makes_the_calls_that_others_have_made(jobs: Jobs, folder: Path, late: int) -> None:
    calls = [[2, "close", {}], [4, "skip_steps", {"first": 7, "stop": 9}]]
    plan = Plan({"tp": 4}, [], ["tp"], nodes="aabb", across_nodes=True, batches=8, calls=calls, late=late)
    check_equal(folder, plan, jobs.run(plan))


BAD_MOMENTS = [*itertools.product(["closed", "interrupted_close"], range(4))]


@pytest.mark.parametrize(
    ("how", "rank"),
    [
        pytest.param(*one, marks=[] if one in (("closed", 1), ("interrupted_close", 0)) else pytest.mark.sweep)
        for one in BAD_MOMENTS
    ],
)
def test_no_batch_is_lost_where_closing_comes_at_a_bad_moment(jobs: Jobs, folder: Path, how: str, rank: int) -> None:
    plan = Plan({"tp": 4}, [], ["tp"], nodes="aabb", across_nodes=True, batches=12, calls=[[6, "close", {}]])
    check_equal(folder, plan, jobs.run(replace(plan, **{how: rank})))


@pytest.mark.parametrize("rank", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_a_step_that_fails_on_one_rank_ends_the_others(jobs: Jobs, rank: int) -> None:
    plan = Plan({"tp": 4}, [], ["tp"], nodes="aabb", across_nodes=True, batches=50, fails=[rank, 5])
    reports = jobs.run(plan)
    for other, report in reports.items():
        assert report["error"][0] == ("RuntimeError" if other == rank else "WorkerDiedError"), report


@pytest.mark.sweep
@pytest.mark.parametrize("killed", range(4))
def test_a_rank_of_several_nodes_is_killed(jobs: Jobs, killed: int) -> None:
    plan = replace(TP3, mesh={"tp": 4}, nodes="aabb", across_nodes=True, kill={"rank": killed, "after": 5})
    reports = jobs.run(plan)
    assert len(reports) == 3
    for report in reports.values():
        assert report["error"][0] == "WorkerDiedError", report["error"]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
def test_killed_at_random_moments_nobody_hangs_and_nothing_is_left(jobs: Jobs, seed: int) -> None:
    draw = random.Random(seed)
    killed = draw.choice([{"rank": 0}, {"rank": draw.randrange(4)}, {"worker_of": 0}])
    mesh = draw.choice([Plan({"dp": 2, "tp": 2}, ["dp"], ["tp"]), Plan({"cp": 2, "tp": 2}, [], ["cp", "tp"])])
    plan = replace(mesh, workers=draw.randrange(3), batches=400, pause_seconds=draw.choice([0.0, 0.01]))
    reports = jobs.run(replace(plan, kill={**killed, "after": draw.randrange(40), "delay": draw.random() / 5}))
    group = {0, 1} if "dp" in plan.mesh else set(range(4))
    if killed.get("rank", 0) not in group:
        group = {2, 3}
    survived = group - {killed.get("rank")} if "rank" in killed else group
    if "rank" in killed or plan.workers:
        assert all(reports[rank]["error"][0] == "WorkerDiedError" for rank in survived), reports
    assert all(report["seconds"] < 60 for report in reports.values())
    left = [pid for pid in Path("/proc").glob("[0-9]*") if str(jobs.out) in command_line(pid)]
    assert not left


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def test_a_rank_that_takes_no_batches_is_named(jobs: Jobs) -> None:
    plan = replace(TP3, absent=[2], options={"watchdog_timeout_seconds": 1, "watchdog_initial_timeout_seconds": 2})
    reports = jobs.run(plan)
    kind, message, _ = reports[0]["error"]
    assert kind == "WatchdogTimeoutError"
    assert "Rank 2 has not asked for a batch" in message
    assert "error" in reports[1]


def test_other_calls_on_a_follower_are_an_error(jobs: Jobs) -> None:
    calls = [[2, "skip_steps", {"first": 3, "stop": 4}]]
    reports = jobs.run(replace(TP3, workers=0, calls=calls, differ=True))
    assert "other arguments or in another order" in reports[0]["error"][1]


def test_parts_of_sequences_joined_are_the_whole_and_fields_go_to_their_stages(jobs: Jobs, folder: Path) -> None:
    plan = Plan({"pp": 2, "cp": 2}, [], ["pp", "cp"], deliver={"pixels": "first_stage"}, cut={"tokens": 1})
    reports = jobs.run(plan)
    with open_loader(folder, ed.WorkerConfig(rank=0, world_size=1, num_workers=0), plan) as loader:
        whole = [batch["tokens"] for batch in itertools.islice(loader, plan.batches)]
    for stage in range(2):
        first, second = (torch.tensor(reports[2 * stage + rank]["tokens"]) for rank in range(2))
        joined = torch.cat([first[..., :2], second, first[..., 2:]], dim=-1)
        assert torch.equal(joined, torch.stack(whole))
        fields = [reports[2 * stage + rank]["fields"] for rank in range(2)]
        assert fields[0] == fields[1]
        assert ("pixels" in fields[0]) == (stage == 0)


@pytest.mark.parametrize("global_batch_size", [None, 8])
def test_encoders_are_never_paired_with_other_samples(jobs: Jobs, folder: Path, global_batch_size: int | None) -> None:
    plan = Plan(
        {"ranks": 4}, [], [], pairs=True, deliver={"pixels": "first_stage"}, global_batch_size=global_batch_size
    )
    reports = jobs.run(plan)
    for rank, report in reports.items():
        assert "error" not in report, report
        config = ed.WorkerConfig(rank=rank % 2, world_size=2, num_workers=0)
        with open_loader(folder, config, plan) as loader:
            whole = [batch["tokens"].tolist() for batch in itertools.islice(loader, plan.batches)]
        assert report["tokens"] == whole
        assert ("pixels" in report["fields"]) == (rank < 2)
        assert report["kind"] == ("ReaderLoader" if rank < 2 else "FollowerLoader")
