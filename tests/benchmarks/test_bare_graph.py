"""The ceilings of the benchmarks have the threads of the loader that they are compared with."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.candidates import bare_graph
from benchmarks.candidates.task import Task
from energon_dali.decode import DaliDecoder
from energon_dali.decode.dali.runtime.device import Device


def task_for(output: str, **options: Any) -> Task:
    options = {"device": "gpu", **options}
    return Task(
        program="ceiling",
        action="time",
        dataset=".",
        output=output,
        batch_size=2,
        warmup_samples=0,
        samples=2,
        device="gpu",
        options=options,
    )


@pytest.mark.parametrize(("cores", "ranks"), [(2, 1), (16, 1), (128, 8), (256, 2)])
@pytest.mark.parametrize(
    ("output", "media"),
    [
        ("uint8", "image"),
        ("float224", "image"),
        ("patches", "image"),
        ("frames", "video"),
        ("frames224", "video"),
        ("frame-patches", "video"),
    ],
)
def test_ceilings_on_a_gpu_have_as_many_threads(
    output: str, media: Any, cores: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr("energon_dali.host_cores._cores_of_cgroup", lambda: None)
    monkeypatch.setattr("energon_dali.host_cores._quota_of_cgroup", lambda: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    made: list[dict[str, Any]] = []

    class Dali:
        @staticmethod
        def pipeline_def(define: Any) -> Any:
            return lambda **settings: made.append(settings)

    monkeypatch.setattr("benchmarks.candidates.bare_graph.importlib.import_module", lambda name: Dali)
    task = task_for(output)
    assert task.decodes_on == "gpu"
    bare_graph.make_pipeline(lambda fn: None, task)
    bare_graph.make_pipeline(lambda fn: None, task_for(output, threads=3))
    ours = DaliDecoder().engine_options.threads_on(Device("gpu", 0), media)
    assert [settings["num_threads"] for settings in made] == [ours, 3]
