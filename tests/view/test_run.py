"""The page of a run: each step has the samples that ranks received, next to its loss."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import energon_dali as ed
from energon_dali.cli.main import main
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.view.catalog import ViewOptions
from energon_dali.view.loss import Loss, chart_of, read_loss
from energon_dali.view.site import Site
from tests.loader.dataset_folder import prepare, write_shards
from tests.loader.test_delivered_steps import BAD, Encoder, streams
from tests.loader.test_global_batches import write_blend
from tests.view.page_server import PageServer, serving
from tests.view.test_choosing import chosen

STEPS = 6


@dataclass
class SavedRun:
    """A run of two ranks that ended after six steps of two micro-batches each."""

    folder: Path
    received: dict[tuple[int, int, int], list[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return saved_run(tmp_path_factory.mktemp("run"))


def saved_run(folder: Path) -> SavedRun:
    """Runs a job of two ranks; writes its states, its debug logs and its loss."""
    write_blend(folder)
    received = {}
    (folder / "states").mkdir()
    for rank in range(2):
        log = str(folder / "logs" / "{worker_id}.jsonl")
        config = ed.WorkerConfig(rank=rank, world_size=2, num_workers=0, worker_log_level=1, worker_debug_path=log)
        dataset = ed.get_train_dataset(
            folder / "blend.yaml", worker_config=config, batch_size=3, global_batch_size=12, task_encoder=Encoder()
        )
        with ed.get_savable_loader(dataset) as loader:
            for batch in islice(iter(loader), STEPS * 2):
                received[batch.step, rank, batch.micro_batch] = list(batch.__key__)
            (folder / "states" / f"{rank}.json").write_text(json.dumps(loader.save_state_rank()))
    rows = [f"{step},{'' if step == 4 else 3 - step / 4},{step * 3}" for step in range(STEPS)]
    (folder / "loss.csv").write_text("step,train_loss,tokens\n" + "\n".join(rows) + "\n3,nan,1\n")
    return SavedRun(folder, received)


@pytest.fixture(scope="module")
def server(run: SavedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    options = {"run": (str(run.folder / "states"),), "loss": str(run.folder / "loss.csv")}
    with serving(run.folder / "blend.yaml", tmp_path_factory.mktemp("scans"), **options) as running:
        yield running


def batches(page: str) -> dict[str, list[str]]:
    """Returns the keys of each batch of a page, by its heading."""
    sections = re.split(r'<section class="step-batch">', page)[1:]
    return {
        re.sub(r" <small>.*", "", re.search(r"<h2>(.*?)</h2>", one)[1]): re.findall(r'title="([^"]+)">', one)
        for one in sections
    }


def test_a_step_has_what_each_rank_received(run: SavedRun, server: PageServer) -> None:
    for step in range(STEPS):
        page = server.ask(f"/run/step/{step}").text
        assert f"<h1>Step {step}</h1>" in page
        assert f'rel="next" href="/run/step/{step + 1}"' in page
        found = batches(page)
        assert set(found) == {f"Rank {rank}, micro-batch {part}" for rank in (0, 1) for part in (0, 1)}
        for (number, rank, part), keys in run.received.items():
            if number == step:
                assert found[f"Rank {rank}, micro-batch {part}"] == keys
    assert "in place of one that failed" in "".join(server.ask(f"/run/step/{step}").text for step in range(STEPS))


def test_a_failed_sample_is_named_next_to_its_spare(run: SavedRun, server: PageServer) -> None:
    pages = [server.ask(f"/run/step/{step}").text for step in range(STEPS)]
    failed = {key for page in pages for key in re.findall(r"failed: <bdi>([^<]+)</bdi>", page)}
    assert failed
    assert failed <= BAD


def test_the_loss_is_drawn_and_leads_to_steps(server: PageServer) -> None:
    page = server.ask("/run").text
    assert re.findall(r'<a href="/run/step/(\d+)"><rect', page) == ["0", "1", "2", "3", "5"]
    assert "<title>step 1: 2.75</title>" in page
    assert 'class="bad"' in page  # step 3 has no number
    assert '<dd id="loss">2.5</dd>' in server.ask("/run/step/2").text
    assert '<dd id="loss">nan</dd>' in server.ask("/run/step/3").text
    assert '<dd id="loss">not logged</dd>' in server.ask("/run/step/4").text
    part = server.ask("/run?from=1&to=2").text
    assert re.findall(r'<a href="/run/step/(\d+)"><rect', part) == ["1", "2"]
    assert server.ask("/run?step=1,000").headers["location"] == "/run/step/1000"
    assert server.ask("/run?step=x&from=%D9%A3&to=-1").headers["location"] == "/run/step/0"


def test_later_steps_are_planned_and_ranks_are_chosen(server: PageServer) -> None:
    page = server.ask("/run/step/1000").text
    assert page.count("planned, after the state") == 12 + 1
    assert set(batches(server.ask("/run/step/1?rank=1").text)) == {"Rank 1, micro-batch 0", "Rank 1, micro-batch 1"}
    assert len(batches(server.ask("/run/step/1?rank=7").text)) == 4
    assert server.ask(f"/run/step/{'9' * 15}").status in (200, 404)


def test_the_samples_of_a_step_are_chosen(server: PageServer) -> None:
    page = server.ask("/run/step/2?rank=0").text
    actions = re.findall(r'formaction="(/data/\d/chosen[^"]+)"', page)
    assert actions
    for action in actions:
        assert server.own_post(action.replace("&amp;", "&")).status == 303
    assert sum(len(server.site.chosen(entry)) for entry in server.site.catalog.entries) >= 5


def test_debug_logs_say_what_each_rank_received(run: SavedRun, tmp_path: Path) -> None:
    with serving(run.folder / "blend.yaml", tmp_path / "scans", run=(str(run.folder / "logs"),)) as server:
        for step in range(STEPS * 2):
            found = batches(server.ask(f"/run/step/{step}").text)
            expected = {f"Rank {rank}": run.received[step // 2, rank, step % 2] for rank in (0, 1)}
            assert found == expected
        assert server.ask(f"/run/step/{STEPS * 2}").status == 404
        assert 'rel="next"' in server.ask(f"/run/step/{STEPS * 2 - 2}").text
        assert 'rel="next"' not in server.ask(f"/run/step/{STEPS * 2 - 1}").text
        assert "debug logs of 2 ranks" in server.ask("/run").text


def test_a_loss_may_go_on_after_the_debug_logs(run: SavedRun, tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("step,loss\n5,1\n40,2.5\n")
    options = {"run": (str(run.folder / "logs"),), "loss": str(tmp_path / "loss.csv")}
    with serving(run.folder / "blend.yaml", tmp_path / "scans", **options) as server:
        assert 'href="/run/step/40"' in server.ask("/run").text
        page = server.ask("/run/step/40").text
        assert '<dd id="loss">2.5</dd>' in page
        assert "Nothing says which samples this step had" in page
        assert 'rel="next"' not in page
        assert "the loss of step N is not that of batch N" in page
        assert server.ask("/run/step/41").status == 404


def test_a_key_that_several_datasets_have_may_mean_each_of_them(tmp_path: Path) -> None:
    for name in "ab":
        prepare(write_shards(tmp_path / name, {f"{number:03d}": {"txt": b"x"} for number in range(4)}, 1))
    nodes = [{"path": name, "weight": 1} for name in "ab"]
    form = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": nodes}}}
    (tmp_path / "mix.yaml").write_text(json.dumps(form))
    line = {"rank": 0, "stream": 0, "count": 0, "event": "delivered", "keys": ["002", "none", "002"], "mode": "train"}
    (tmp_path / "0.jsonl").write_text(json.dumps(line) + "\n")
    with serving(tmp_path / "mix.yaml", tmp_path / "scans", run=(str(tmp_path / "0.jsonl"),)) as server:
        page = server.ask("/run/step/0").text
    assert page.count("or #2 of <bdi>b</bdi>, which has this key too") == 2
    assert page.count("not in the datasets of the page") == 1
    assert "Choose these" not in page  # nobody knows which


def test_a_state_of_streams_shows_what_was_planned(run: SavedRun, tmp_path: Path) -> None:
    received, states = streams(run.folder / "blend.yaml", 2)
    (tmp_path / "states.json").write_text(json.dumps(states))
    with serving(run.folder / "blend.yaml", tmp_path / "scans", run=(str(tmp_path / "states.json"),)) as server:
        page = server.ask("/run/step/3").text
        assert batches(page) == {f"Rank {rank}": received[3, rank] for rank in (0, 1)}
        assert "as they were planned" in page


def test_a_run_without_states_shows_its_loss(run: SavedRun, tmp_path: Path) -> None:
    with serving(run.folder / "a", tmp_path / "scans", loss=str(run.folder / "loss.csv")) as server:
        assert "Nothing says which samples" in server.ask("/run").text
        assert "Nothing says which samples" in server.ask("/run/step/2").text
        assert "steps 5 to 5" in server.ask("/run?from=5&to=1").text
    with serving(run.folder / "a", tmp_path / "scans") as server:
        assert server.ask("/run").status == 404
        assert 'href="/run"' not in server.ask("/data/0").text


def test_a_range_without_a_logged_step_is_an_empty_chart(run: SavedRun, tmp_path: Path) -> None:
    file = tmp_path / "rare.csv"
    file.write_text("step,loss\n0,3\n100,2\n200,1\n")
    with serving(run.folder / "a", tmp_path / "scans", loss=str(file)) as server:
        for given, steps in (("from=10&to=50", "10 to 50"), ("from=50&to=10", "50 to 50")):
            answer = server.ask(f"/run?{given}")
            assert (answer.status, f"steps {steps}" in answer.text) == (200, True)
            assert 'class="hit"' not in answer.text


def test_what_cannot_be_a_run_is_an_error(run: SavedRun, tmp_path: Path) -> None:
    both = (str(run.folder / "states"), str(run.folder / "logs"))
    for given, message in (
        (both, "those of one kind"),
        ((str(tmp_path / "none.json"),), "does not exist"),
        ((str(run.folder / "loss.csv"),), "ends in none of"),
    ):
        with pytest.raises(ed.EnergonDaliError, match=message):
            Site(ViewOptions(str(run.folder / "blend.yaml"), run=given), scan_folder=tmp_path)
    with pytest.raises(ed.EnergonDaliError):  # another dataset
        Site(ViewOptions(str(run.folder / "a"), run=both[:1]), scan_folder=tmp_path)
    outcome = CliRunner().invoke(main, ["view", str(run.folder / "a"), "--run", str(tmp_path / "none")])
    assert outcome.exit_code == 1
    assert "does not exist" in outcome.output


def test_a_file_of_keys_is_chosen_at_the_start(run: SavedRun, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("a003\na017\n")
    with serving(run.folder / "a", tmp_path / "scans", choose=str(file)) as server:
        assert chosen(server) == [3, 17]
    with pytest.raises(ConfigError, match="samples of one dataset"):
        Site(ViewOptions(str(run.folder / "blend.yaml"), choose=str(file)), scan_folder=tmp_path)
    file.write_text("b003\n")
    with pytest.raises(ConfigError, match="does not have"):
        Site(ViewOptions(str(run.folder / "a"), choose=str(file)), scan_folder=tmp_path)


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("step,loss\n3,1.5\n1,2\n", "", ("loss", [1, 3], [2.0, 1.5])),
        ("\ufeffIteration,grad norm,LM loss\n0,9,2\n1,9,inf\n", "", ("LM loss", [0, 1], [2.0, math.inf])),
        ("a,step,val_loss_x\nx,1,2\nx,y,2\n\nx\nx,2\n", "", ("val_loss_x", [1], [2.0])),
        ("step,loss,kl\n1,2,3\n", "kl", ("kl", [1], [3.0])),
        ("step,loss\n2,1\n2.7,9\ninf,9\nnan,9\n-1,9\n1,5\n1,6\n", "", ("loss", [1, 2], [6.0, 1.0])),
        ("epoch,global_step,loss\n0,7.0,2\n0,8.0,none\n", "", ("loss", [7, 8], [2.0, math.nan])),
    ],
)
def test_losses_are_read_from_csv(tmp_path: Path, text: str, name: str, found: Any) -> None:
    file = tmp_path / "loss.csv"
    file.write_text(text)
    loss = read_loss(str(file), name)
    assert (loss.name, loss.steps.tolist()) == found[:2]
    np.testing.assert_array_equal(loss.values, found[2])


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("step,loss\n", "", "holds no step"),
        ("", "", "none called step"),
        ("time,loss\n1,2\n", "", "none called step"),
        ("step;loss\n1;2\n", "", "put commas between columns"),
        ("step,accuracy\n1,2\n", "", "none called loss, and has step, accuracy"),
        ("step,loss_a,loss_b\n1,2,3\n", "", "several that may be meant: loss_a, loss_b"),
        ("step,loss\n1,2\n", "los", "Did you mean 'loss'"),
    ],
)
def test_what_is_not_a_loss_is_said(tmp_path: Path, text: str, name: str, message: str) -> None:
    file = tmp_path / "loss.csv"
    file.write_text(text)
    with pytest.raises((ConfigError, DatasetFormatError), match=message):
        read_loss(str(file), name)


def test_a_loss_is_read_from_a_regular_file() -> None:
    with pytest.raises(ConfigError, match="a device"):
        read_loss("/dev/zero")


def test_losses_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "loss.csv"
    file.write_text("step,loss\n1,2\n2,3\n3,4\n")
    monkeypatch.setattr("energon_dali.view.loss.MAX_POINTS", 2)
    with pytest.raises(DatasetFormatError, match="more than 2 steps"):
        read_loss(str(file))
    monkeypatch.setattr("energon_dali.view.loss.MAX_LOSS_BYTES", 2)
    with pytest.raises(DatasetFormatError, match="give a shorter log"):
        read_loss(str(file))
    with pytest.raises(ConfigError, match="does not exist"):
        read_loss(str(tmp_path / "none.csv"))


def test_losses_are_read_from_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step in range(5):
        value = Summary.Value(tag="train/loss", simple_value=float(5 - step))
        writer.add_event(Event(step=step * 10, summary=Summary(value=[value])))
    writer.close()
    loss = read_loss(str(tmp_path))
    assert (loss.name, loss.steps.tolist(), loss.values.tolist()) == (
        "train/loss",
        [0, 10, 20, 30, 40],
        [5, 4, 3, 2, 1],
    )
    (file,) = tmp_path.iterdir()
    assert read_loss(str(file), "train/loss").steps.tolist() == loss.steps.tolist()
    with pytest.raises(ConfigError, match="has no tag 'x'"):
        read_loss(str(tmp_path), "x")
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(ConfigError, match=r'pip install "energon-dali\[tensorboard\]"'):
        read_loss(str(tmp_path))


def test_a_chart_of_many_steps_leads_to_those_that_stand_out() -> None:
    values = np.linspace(3, 2, 10_000)
    values[4321], values[7000] = 9.0, math.nan
    loss = Loss("loss", "x", np.arange(10_000), values)
    chart = chart_of(loss, 0, 9_999)
    assert len(chart.columns) <= 240
    assert {4321, 7000} <= {column.step for column in chart.columns}
    assert sum(column.last - column.first + 1 for column in chart.columns) == 10_000
    assert (chart.least, chart.most) == (2.0, 9.0)
    assert len([*chart.lines]) == 1
    assert all(0 <= left < right <= 1 for left, right, *_ in chart.places)
    flat = chart_of(Loss("loss", "x", np.arange(3), np.full(3, 2.0)), 0, 2)
    assert [place[2] for place in flat.places] == [0.5, 0.5, 0.5]
    nothing = chart_of(Loss("loss", "x", np.arange(2), np.full(2, math.nan)), 0, 1)
    assert [*nothing.lines] == []
    assert loss.at(4321) == 9.0
    assert loss.at(10_000) is None
