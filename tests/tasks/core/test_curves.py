from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

from energon_dali.tasks.callbacks import LossCurve


def trainer(folder: Path, step: int = 0, **metrics: float) -> Any:
    return SimpleNamespace(
        is_global_zero=True,
        sanity_checking=False,
        global_step=step,
        log_every_n_steps=2,
        callback_metrics=metrics,
        default_root_dir=str(folder),
        state=SimpleNamespace(fn="fit"),
    )


def feed(callback: LossCurve, folder: Path, first: int, last: int) -> None:
    for step in range(first, last):
        callback.on_train_batch_end(
            trainer(folder, step, train_loss=1 / step, val_loss=9.0, lr=3.0), None, None, None, 0
        )
        if step % 100 == 0:
            callback.on_validation_end(trainer(folder, step, train_loss=7.0, val_loss=2 / step), None)


def test_a_long_run_is_a_short_evenly_spread_curve_and_survives_a_restart(tmp_path: Path) -> None:
    whole, first, second = LossCurve(), LossCurve(), LossCurve()
    feed(whole, tmp_path, 1, 9000)
    feed(first, tmp_path, 1, 5001)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    feed(second, tmp_path, 5001, 9000)
    assert second.state_dict() == whole.state_dict()
    state = whole.state_dict()
    assert sorted(state) == ["train_loss", "val_loss"]
    train = state["train_loss"]
    assert 500 <= len(train["steps"]) <= 1000
    assert {after - before for before, after in zip(train["steps"], train["steps"][1:], strict=False)} == {16}
    assert train["values"] == [1 / step for step in train["steps"]]
    assert state["val_loss"]["steps"] == list(range(100, 9000, 100))
    assert state["val_loss"]["values"][0] == 2 / 100


def test_the_curve_is_drawn_at_the_end_or_at_a_failure(tmp_path: Path) -> None:
    callback = LossCurve("curve.png")
    callback.on_train_end(trainer(tmp_path / "empty"), None)
    assert not (tmp_path / "empty").exists()
    feed(callback, tmp_path, 1, 300)
    callback.on_exception(trainer(tmp_path / "new"), None, KeyboardInterrupt())
    callback.on_train_end(trainer(tmp_path), None)
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.size == (840, 480)
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 10
    assert (tmp_path / "new" / "curve.png").exists()
