"""The page on writing a task: its files are written as shown there, and its commands are run."""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from energon_dali.cli.main import main

pytestmark = pytest.mark.timeout(400)  # a program that trains, on what may be a busy machine
ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "own-task.md").read_text()
FILES = dict(re.findall(r"^`(\S+)`\n\n```(?:py|yaml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
]
SMALL = (
    "trainer.max_epochs=1",
    "trainer.gpus=1",
    "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu",
    "dataset.cfg.batch_size=4",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=false",
)


def write_shards(folder: Path) -> None:
    """Writes 10 shards of 2 pictures of one colour, with its name as caption."""
    folder.mkdir(parents=True)
    for shard in range(10):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(2):
                color = ("red", "green", "blue", "white")[(shard + number) % 4]
                picture = io.BytesIO()
                Image.new("RGB", (40, 30), color).save(picture, "JPEG")
                for suffix, content in (("jpg", picture.getvalue()), ("txt", f"All is {color}.".encode())):
                    member = tarfile.TarInfo(f"{shard}{number}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "data" / "captions")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "matching" / "__init__.py").touch()
    return tmp_path


def test_the_pages_files_train_and_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warm_python: str
) -> None:
    monkeypatch.chdir(folder)
    install, prepare, train = COMMANDS
    assert install[:2] == ["pip", "install"]
    prepared = CliRunner().invoke(main, prepare[1:])
    assert prepared.exit_code == 0, prepared.output
    assert train[:3] == ["python", "-m", "energon_dali.tasks.train"]
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    done = subprocess.run(
        [warm_python, *train[1:], *SMALL],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning: trainer.gpus=1 is the older name of trainer.devices=1" in done.stderr
    monkeypatch.syspath_prepend(folder)
    runpy.run_path("use.py")
    assert capsys.readouterr().out == "Matching 259\n"
    for name in [name for name in sys.modules if name.partition(".")[0] == "matching"]:
        monkeypatch.delitem(sys.modules, name)
    written = {path.name for path in (folder / "runs" / "matching").iterdir()}
    assert {"checkpoints", "metrics.csv", "loss.png", ".hydra"} <= written
    header = (folder / "runs" / "matching" / "metrics.csv").read_text().splitlines()[0]
    assert {"train_loss", "val_loss", "train_accuracy", "val_accuracy"} <= set(header.split(","))


def test_the_page_lists_the_files_that_it_shows() -> None:
    (tree,) = re.findall(r"^matching/\n((?: +.*\n)+)", PAGE, re.MULTILINE)
    listed = {Path(line.split()[0]).name for line in tree.splitlines() if not line.endswith("/")}
    assert listed == {Path(name).name for name in FILES if name != "use.py"} | {"__init__.py"}
