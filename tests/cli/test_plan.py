"""`energon-dali plan` and `plan_steps`: they name what a run delivers, and read no shard for it."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from energon_dali import (
    ConfigError,
    DefaultTaskEncoder,
    FrontEnd,
    SampleDecoder,
    SkipSample,
    StateError,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    plan_steps,
    stateless,
)
from energon_dali.cli.main import main
from energon_dali.loader.loader_state import merge_states
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards

STREAMS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plan")
    for name, count in (("a", 90), ("b", 31)):
        samples = {f"{name}{number:03d}": {"txt": f"{name} {number}".encode()} for number in range(count)}
        prepare(write_shards(root / name, samples), {"text": "txt"}, "TextSample")
    for kind, amount in (("blend", "weight"), ("blend_epochized", "repetitions")):
        parts = [{"path": "a", amount: 2.5}, {"path": "b", amount: 1}]
        document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {kind: parts}}}
        (root / f"{kind}.yaml").write_text(json.dumps(document))
    return root


def job(rank: int = 0, ranks: int = 1, **options: Any) -> WorkerConfig:
    return WorkerConfig(rank=rank, world_size=ranks, num_workers=0, num_streams=STREAMS, **options)


def dataset(path: Path, config: WorkerConfig, **options: Any) -> Any:
    given = {"batch_size": 2, "shuffle_buffer_size": 10, "max_samples_per_sequence": 7, **options}
    return get_train_dataset(str(path), worker_config=config, **given)


def planned(plan: Any, rank: int) -> list[tuple[int, int, list[str]]]:
    return [(one.step, one.stream, [sample.key for sample in one.samples]) for one in plan if one.rank == rank]


def logged(path: Path) -> list[tuple[int, int, list[str]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(step, line["stream"], line["keys"]) for step, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("name", "ranks", "steps"),
    [
        ("a", 1, 2_000),
        ("blend.yaml", 4, 500),
        pytest.param("a", 1, 10_000, marks=pytest.mark.sweep),
        pytest.param("blend.yaml", 4, 2_500, marks=pytest.mark.sweep),
    ],
)
def test_the_plan_is_the_debug_log_of_a_run(data: Path, tmp_path: Path, name: str, ranks: int, steps: int) -> None:
    log = str(tmp_path / "rank_{worker_id}.jsonl")
    for rank in range(ranks):
        config = job(rank, ranks, worker_log_level=1, worker_debug_path=log)
        for _ in islice(get_savable_loader(dataset(data / name, config)), steps):
            pass
    plan = plan_steps(dataset(data / name, job(0, ranks)), range(steps))
    late = plan_steps(dataset(data / name, job(0, ranks)), range(steps - 20, steps))
    for rank in range(ranks):
        expected = logged(tmp_path / f"rank_{rank}.jsonl")
        assert len(expected) == steps
        assert planned(plan, rank) == expected
        assert planned(late, rank) == expected[-20:]


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", ["a", "blend.yaml", "blend_epochized.yaml"])
def test_the_plan_of_a_run_that_leaves_steps_out(data: Path, tmp_path: Path, name: str, ranks: int) -> None:
    whole = plan_steps(dataset(data / name, job(0, ranks)), range(120))
    for rank in range(ranks):
        log = tmp_path / f"rank_{rank}.jsonl"
        loader = get_savable_loader(
            dataset(data / name, job(rank, ranks, worker_log_level=1, worker_debug_path=str(log)))
        )
        loader.skip_steps(30, 75)
        list(islice(loader, 75))
        expected = planned(whole, rank)
        assert [row[1:] for row in logged(log)] == [row[1:] for row in expected[:30] + expected[75:]]


def test_no_shard_is_needed(data: Path, tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "images", 12, 2)
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.tar")}
    for path in folder.glob("*.tar"):
        path.unlink()
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    (batch,) = plan_steps(get_val_dataset(str(folder), worker_config=config, batch_size=2), range(1))
    assert [sample.key for sample in batch.samples] == ["k0000", "k0001"]
    assert batch.samples[0].shard in sizes
    assert batch.samples[0].part_bytes.keys() == {"jpg", "txt"}  # the json is not read
    assert batch.samples[0].part_bytes["txt"] == len("picture number 0")
    assert batch.samples[0].size_bytes < sizes[batch.samples[0].shard]


class Looking(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(
        front_end=FrontEnd.from_processor(
            {
                "image_processor_type": "Qwen2VLImageProcessor",
                "min_pixels": 784,
                "max_pixels": 1_003_520,
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            }
        )
    )


def test_vision_tokens_follow_from_the_stored_size(tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "images", 12, 2)
    stored = CliRunner().invoke(main, ["prepare-media", str(folder), "--media-metadata-by-extension"])
    assert stored.exit_code == 0, stored.output
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    tree = get_val_dataset(str(folder), worker_config=config, task_encoder=Looking())
    for planned_one, sample in zip(plan_steps(tree, range(4)), get_savable_loader(tree), strict=False):
        assert planned_one.samples[0].num_tokens == sample.image.num_tokens


class Choosy(TaskEncoder[Any, Any, Any, Any]):
    """Skips every fifth sample."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__[1:]) % 5 == 0:
            raise SkipSample
        return sample


class Packing(DefaultTaskEncoder):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 2] for start in range(0, len(samples), 2)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def test_what_it_cannot_know_is_said(data: Path) -> None:
    notes = plan_steps(dataset(data / "a", job(), task_encoder=Choosy()), range(3)).notes
    assert any("encode_sample may skip samples" in note for note in notes)
    packed = dataset(data / "a", job(), task_encoder=Packing(), packing_buffer_size=4)
    with pytest.raises(ConfigError, match="decides at run time"):
        plan_steps(packed, range(3))
    samples = plan_steps(packed, range(6), unit="sample")
    unpacked = plan_steps(dataset(data / "a", job(), batch_size=None), range(6))
    assert planned(samples, 0) == planned(unpacked, 0)
    assert any("packing, grouping and batching decide" in note for note in samples.notes)


def test_a_plan_goes_on_from_a_state_which_knows_what_was_dropped(data: Path) -> None:
    def loader(rank: int) -> Any:
        return get_savable_loader(dataset(data / "a", job(rank, 2), task_encoder=Choosy()))

    states = []
    for rank in range(2):
        one = loader(rank)
        list(islice(one, 50))
        states.append(json.loads(json.dumps(one.save_state_rank())))
    encoder = Choosy()
    plan = plan_steps(dataset(data / "a", job(0, 2), task_encoder=encoder), range(50, 54), state=merge_states(states))
    for rank in range(2):
        one = loader(rank)
        one.restore_state_rank(states[rank])
        delivered = {key for batch in islice(one, 4) for key in batch.__key__}
        names = {key for _, _, samples in planned(plan, rank) for key in samples}
        assert {key for key in names if int(key[1:]) % 5} <= delivered
    with pytest.raises(StateError, match="is after step 49, and step 3 was asked for"):
        plan_steps(dataset(data / "a", job(0, 2), task_encoder=encoder), range(3, 4), state=merge_states(states))


def test_the_end_of_the_data_is_said(data: Path) -> None:
    val = get_val_dataset(str(data / "b"), worker_config=job(), batch_size=2)
    plan = plan_steps(val, range(5, 100))
    assert len(plan) == len(list(get_savable_loader(val))) - 5
    assert any("The data ends after step" in note for note in plan.notes)
    limited = get_val_dataset(str(data / "b"), worker_config=job(), batch_size=2, limit=3)
    assert len(plan_steps(limited, range(100))) == 3


def test_wrong_arguments_are_explained(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes 2 arguments without a name.*plan_steps\(dataset, steps, "):
        plan_steps(dataset(data / "a", job()), 0, 5)  # type: ignore[call-arg, arg-type]
    with pytest.raises(ConfigError, match="dataset='a' is not a dataset of energon_dali: give what get_train_dataset"):
        plan_steps("a", range(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [range(0), range(-3, 2), range(0, 9, 2), 7])
def test_steps_that_are_no_range_are_refused(data: Path, steps: Any) -> None:
    with pytest.raises(ConfigError, match="give a range of steps"):
        plan_steps(dataset(data / "a", job()), steps)
    with pytest.raises(ConfigError, match="ranks="):
        plan_steps(dataset(data / "a", job()), range(1), ranks=[1])


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(main, ["plan", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def count_letters(sample: Any) -> int:
    return sum(sample.part_bytes.values())


def test_the_command_prints_samples_as_text_and_json(data: Path) -> None:
    path = str(data / "blend.yaml")
    options = ["--world-size", "4", "--num-streams", "8", "--batch-size", "2", "--shuffle-buffer-size", "10"]
    options += ["--max-samples-per-sequence", "7", "--rank", "1", "--rank", "3"]
    tokens = f"{__name__}:count_letters"
    text = run(path, "--step", "1,000..1001", "--tokens", tokens, *options)
    assert "Step 1,000\n  rank 1, stream 1: 2 samples, " in text
    document = json.loads(run(path, "--step", "1000..1001", "--tokens", tokens, "--json", *options))
    assert document["steps"] == [1000, 1002]
    plan = plan_steps(dataset(data / "blend.yaml", job(0, 4)), range(1000, 1002), ranks=[1, 3])
    assert [
        (one["step"], one["rank"], [sample["key"] for sample in one["samples"]]) for one in document["batches"]
    ] == [(one.step, one.rank, [sample.key for sample in one.samples]) for one in plan]
    sample = document["batches"][0]["samples"][0]
    assert sample["bytes"] == sample["parts"]["txt"] == sample["tokens"]
    assert document["batches"][0]["tokens"] == sum(one["tokens"] for one in document["batches"][0]["samples"])


def compare(*arguments: str) -> tuple[int, str]:
    """Returns (exit status, output) of a comparison."""
    done = CliRunner().invoke(main, ["plan", *arguments])
    return done.exit_code, done.output


def test_two_configurations_are_compared(data: Path) -> None:
    path = str(data / "a")
    code, same = compare(path, "--step", "0..3", "--batch-size", "2", "--diff", "--shuffle-buffer-size 1")
    assert code == 0
    assert same == "4 of 4 steps hold the same samples.\n" + (
        "Of 8 samples:\n  8 (100.00%) come at the same step\n  0 (0.00%) come at another step\n"
        "  0 (0.00%) no longer come\n  0 (0.00%) are new\n"
    )
    code, text = compare(path, "--step", "0..3", "--batch-size", "2", "--json", "--diff", "--batch-size 3")
    other = json.loads(text)
    assert code == 1
    assert (len(other["steps"][0]["only_first"]), len(other["steps"][0]["only_second"])) == (0, 1)
    code, text = compare(path, "--step", "2", "--batch-size", "20", "--diff", "--seed 1", "--seed", "0")
    assert code == 1
    assert "of 20 samples removed" in text
    assert "\n  - " in text
    assert "\n  + " in text
    code, text = compare(path, "--step", "2", "--diff-path", str(data / "b"))
    assert code == 1
    assert "/b shard_" in text
    code, text = compare(path, "--step", "2", "--diff", "--sead 1")
    assert code == 2
    assert "--diff '--sead 1'" in text


JOB = ["--batch-size", "4", "--global-batch-size", "24", "--shuffle-buffer-size", "20"]
"""A job whose steps do not depend on its ranks."""


@pytest.mark.parametrize("name", ["a", "blend.yaml"])
def test_steps_of_a_job_move_on_no_number_of_ranks(data: Path, name: str) -> None:
    options = [str(data / name), "--step", "3..12", "--world-size", "3", *JOB]
    code, text = compare(*options, "--diff", "--world-size 2 --num-workers 2 --batch-size 6")
    assert code == 0
    assert text.startswith("10 of 10 steps hold the same samples.\nOf 240 samples:\n  240 (100.00%) come at the same")
    assert "of them come on another rank or at another place" in text


def test_an_edit_of_a_metadataset_says_what_it_moves(data: Path, tmp_path: Path) -> None:
    """The counts equal those of sets of samples that are compared by hand."""
    parts = [{"path": str(data / "a"), "weight": 1}, {"path": str(data / "b"), "weight": 3}]
    edited = tmp_path / "edited.yaml"
    edited.write_text(json.dumps({"__class__": "MetadatasetV2", "splits": {"train": {"blend": parts}}}))
    options = ["--step", "0..19", *JOB]
    code, text = compare(str(data / "blend.yaml"), *options, "--json", "--diff-path", str(edited))
    assert code == 1
    document = json.loads(text)
    plans = []
    for path in (data / "blend.yaml", edited):
        shown = json.loads(run(str(path), *options, "--json"))["batches"]
        plans.append([(one["step"], sample["key"]) for one in shown for sample in one["samples"]])
    steps, keys = ([Counter(one) for one in side] for side in (plans, [[key for _, key in one] for one in plans]))
    summary = document["summary"]
    both = (keys[0] & keys[1]).total()
    assert summary["kept"] == (steps[0] & steps[1]).total() > 0
    assert summary["moved"] == both - summary["kept"] > 0
    assert summary["gone"] == summary["new"] == 480 - both > 0
    assert summary["changed_share"] == pytest.approx(1 - summary["kept"] / 480)
    assert (summary["num_first"], summary["num_second"], summary["num_steps"]) == (480, 480, 20)
    assert sum(len(one["only_first"]) for one in document["steps"]) == summary["moved"] + summary["gone"]
    code, text = compare(str(data / "blend.yaml"), *options, "--diff-path", str(edited))
    assert code == 1
    assert text.count("\nStep ") + text.startswith("Step ") == 10
    assert "... 10 more steps differ" in text
    assert f"{summary['moved']} ({summary['moved'] / 480:.2%}) come at another step" in text


def test_a_share_of_moved_samples_may_be_allowed(data: Path) -> None:
    options = [str(data / "a"), "--step", "0..1", "--batch-size", "10", "--diff", "--batch-size 11"]
    code, text = compare(*options, "--json")
    share = json.loads(text)["summary"]["changed_share"]
    assert code == 1
    assert 0 < share < 1
    assert compare(*options, "--max-moved", str(share))[0] == 0
    assert compare(*options, "--max-moved", str(share * 0.99))[0] == 1
    for wrong in (["--max-moved", "1.5", "--diff", ""], ["--max-moved", "0.5"]):
        assert compare(str(data / "a"), "--step", "0", *wrong)[0] == 2


def test_the_end_of_the_data_counts_as_samples_that_no_longer_come(data: Path) -> None:
    options = [str(data / "a"), "--validation", "--split-part", "train", "--batch-size", "2", "--step", "0..99"]
    code, text = compare(*options, "--num-streams", "1", "--json", "--diff", "--limit 3")
    found = json.loads(text)
    assert code == 1
    assert (found["summary"]["kept"], found["summary"]["gone"], found["summary"]["new"]) == (6, 84, 0)
    assert found["notes"][1:] == ["The data ends after step 44.", "The data ends after step 2."]


def test_a_jsonl_file_is_planned(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * number}) + "\n" for number in range(20)))
    assert CliRunner().invoke(main, ["prepare", str(path)]).exit_code == 0
    text = run(str(path), "--step", "0", "--batch-size", "2", "--num-streams", "1")
    assert "lines.jsonl" in text
    assert "json" in text


@pytest.mark.parametrize("step", ["x", "5..3", "1-4", "-1"])
def test_a_wrong_step_is_refused(data: Path, step: str) -> None:
    assert CliRunner().invoke(main, ["plan", str(data / "a"), f"--step={step}"]).exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "0..99999999999"], "100,000,000,000 steps of 1 rank are too many: at most 1,000,000 batches"),
        (["--step", "0", "--world-size", "10000000"], "a job has at most 1,048,576 streams"),
        (["--step", "0", "--world-size", "200000"], "Give some of the ranks"),
        (["--step", "0", "--num-workers", "200000"], "200,000 streams of a rank are too many"),
        (["--step", "9" * 30], r"is too large: with world_size=1, steps go to 281,474,976,710,655"),
        (["--step", "9" * 14, "--batch-size", "1000"], "99,999,999,999,999 is too large to be planned"),
        (["--step", "0", "--batch-size", "100000000"], "hold more than 10,000,000 samples"),
        (
            ["--step", "0", "--batch-size", "9" * 30],
            "batch_size=9+ is invalid: .* at most 9223372036854775807, or None",
        ),
        (["--step", "0", "--tokens", "os:getcwd"], "sample a... with getcwd failed with TypeError: .*Give a function"),
        (["--step", "0", "--tokens", "sys:maxsize"], "count_tokens=9223372036854775807 is not a function"),
        (["--step", "0", "--tokens", "builtins:repr"], "'str' object cannot be interpreted as an integer"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value[:4])[:40],
)
def test_what_cannot_be_planned_is_refused_at_once(data: Path, options: list[str], message: str) -> None:
    failed = CliRunner().invoke(main, ["plan", str(data / "a"), *options])
    assert failed.exit_code == 1, failed.output
    assert re.search(message, failed.output), failed.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--diff", '"unclosed'], "--diff '\"unclosed' cannot be split into options: No closing quotation"),
        (["--diff-path", "nowhere"], "nowhere"),
        (["--diff", "--global-batch-size 7 --batch-size 2"], "is not a multiple of"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value)[:40],
)
def test_a_comparison_that_fails_has_another_exit_status(data: Path, options: list[str], message: str) -> None:
    code, text = compare(str(data / "a"), "--step", "0", *options)
    assert code == 2, text
    assert re.search(message, text), text


def test_progress_counts_the_steps_of_all_ranks(data: Path) -> None:
    reports: list[tuple[int, int]] = []
    plan_steps(dataset(data / "blend.yaml", job(0, 4)), range(1000, 1010), progress=lambda *seen: reports.append(seen))
    assert sum(done for done, _ in reports) == 4 * 1010
    assert {total for _, total in reports} == {4 * 1010}
