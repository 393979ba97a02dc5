"""docs/coming-from/: the programs of each page, before and after, deliver the same samples."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from benchmarks.data.recipe import Recipe, make_dataset
from energon_dali.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
PROGRAM = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(energon-dali (?:pack|prepare) .*)$", re.MULTILINE)
PEERS_PYTHON = Path(os.environ.get("PEERS_PYTHON", ROOT / ".venv-peers" / "bin" / "python"))
"""An environment with the other libraries: `make .venv-peers/.up-to-date` creates it."""
DATASETS_PYTHON = Path(os.environ.get("DATASETS_PYTHON", ROOT / ".venv-datasets" / "bin" / "python"))
"""One for Hugging Face datasets, whose pyarrow changes what LitData writes: `make .venv-datasets/.up-to-date`."""
IMPORTS = {"litdata": "litdata", "mosaicml": "streaming", "hugging-face": "datasets"}
"""What the first programs import that the tests' own environment does not have."""
WITH_TORCHVISION = (
    "import runpy, sys; from benchmarks.candidates.torchvision_import import import_torchvision_transforms; "
    "import_torchvision_transforms(); runpy.run_path(sys.argv[1], run_name='__main__')"
)
"""MosaicML Streaming imports torchvision, whose wheel refuses a CPU build of torch."""

ALL = """
import os, runpy, sys
for program in sys.argv[1:]:
    print("in", program, flush=True)
    os.chdir(os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")
"""
"""Runs several programs, each in its folder, in one process, so that libraries are imported once."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same twelve samples as files (photos), as tar shards (tars) and as Parquet (data)."""
    root = tmp_path_factory.mktemp("source")
    recipe = Recipe(name="captions", samples=12, shards=2, style="jpeg")
    shards = sorted(make_dataset(recipe, root / "made", progress=False, processes=1).glob("*.tar"))
    for folder in ("photos", "tars", "data"):
        (root / folder).mkdir()
    for shard in shards:
        with tarfile.open(shard) as tar:
            members = [member for member in tar if member.name.endswith((".jpg", ".txt"))]
            tar.extractall(root / "photos", members, filter="data")
        shutil.copy(shard, root / "tars")
    rows = [
        {
            "name": file.stem,
            "image": {"bytes": file.read_bytes(), "path": file.name},
            "caption": file.with_suffix(".txt").read_text(),
        }
        for file in sorted((root / "photos").glob("*.jpg"))
    ]
    pq.write_table(pa.Table.from_pylist(rows), root / "data" / "train-00000-of-00001.parquet")
    return root


@pytest.fixture(scope="module")
def printed(source: Path, warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The lines of each program for which nothing has to be installed, by page and title.

    Several pages have the same command and the same program, which run once.
    """
    scripts: dict[str, Path] = {}
    by_content: dict[tuple[str, str], Path] = {}
    for page in PAGES:
        command = COMMAND.findall(page.read_text())[0]
        for title in ["after.py", *(["before.py"] if page.stem not in IMPORTS else [])]:
            code = programs(page)[title]
            content = (command, re.sub(r"  # .*", "", code))
            if content not in by_content:
                folder = new_folder(tmp_path_factory.mktemp(page.stem), source)
                make_shards(page, folder, 0)
                by_content[content] = folder / title
                by_content[content].write_text(code)
            scripts[f"{page.stem}/{title}"] = by_content[content]
    driver = tmp_path_factory.mktemp("driver") / "all.py"
    driver.write_text(ALL)
    lines = run_program([warm_python, str(driver), *map(str, by_content.values())], driver.parent)
    parts: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("in "):
            current = parts[line.removeprefix("in ")] = set()
        else:
            current.add(line)
    return {name: parts[str(script)] for name, script in scripts.items()}


def test_programs_before_and_after_deliver_the_same_samples(printed: dict[str, set[str]]) -> None:
    expected = printed["pytorch/before.py"]
    assert len(expected) == 12
    assert len(printed) == len(PAGES) + 2
    assert [name for name, lines in printed.items() if lines != expected] == []


@pytest.mark.sweep  # other libraries, in an environment of their own, which take seconds to import
@pytest.mark.parametrize("name", sorted(IMPORTS))
def test_programs_of_other_libraries_deliver_the_same_samples(
    name: str, source: Path, printed: dict[str, set[str]], warm_python: str, tmp_path: Path
) -> None:
    kind, python = ("datasets", DATASETS_PYTHON) if name == "hugging-face" else ("peers", PEERS_PYTHON)
    if not python.exists():
        made = f"`make .venv-{kind}/.up-to-date` creates it"
        pytest.skip(f"{python} does not exist: {made}, {kind.upper()}_PYTHON names another one")
    page, folder, expected = (
        ROOT / "docs" / "coming-from" / f"{name}.md",
        new_folder(tmp_path, source),
        printed["pytorch/before.py"],
    )
    codes = programs(page)
    for title, code in codes.items():
        (folder / title).write_text(code)
    theirs = [str(python), *(["-c", WITH_TORCHVISION] if name == "mosaicml" else [])]
    for title in ("optimize.py", "write.py"):
        if title in codes:
            run_program([*theirs, title], folder)
    assert set(run_program([*theirs, "before.py"], folder)) == expected
    if "convert.py" in codes:
        run_program([*theirs, "convert.py"], folder)
        make_shards(page, folder, 1)
        assert set(run_program([warm_python, "after.py"], folder)) == expected


def programs(page: Path) -> dict[str, str]:
    """Returns the programs of a page by their titles."""
    return dict(PROGRAM.findall(page.read_text()))


def new_folder(folder: Path, source: Path) -> Path:
    """Returns the folder in which a reader is: with `photos` and `data`, and `tars` with shards of webdataset."""
    for name in ("photos", "data"):
        (folder / name).symlink_to(source / name)
    shutil.copytree(source / "tars", folder / "tars")
    return folder


def make_shards(page: Path, folder: Path, number: int) -> None:
    """Runs the page's command of that number in a folder."""
    if page.stem == "webdataset":
        (folder / "tars").rename(folder / "shards")
    _, command, *arguments = shlex.split(COMMAND.findall(page.read_text())[number])
    paths = [str(folder / argument) if argument.endswith("/") else argument for argument in arguments]
    done = CliRunner().invoke(main, [command, *paths])
    assert done.exit_code == 0, done.output


def run_program(command: list[str], folder: Path) -> list[str]:
    """Returns the lines that a program prints, without those of libraries."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WARM_WORKERS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if re.match(r"in /|\d{6} \(3, 224, 224\) \d+ ", line)]
