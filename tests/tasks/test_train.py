"""The train command on a task that needs no files: what it writes, what it swaps, what it says when it cannot."""

from __future__ import annotations

import csv
import inspect
import io
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from energon_dali.errors import ConfigError, StateError
from energon_dali.tasks import TrainResult, compose, load_task, run
from energon_dali.tasks import train as command_module
from energon_dali.tasks.callbacks import RunCheckpoint
from energon_dali.tasks.checkpoint import explained
from energon_dali.tasks.train import _quiet_rank
from energon_dali.tasks.training import _completed
from tests.tasks.old_checkpoint import rewrite_as_before

CONF = Path(__file__).parent / "tiny_conf"
ROOT = CONF.parent.parent.parent
QUIET = ("trainer.enable_progress_bar=false", "trainer.enable_model_summary=false", "trainer.accelerator=cpu")
TINY = ("+task=tiny", "+dataset=tiny", *QUIET)


def train(folder: Path, *overrides: str) -> TrainResult:
    return run(compose([*TINY, f"output_dir={folder}", "trainer.log_every_n_steps=1", *overrides], CONF))


def test_a_run_leaves_checkpoints_metrics_and_a_curve(tmp_path: Path) -> None:
    result = train(tmp_path, "trainer.max_epochs=3", "test_after_fit=true")
    assert result.output_dir == tmp_path
    assert {"train_loss", "val_loss", "test_loss"} <= set(result.metrics)
    assert result.data_module.prepared >= 1
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    assert len(losses) == 12
    assert losses[-1] == pytest.approx(result.metrics["train_loss"])
    assert {"last.ckpt", "epoch2-step12.ckpt"} <= {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_run_and_another_gives_another(tmp_path: Path) -> None:
    first, again, other = (train(tmp_path / str(n), f"seed={seed}") for n, seed in enumerate((3, 3, 4)))
    assert first.metrics == again.metrics
    assert first.metrics != other.metrics


def test_a_checkpoint_is_data_and_gives_the_task_back(tmp_path: Path) -> None:
    trained = train(tmp_path, "task.smoothing=0.25", "backbone.width=6").task
    path = tmp_path / "checkpoints" / "last.ckpt"
    saved = torch.load(path, weights_only=True)["hyper_parameters"]["run"]
    groups = {name: saved["config"][name] for name in ("backbone", "optimizer", "scheduler")}
    assert saved["config"]["task"] == {"_target_": "tests.tasks.tiny.TinyTask", "smoothing": 0.25, **groups}
    assert saved["data"] == {"num_vocab": 5, "num_positions": 8}
    loaded: Any = load_task(path)
    assert loaded.smoothing == 0.25
    tokens = torch.arange(4)[None]
    assert torch.equal(loaded.backbone(tokens), trained.eval().backbone(tokens))


def test_loading_says_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no checkpoint"):
        load_task(tmp_path / "none.ckpt")
    for name, content in no_checkpoints(tmp_path).items():
        path = tmp_path / f"{name}.ckpt"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"{name}\.ckpt is not a checkpoint of energon_dali"):
            load_task(path)
        if name != "weights":
            with pytest.raises(ConfigError, match=rf"cannot be continued from: .*{name}\.ckpt is not a checkpoint"):
                train(tmp_path / "run", f"ckpt_path={path}")
    with pytest.raises(ConfigError, match=r"it is a folder, and no file.*as last\.ckpt"):
        train(tmp_path / "run", f"ckpt_path={tmp_path}")
    with pytest.raises(ConfigError, match="it holds weights alone"):
        train(tmp_path / "run", f"ckpt_path={tmp_path / 'weights.ckpt'}")
    assert not (tmp_path / "ran").exists()


class Runs:
    """Runs a command where it is unpickled by the usual reader."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def no_checkpoints(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of files that no run can be continued from."""
    contents = {
        "other": {"state_dict": {}},
        "list": [1],
        "code": {"state_dict": Runs(folder / "ran")},
        "weights": {"state_dict": {}, "pytorch-lightning_version": "2.6"},
    }
    files = {"empty": b"", "text": b"hello", "pickle": pickle.dumps({"a": 1})}
    for name, content in contents.items():
        torch.save(content, buffer := io.BytesIO())
        files[name] = buffer.getvalue()
    return {**files, "cut": files["weights"][:-100]}


def test_a_run_that_does_not_fit_its_checkpoint_says_what_differs_and_saves_nothing(tmp_path: Path) -> None:
    train(tmp_path / "first", "trainer.max_epochs=1")
    checkpoint = tmp_path / "first" / "checkpoints" / "last.ckpt"
    for overrides, says in (
        (["backbone.width=6"], r"does not fit\. What this run sets otherwise: backbone\.width was 4, is 6\. Give what"),
        (["optimizer=sgd", "optimizer.weight_decay=0"], r"not fit\. .*: optimizer was torch\.optim\.AdamW, is t"),
    ):
        with pytest.raises(ConfigError, match=says):
            train(tmp_path / "second", f"ckpt_path={checkpoint}", "trainer.max_epochs=2", *overrides)
        assert not (tmp_path / "second" / "checkpoints").exists()
    saved, now = {"dataset": {"cfg": {"batch_size": 6}}, "seed": 1}, {"dataset": {"cfg": {"batch_size": 3}}, "seed": 1}
    said = r"^Another\. What this run sets otherwise: dataset\.cfg\.batch_size was 6, is 3\.$"
    with pytest.raises(StateError, match=said), explained(checkpoint, saved, now):
        raise StateError("Another.")
    for path, known in ((None, saved), (checkpoint, {}), (checkpoint, now)):
        with pytest.raises(StateError, match=r"^Another\.$"), explained(path, known, now):
            raise StateError("Another.")


def test_a_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    train(tmp_path / "first", "trainer.max_epochs=1")
    checkpoint = tmp_path / "first" / "checkpoints" / "last.ckpt"
    continued = train(tmp_path / "second", f"ckpt_path={checkpoint}", "trainer.max_epochs=3")
    whole = train(tmp_path / "whole", "trainer.max_epochs=3")
    assert continued.trainer.global_step == whole.trainer.global_step == 12
    assert continued.metrics["val_loss"] == whole.metrics["val_loss"]


def test_an_earlier_checkpoint_loads_and_continues(tmp_path: Path) -> None:
    trained = train(tmp_path / "first", "trainer.max_epochs=1", "backbone.width=6").task
    checkpoint = tmp_path / "first" / "checkpoints" / "last.ckpt"
    rewrite_as_before(checkpoint)
    tokens = torch.arange(4)[None]
    loaded: Any = load_task(checkpoint)
    assert torch.equal(loaded.backbone(tokens), trained.eval().backbone(tokens))
    more = [f"ckpt_path={checkpoint}", "trainer.max_epochs=3"]
    continued = train(tmp_path / "second", *more, "backbone.width=6")
    whole = train(tmp_path / "whole", "trainer.max_epochs=3", "backbone.width=6")
    assert continued.metrics["val_loss"] == whole.metrics["val_loss"]
    with pytest.raises(ConfigError, match=r"What this run sets otherwise: backbone\.width was 6, is 4\. Give"):
        train(tmp_path / "third", *more)


class Stop(Callback):
    """Ends a run after its second batch, as Ctrl-C or an error does."""

    def __init__(self, how: str) -> None:
        self.how = KeyboardInterrupt if how == "Ctrl-C" else RuntimeError

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step == 2:
            raise self.how


@pytest.mark.parametrize("how", ["Ctrl-C", "an error"])
def test_an_interrupted_run_leaves_a_checkpoint_to_continue_from(tmp_path: Path, how: str) -> None:
    stop = [f"+trainer.callbacks.stop._target_={__name__}.Stop", f"+trainer.callbacks.stop.how={how}"]
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit if how == "Ctrl-C" else RuntimeError):
            train(tmp_path, *stop)
    finally:
        signal.signal(signal.SIGINT, handler)  # which Lightning ignores once it came
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 2


def test_one_rank_that_fails_does_not_wait_for_the_others() -> None:
    saved: list[Any] = []
    checkpoint = RunCheckpoint(save_on_exception=True)
    checkpoint._save_checkpoint = checkpoint._save_last_checkpoint = lambda *given: saved.append(given)  # type: ignore
    trainer: Any = SimpleNamespace(
        world_size=2, fast_dev_run=False, sanity_checking=False, global_step=3, current_epoch=0, callback_metrics={}
    )
    checkpoint.on_exception(trainer, None, SIGTERMException())  # type: ignore[arg-type]
    checkpoint.on_train_start(trainer, None)  # type: ignore[arg-type]
    checkpoint.on_exception(trainer, None, RuntimeError())  # type: ignore[arg-type]
    assert not saved
    checkpoint.on_exception(trainer, None, SIGTERMException())  # type: ignore[arg-type]
    assert len(saved) == 2


@pytest.mark.parametrize(("code", "status"), [(None, 143), (1, 1)])
def test_the_status_of_a_run_that_was_ended_is_not_that_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, code: int | None, status: int
) -> None:
    def ended(cfg: Any) -> None:
        raise SIGTERMException(code)

    monkeypatch.setattr(command_module, "run", ended)
    with pytest.raises(SystemExit) as caught:
        command_module._run({})  # type: ignore[arg-type]
    assert caught.value.code == status


def test_the_command_line_swaps_optimizer_and_scheduler(tmp_path: Path) -> None:
    swapped = ["optimizer=sgd", "optimizer.lr=0.5", "scheduler=linear_with_warmup", "scheduler.num_warmup_steps=2"]
    result = train(tmp_path, *swapped, "trainer.max_steps=4")
    (optimizer,) = result.trainer.optimizers
    assert type(optimizer) is torch.optim.SGD
    # 4 steps of 2 + 2: after the last the rate is that of the end.
    assert [group["lr"] for group in optimizer.param_groups] == [0.0]
    assert result.trainer.lr_scheduler_configs[0].interval == "step"


def test_adamw_decays_matrices_alone(tmp_path: Path) -> None:
    (optimizer,) = train(tmp_path, "trainer.max_steps=1").trainer.optimizers
    assert type(optimizer) is torch.optim.AdamW
    shapes = [([tuple(each.shape) for each in g["params"]], g["weight_decay"]) for g in optimizer.param_groups]
    assert shapes == [([(5, 4)], 0.01), ([(5, 4), (4,), (4,), (5,)], 0.0)]


def test_a_scheduler_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the run has no end. Set trainer.max_steps"):
        train(tmp_path, "scheduler=cosine_with_warmup", "trainer.max_epochs=-1")


def test_the_older_name_of_devices_is_understood(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="trainer.gpus=1 is the older name of trainer.devices=1"):
        result = train(tmp_path, "trainer.gpus=1", "trainer.devices=2", "trainer.max_steps=1")
    assert result.trainer.num_devices == 1


@pytest.mark.parametrize(
    ("gpus", "newer"),
    [
        ("0", {"accelerator": "cpu", "devices": 1}),
        ("2", {"accelerator": "auto", "devices": 2}),
        ("-1", {"accelerator": "gpu", "devices": -1}),
        ("[0,1]", {"accelerator": "gpu", "devices": [0, 1]}),
        ("'0,1'", {"accelerator": "gpu", "devices": "0,1"}),
    ],
)
def test_every_older_way_to_name_gpus_is_understood(gpus: str, newer: dict[str, Any], tmp_path: Path) -> None:
    cfg = compose(["+task=tiny", "+dataset=tiny", f"trainer.gpus={gpus}", f"output_dir={tmp_path}"], CONF)
    with pytest.warns(DeprecationWarning, match=r"trainer\.gpus=.* is the older name of trainer\."):
        completed = _completed(cfg)
    assert {name: completed.trainer[name] for name in newer} == newer
    assert "gpus" not in completed.trainer


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["trainer.devces=1"], r"Could not override 'trainer.devces'[^?]*Did you mean trainer.devices\?"),
        (["optimizer.weight_dcay=1"], r"Did you mean optimizer.weight_decay\?"),
        (["dataset.cfg.bathes=1"], r"Did you mean dataset.cfg.batches\?"),
        (["trainer.callbacks.checkpont.mode=max"], r"Did you mean trainer.callbacks.checkpoint.mode\?"),
        (["~trainer.callbacks.curve"], r"Did you mean trainer.callbacks.curves\?"),
        (["dataset.cfg.xyzzy=1"], r"There are: dataset.cfg._target_, dataset.cfg.batches, dataset.cfg.num_vocab,"),
        (["optimizer=adamwe"], r"Could not find 'optimizer/adamwe'(.|\n)*Did you mean optimizer=adamw\?"),
        (["trainr.max_steps=1", "optimzer=sgd"], r"Could not override 'trainr.max_steps'[^?]*mean trainer.max_steps\?"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_one(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        compose([*TINY, *overrides], CONF)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["backbone=tiny"], r"The backbone comes with the task: add \+task=NAME\. There are: bare, multi"),
        (["+task=bare", "backbone=tiny"], r"The run has no backbone yet: add \+backbone=NAME\. There are: .*tiny"),
        (["+task=old"], r"of task/old\.yaml write \"- /backbone@_group_: NAME\" in place of \"- override /backbone"),
        (["+task=old", "backbone=tiny"], r"of task/old\.yaml write \"- /backbone@_group_: NAME\""),
    ],
)
def test_a_missing_backbone_says_who_names_it(tmp_path: Path, overrides: list[str], says: str) -> None:
    for name, line in (("bare", ""), ("old", "  - override /backbone@_global_.backbone: tiny\n")):
        (tmp_path / "task").mkdir(exist_ok=True)
        text = f"# @package task\ndefaults:\n  - /task/default\n{line}_target_: tests.tasks.tiny.TinyTask\n"
        (tmp_path / "task" / f"{name}.yaml").write_text(text)
    (tmp_path / "backbone").mkdir()
    (tmp_path / "backbone" / "tiny.yaml").write_text("# @package backbone\n_target_: tests.tasks.tiny.TinyBackbone\n")
    with pytest.raises(ConfigError, match=says):
        compose(overrides, tmp_path)
    if overrides[0] == "+task=bare":
        assert compose(["+task=bare", "+backbone=tiny"], tmp_path).task.backbone._target_.endswith("TinyBackbone")
        with pytest.raises(ConfigError, match=r"The run has no backbone\. Add \+backbone=NAME to the command"):
            run(compose(["+task=bare", "+dataset=multimodal/captioning/demo"], tmp_path))


def test_what_the_command_line_leaves_out_is_named(tmp_path: Path) -> None:
    for override in ("scheduler=null", "+optimizer=NULL"):
        with pytest.raises(ConfigError, match=r"chooses nothing\. Leave it out, or give one of \w+=\w+, "):
            compose([*TINY, override], CONF)
    for override in ("trainer.max_epochs=", "+task.smoothing=", "optimizer="):
        written = re.escape(override)
        with pytest.raises(ConfigError, match=rf"{written} has no value.* Write {written}VALUE"):
            compose([*TINY, override], CONF)
    assert compose([*TINY, "+task.name=''"], CONF).task.name == ""
    assert compose([*TINY, "trainer.max_time=null", "++tokenizer._target_=null"], CONF).trainer.max_time is None
    with pytest.raises(ConfigError, match=r"Did you mean task=tiny\?"):
        compose(["+task=tinny", "+dataset=tiny"], CONF)
    with pytest.raises(ConfigError, match=r"The run has no dataset yet: add \+dataset=NAME\. There are: .*tiny"):
        compose(["+task=tiny", "dataset.cfg.batches=1"], CONF)
    with pytest.raises(ConfigError, match=r"The run has no task\. Add \+task=NAME to the command"):
        run(compose(["+dataset=tiny"], CONF))
    for override, says in (("+unknown=1", "Leave it out"), ("+max_epoch=1", ""), ("+sed=1", r"Did you mean seed\?")):
        with pytest.raises(ConfigError, match=rf"Nothing reads {override[1:-2]}, which the run was given\. ?{says}"):
            run(compose([*TINY, override], CONF))
    read = compose([*TINY, f"output_dir={tmp_path}", "+width=6", "backbone.width=${width}"], CONF)
    assert _completed(read).backbone.width == 6
    with pytest.raises(ConfigError, match=r"The run has no dataset\. You gave datset\. Add \+dataset=NAME"):
        run(compose(["+task=tiny", "+datset=tiny"], CONF))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+trainer.devces=1"], r"trainer\.devces is not an argument of Trainer\. Did you mean devices\?"),
        (["+task.smothing=1"], r"task\.smothing is not an argument of TinyTask\. Did you mean smoothing\?"),
        (["+backbone.widht=1"], r"backbone\.widht is not an argument of TinyBackbone\. Did you mean width\?"),
        (["+optimizer.momentun=1"], r"optimizer\.momentun is not an argument of AdamW\."),
        (["dataset.cfg.batches=???"], r"dataset\.cfg\.batches has no value.*Add dataset\.cfg\.batches=\.\.\. to"),
        (["ckpt_path=none.ckpt"], r"ckpt_path=none\.ckpt does not exist\. Give a checkpoint"),
        (["seed=abc"], r"seed=abc is invalid: give a whole number from 0"),
        (["seed=-1"], r"seed=-1 is invalid"),
        (["output_dir=/dev/null/x"], r"output_dir=/dev/null/x cannot be made: .*Not a directory"),
        (["~optimizer"], r"The run has no optimizer\. Add optimizer=NAME to the command; there are: adam, adamw"),
        (["task._target_=tests.tasks.tiny.TinyTusk"], r"task cannot be made: (.|\n)*TinyTusk"),
        (["trainer.strategy=foo"], r"trainer cannot make Trainer: ValueError: .*strategy='foo'"),
        (["optimizer.betas=[a,b]"], r"optimizer cannot make AdamW: TypeError: "),
        (["tokenizer=autotokenizer"], r"tokenizer\.pretrained_model_name_or_path has no value"),
    ],
)
def test_a_part_that_cannot_be_made_says_why(tmp_path: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        train(tmp_path, *overrides)


def command(python: str, folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--config-dir", str(CONF), *TINY, f"hydra.run.dir={folder}", *overrides]
    return subprocess.run(
        [python, "-m", "energon_dali.tasks.train", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_shows_no_traceback_for_what_the_user_can_put_right(tmp_path: Path, warm_python: str) -> None:
    refused = command(sys.executable, tmp_path, "trainer.devces=1")
    assert refused.returncode == 1
    assert refused.stderr.startswith("Could not override 'trainer.devces'.")
    assert refused.stderr.endswith("Did you mean trainer.devices?\n")
    wrong = command(warm_python, tmp_path, "ckpt_path=none.ckpt")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("Error: ckpt_path=none.ckpt does not exist.")
    assert "Traceback" not in refused.stderr + wrong.stderr


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.sweep)], ids=["warm", "cold"])
@pytest.mark.parametrize("program", [["train.py"], ["-m", "energon_dali", "train"]], ids=" ".join)
def test_every_train_command_is_the_same(program: list[str], warm: bool, tmp_path: Path, warm_python: str) -> None:
    arguments = ["--config-dir", str(CONF), *TINY, f"hydra.run.dir={tmp_path}", "trainer.max_steps=1"]
    python = warm_python if warm else sys.executable  # which imports everything by itself
    done = subprocess.run([python, *program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "checkpoints" / "last.ckpt").is_file()
    refused = subprocess.run(
        [warm_python, *program, "+task=vision/igpt", "trainer.devces=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr.endswith("Did you mean trainer.devices?\n")


def test_without_the_extra_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import energon_dali.tasks

    find = energon_dali.tasks.find_spec
    monkeypatch.setattr(energon_dali.tasks, "find_spec", lambda name: None if name == "lightning" else find(name))
    monkeypatch.delitem(vars(energon_dali.tasks), "run")
    with pytest.raises(ConfigError, match=r'not installed: lightning\. .*pip install "energon-dali\[tasks\]"'):
        energon_dali.tasks.run  # noqa: B018


def test_only_the_first_rank_of_torchrun_makes_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    quiet = ["hydra.output_subdir=null", "hydra/job_logging=stdout"]
    for rank, given, added in (
        ("0", [], []),
        ("1", [], ["hydra.run.dir=.", *quiet]),
        ("1", ["hydra.run.dir=runs/1"], quiet),
    ):
        monkeypatch.setenv("RANK", rank)
        assert _quiet_rank(given) == added
        assert not any("hydra" in key for key in compose([*TINY, *added], CONF))


def test_the_trainer_s_config_has_a_place_for_what_lightning_s_takes() -> None:
    arguments = inspect.signature(Trainer.__init__).parameters
    cfg = compose().trainer
    left_out = {"self", "barebones", "enable_autolog_hparams", "limit_predict_batches", "model_registry", "plugins"}
    assert set(arguments) - set(cfg) <= left_out
    assert set(cfg) - set(arguments) == {"_target_", "gpus"}
    for name in (
        "benchmark",
        "detect_anomaly",
        "fast_dev_run",
        "gradient_clip_algorithm",
        "min_epochs",
        "min_steps",
        "overfit_batches",
        "profiler",
        "reload_dataloaders_every_n_epochs",
        "sync_batchnorm",
    ):
        assert cfg[name] in (arguments[name].default, None), name


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        (
            (),
            (),
            r"after 1 epoch\(s\), .* trainer\.max_epochs=1 is reached\. Set trainer\.max_epochs above 1\.",
        ),
        (
            ("trainer.max_steps=4",),
            ("trainer.max_steps=8",),
            r"max_epochs above 1, or to -1 to stop by trainer\.max_steps alone\.",
        ),
        (
            ("trainer.max_steps=2",),
            ("trainer.max_steps=2", "trainer.max_epochs=-1"),
            r"Set trainer\.max_steps above 2\.",
        ),
        ((), ("trainer.max_epochs=2", "trainer.limit_train_batches=0"), r"limit_train_batches is 0\. Leave it out"),
    ],
    ids=["epochs", "epochs before steps", "steps", "no batches"],
)
def test_a_run_that_continues_and_would_train_nothing_says_which_limit_is_reached(
    tmp_path: Path, first: tuple[str, ...], then: tuple[str, ...], says: str
) -> None:
    train(tmp_path / "first", *first)
    with pytest.raises(ConfigError, match=says):
        train(tmp_path / "then", f"ckpt_path={tmp_path / 'first' / 'checkpoints' / 'last.ckpt'}", *then)
