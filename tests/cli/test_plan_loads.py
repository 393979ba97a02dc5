"""`energon-dali plan --loads` and `--compare`: what ranks have to compute, for any number of ranks, from measures."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from energon_dali import (
    Balance,
    ColumnCost,
    DefaultTaskEncoder,
    TransformerCost,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.cli.main import main
from energon_dali.diagnosis.planned_loads import PER_MICRO_BATCH, PER_STEP, WITHOUT, plan_loads
from energon_dali.errors import ConfigError
from energon_dali.plan.balance import barriers_of
from energon_dali.task_encoder.planned_packs import PlannedPacks
from tests.loader.dataset_folder import prepare, write_shards

SAMPLES = 400
LENGTHS = [random.Random(number).choice((10, 20, 200, 900)) for number in range(SAMPLES)]
PATCHES = [random.Random(-number - 1).choice((0, 0, 0, 400)) for number in range(SAMPLES)]

by_tokens = Balance(ColumnCost(), per="micro_batch")
by_model = TransformerCost(64, 2, vision_hidden_size=64, vision_layers=2)
packs = PlannedPacks(1000, window=100)


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


class Values:
    identity = "test"
    names = ("text_tokens", "vision_tokens", "vision_patches", "vision_squares")
    num_samples = SAMPLES

    def take(self, name: str, numbers: Any) -> Any:
        patches = np.array(PATCHES)
        columns = {"tokens": np.array(LENGTHS), "vision_patches": patches, "vision_squares": patches**2}
        return columns[name][numbers]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loads") / "texts"
    samples = {f"{number:03d}": {"txt": f"text {number}".encode()} for number in range(SAMPLES)}
    prepare(write_shards(root, samples, 4), {"text": "txt"}, "TextSample")
    return root


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.assembly.measured_plan.open_measures", lambda *_, **__: Values())


def run(data: Path, *options: str) -> str:
    command = [
        "plan",
        str(data),
        "--step",
        "3..5",
        "--world-size",
        "4",
        "--global-batch-size",
        "32",
        "--batch-size",
        "2",
    ]
    result = CliRunner().invoke(main, [*command, *options])
    assert not result.exit_code, result.output
    return result.output


def test_loads_of_ranks_and_micro_batches(data: Path) -> None:
    output = run(data, "--balance", "tokens", "--loads")
    lines = output.splitlines()
    assert lines[0].startswith("Step 3: ranks wait ")
    assert lines[1].split() == ["rank", "total", "vision", "language", "micro-batches"]
    assert sorted(int(line.split()[0]) for line in lines[2:6]) == [0, 1, 2, 3]
    for line in lines[2:6]:
        _, total, vision, language, *parts, bar = line.split()
        assert total == language
        assert vision == "0.00"
        assert np.mean([float(part) for part in parts]) == pytest.approx(float(total), abs=0.01)
        assert set(bar) == {"█"}
    assert max(len(line.split()[-1]) for line in lines[2:6]) == 32
    assert lines[-1].startswith("Over 3 steps, ranks wait ")
    assert lines[-1].endswith(" at each step.")
    assert run(data, "--balance", "tokens", "--loads", "--rank", "2").splitlines()[2].split()[0] == "2"


def test_json_has_the_costs_of_what_is_delivered(data: Path) -> None:
    name = f"{__name__}:by_tokens"
    found = json.loads(run(data, "--balance", name, "--loads", "--json"))
    assert found["per"] == "micro_batch"
    for rank in range(4):
        dataset = get_train_dataset(
            data,
            worker_config=WorkerConfig(rank=rank, world_size=4, num_workers=0),
            batch_size=2,
            global_batch_size=32,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            balance=by_tokens,
            task_encoder=Encoder(),
        )
        with get_savable_loader(dataset) as loader:
            delivered = {}
            for batch in loader:
                if batch.step > 5:
                    break
                delivered[batch.step, batch.micro_batch] = sum(LENGTHS[int(key)] for key in batch.__key__)
        for step in found["steps"]:
            for number, (vision, language) in enumerate(step["costs"][rank]):
                assert vision == 0
                assert language == delivered[step["step"], number]


def test_policies_are_compared(data: Path, tmp_path: Path) -> None:
    picture = tmp_path / "loads.svg"
    name = f"{__name__}:by_model"
    lines = run(data, "--balance", name, "--compare", "--plot", str(picture)).splitlines()
    assert lines[0].startswith("3 steps, 4 ranks x 4 micro-batches")
    waits = {
        line[:26].strip(): [float(part.strip(" ").split("%")[0]) for part in line[26:].split("  ") if "%," in part]
        for line in lines[2:5]
    }
    assert list(waits) == [WITHOUT, PER_STEP, PER_MICRO_BATCH]
    assert waits[PER_STEP][0] < waits[WITHOUT][0]
    assert waits[PER_MICRO_BATCH][1] < min(waits[WITHOUT][1], waits[PER_STEP][1])
    assert b"<svg" in picture.read_bytes()


def test_packs_are_compared(data: Path) -> None:
    options = ("--packs", f"{__name__}:packs", "--balance", f"{__name__}:by_model", "--encoder", f"{__name__}:Encoder")
    found = json.loads(run(data, *options, "--compare", "--json"))
    totals: dict[int, set[tuple[int, ...]]] = {}
    for step in found["steps"]:
        costs = np.array(step["costs"])
        assert costs.shape == (4, 4, 2)
        totals.setdefault(step["step"], set()).add(tuple(costs.sum((0, 1)).tolist()))
        assert step["longest"]["step"] >= step["bound"]["step"]
        assert step["longest"]["micro_batch"] >= step["bound"]["micro_batch"]
    assert [len(one) for one in totals.values()] == [1, 1, 1]  # the same packs, dealt in three ways
    assert run(data, "--packs", "1000", *options[2:], "--loads")


def test_many_ranks_are_cut(data: Path) -> None:
    command = ["plan", str(data), "--step", "0", "--world-size", "64", "--global-batch-size", "64", "--batch-size", "1"]
    result = CliRunner().invoke(main, [*command, "--balance", "tokens", "--loads"])
    assert "    ... 48 ranks between" in result.output.splitlines()
    assert len(result.output.splitlines()) == 2 + 17 + 1


def test_loads_in_python(data: Path) -> None:
    dataset = get_train_dataset(
        data,
        worker_config=WorkerConfig(rank=0, world_size=4, num_workers=0),
        batch_size=2,
        global_batch_size=32,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        balance=Balance(by_model),
    )
    (one,) = plan_loads(dataset, range(7, 8))
    loads = barriers_of(one.sums, "step")
    assert one.waiting_share("step") == 1 - loads.mean(1).sum() / loads.max(1).sum()
    assert one.longest("step") >= one.bounds["step"]
    with pytest.raises(ConfigError, match="give global_batch_size and balance"):
        next(
            plan_loads(
                get_train_dataset(data, worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0), batch_size=2),
                range(1),
            )
        )


def test_weights_hold_in_tokens(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset whose samples are three times as long gives a third of the samples of the other one."""
    shutil.copytree(data, tmp_path / "long")
    blend = [{"weight": 1, "path": str(data)}, {"weight": 1, "path": "long"}]
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text(json.dumps({"__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}))

    class Long(Values):
        def take(self, name: str, numbers: Any) -> Any:
            return 3 * super().take(name, numbers)

    monkeypatch.setattr(
        "energon_dali.assembly.measured_plan.open_measures",
        lambda source, *_, **__: Long() if source.name.endswith("long") else Values(),
    )

    def share(*options: str) -> float:
        document = json.loads(run(mixture, "--json", "--step", "0..31", *options))
        datasets = [one["dataset"] for batch in document["batches"] for one in batch["samples"]]
        return sum(name.endswith("long") for name in datasets) / len(datasets)

    assert share() == pytest.approx(1 / 2, abs=0.01)
    assert share("--blend-by", "tokens") == pytest.approx(1 / 4, abs=0.01)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--loads"], "need --balance"),
        (["--loads", "--balance", "tokens", "--unit", "sample"], "leave --unit and --tokens out"),
        (["--loads", "--balance", "tokens", "--diff", "--seed 1"], "leave --diff and --diff-path out"),
        (["--blend-by", "tokens"], "needs several datasets that are blended by weight"),
        (["--blend-by", "tokens", "--validation"], "--blend-by: validation is not shuffled, has no weights"),
        (["--balance-per", "step"], "give --balance"),
        (["--packs", "1000"], "--packs 1000 needs --encoder"),
        (
            ["--packs", "long", "--encoder", f"{__name__}:Encoder"],
            "--packs long is invalid: give the length of a pack, or MODULE:NAME",
        ),
        (["--balance", f"{__name__}:SAMPLES"], "cost=400 is not a cost"),
        (["--loads", "--balance", "tokens", "--plot", "loads.gif"], "give a file that ends in .png, .svg, .pdf"),
        (["--loads", "--balance", "tokens", "--plot", "no/such/folder.png"], "cannot be written: No such file"),
    ],
)
def test_wrong_options(data: Path, options: list[str], said: str) -> None:
    command = ["plan", str(data), "--step", "0", "--global-batch-size", "4", "--batch-size", "2"]
    result = CliRunner().invoke(main, [*command, *options])
    assert result.exit_code
    assert said in " ".join(result.output.split())
