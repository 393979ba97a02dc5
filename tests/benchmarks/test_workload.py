from __future__ import annotations

import importlib

import pytest

from benchmarks import cpu, first_batch, packing, peers, small
from benchmarks.candidates.task import Task
from benchmarks.data.recipe import Recipe
from benchmarks.remote import workloads as remote
from benchmarks.results import judge_bar, judge_limit, summarise
from benchmarks.run import quick
from benchmarks.scale import streams
from benchmarks.scale import workloads as scale
from benchmarks.workload import Bar, Candidate, Limit, Workload

ALL = [
    *cpu.WORKLOADS,
    *first_batch.WORKLOADS,
    *packing.WORKLOADS,
    *peers.WORKLOADS,
    *remote.WORKLOADS,
    *scale.WORKLOADS,
    *small.WORKLOADS,
    *streams.WORKLOADS,
]
SPEEDS = {"a": (20.0, 10.0, 22.0), "b": (10.0, 5.0, 10.0)}
RECIPE = Recipe(name="r", samples=1)


def workload(**changes: object) -> Workload:
    fields: dict[str, object] = {
        "name": "w",
        "title": "t",
        "metric": "speed",
        "unit": "1/s",
        "recipe": RECIPE,
        "candidates": (Candidate(name="a", program="pil_memory"), Candidate(name="b", program="pil_memory")),
    }
    return Workload(**{**fields, **changes})  # type: ignore[arg-type]


def test_names_in_the_registry_are_unique() -> None:
    names = [one.name for one in ALL]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("work", ALL, ids=lambda work: work.name)
def test_every_program_can_be_imported_and_measures(work: Workload) -> None:
    for candidate in work.candidates:
        program = importlib.import_module(f"benchmarks.candidates.{candidate.program}")
        assert callable(program.measure)


@pytest.mark.parametrize("work", cpu.WORKLOADS, ids=lambda work: work.name)
def test_quick_is_the_same_comparison_with_less_work(work: Workload) -> None:
    small = quick(work)
    assert small.candidates == work.candidates
    assert small.samples < work.samples
    assert small.recipe.name != work.recipe.name


@pytest.mark.parametrize("work", ALL, ids=lambda work: work.name)
def test_quick_changes_nothing_but_sizes(work: Workload) -> None:
    small = quick(work)
    assert [(one.name, one.options) for one in small.candidates] == [(one.name, one.options) for one in work.candidates]
    for own, whole in ((small.recipe, work.recipe), *((one.recipe, one.recipe) for one in small.candidates)):
        if own is not None and whole is not None:
            assert own.own_shards <= own.shards <= 32
            assert own.style == whole.style


def test_two_candidates_of_one_name_are_refused() -> None:
    twice = (Candidate(name="a", program="pil_memory"),) * 2
    with pytest.raises(ValueError, match="candidates share a name"):
        workload(candidates=twice)


def test_a_bar_about_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match=r"speak of \['c'\]"):
        workload(bars=(Bar(of="a", to="c"),))
    with pytest.raises(ValueError, match=r"speak of \['d'\]"):
        workload(limits=(Limit(of="d", metric="x"),))


def test_a_program_must_be_a_module_name() -> None:
    with pytest.raises(ValueError, match="must be the name of a module"):
        Candidate(name="a", program="../evil")


def test_a_task_survives_the_command_line() -> None:
    task = Task(
        program="p",
        action="time",
        dataset="/d",
        output="uint8",
        batch_size=2,
        warmup_samples=1,
        samples=3,
        options={"layout": "HWC"},
    )
    assert Task.from_json(task.to_json()) == task
    assert task.layout == "HWC"


def test_a_summary_is_the_median_and_the_extremes() -> None:
    runs = [{"speed": 3.0}, {"speed": 1.0}, {"speed": 2.0, "extra": 5.0}]
    assert summarise(runs) == {
        "speed": {"median": 2.0, "low": 1.0, "high": 3.0},
        "extra": {"median": 5.0, "low": 5.0, "high": 5.0},
    }


def test_a_ratio_is_the_median_over_repetitions_that_ran_next_to_each_other() -> None:
    # The machine was half as fast in the second repetition; the ratio does not see it.
    runs = {name: [{"speed": speed} for speed in speeds] for name, speeds in SPEEDS.items()}
    judged = judge_bar(Bar(of="a", to="b", at_least=2.0), workload(), runs)
    assert judged["ratios"] == [2.0, 2.0, 2.2]
    assert judged["ratio"] == 2.0
    assert judged["met"] is True
    assert judge_bar(Bar(of="a", to="b", at_least=2.1), workload(), runs)["met"] is False


def test_what_did_not_run_is_not_judged() -> None:
    runs: dict[str, list[dict[str, float]]] = {"a": [{"speed": 20.0}], "b": []}
    assert judge_bar(Bar(of="a", to="b", at_least=1.0), workload(), runs)["met"] is None
    assert judge_limit(Limit(of="b", metric="speed", at_most=1.0), runs)["met"] is None
    assert judge_bar(Bar(of="a", to="a"), workload(), runs)["met"] is None  # no bound to meet


@pytest.mark.parametrize(("limit", "met"), [((None, 5.0), True), ((None, 4.9), False), ((5.1, None), False)])
def test_a_limit_holds_on_both_sides(limit: tuple[float | None, float | None], met: bool) -> None:
    judged = judge_limit(Limit(of="a", metric="speed", at_least=limit[0], at_most=limit[1]), {"a": [{"speed": 5.0}]})
    assert judged["met"] is met
