"""The tutorials run as programs in an empty folder and print what their comments say, and they are valid notebooks."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
PRINTED = re.compile(r"^[ ]*print\(.*\)[ ]+# (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/tutorials.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "tools" / "tutorials.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["tutorials"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """A folder with the commands that a tutorial runs. Their programs start at once."""
    folder = tmp_path_factory.mktemp("commands")
    modules = {"energon-dali": "-m energon_dali", "torchrun": "-m torch.distributed.run", "python": ""}
    for name, arguments in modules.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{warm_python}" {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def demo_data(tmp_path_factory: pytest.TempPathFactory, commands: Path) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "data"
    subprocess.run([commands / "energon-dali", "demo-data", folder], check=True, capture_output=True)
    return folder


@pytest.mark.timeout(400)  # programs with ranks and workers, possibly on a busy machine
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_it_runs_and_prints_what_it_says(
    tutorial: Path, tmp_path: Path, warm_python: str, commands: Path, demo_data: Path
) -> None:
    shutil.copytree(demo_data, tmp_path / "data")  # its own command then leaves it as it is
    shutil.copy(tutorial, tmp_path)
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "WARM_WORKERS": "1",
        "PYTHON_EXEC": warm_python,  # with which torchrun starts its ranks
    }
    program = [warm_python, "-W", "error::DeprecationWarning:__main__", tutorial.name]
    printed, errors = tmp_path / "printed.txt", tmp_path / "errors.txt"
    # Files, because a process that a failed program left behind would keep a pipe open, and the test would wait for it.
    with printed.open("w") as stdout, errors.open("w") as stderr:
        process = subprocess.Popen(program, cwd=tmp_path, env=environment, stdout=stdout, stderr=stderr)
        try:
            status: int | None = process.wait(300)
        except subprocess.TimeoutExpired:
            status = None
            process.kill()
            process.wait()
    assert status == 0, f"status {status}\n{printed.read_text()}\n{errors.read_text()}"
    lines = iter(printed.read_text().splitlines())
    expected = [text.strip() for text in PRINTED.findall(tutorial.read_text())]
    assert expected
    assert [text for text in expected if text not in lines] == [], printed.read_text()  # in this order


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_it_becomes_a_notebook_and_a_page(tutorial: Path, tool: ModuleType) -> None:
    made = json.loads(json.dumps(tool.notebook(tutorial)))
    assert made["nbformat"] == 4
    first, *others = made["cells"]
    assert first["cell_type"] == "markdown"
    assert first["source"][0].startswith("# ")
    code = ["".join(cell["source"]) for cell in others if cell["cell_type"] == "code"]
    assert code
    for text in code:
        ast.parse(text)  # a cell is whole statements
    text = "".join(line for cell in made["cells"] if cell["cell_type"] == "markdown" for line in cell["source"])
    assert "](../" not in text  # a notebook has no neighbours
    page = tool.page_text(tutorial)
    assert page.startswith(first["source"][0])
    assert page.count("```python\n") == len(code)


def test_links_lead_to_files(tool: ModuleType) -> None:
    for tutorial in TUTORIALS:
        text = tool.page_text(tutorial)
        relative = [link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) if not link.endswith(".ipynb")]
        assert [link for link in relative if not (tutorial.parent / link).exists()] == []


def test_all_cells_of_a_program_are_kept(tool: ModuleType) -> None:
    cells = tool.read_cells("# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\na = 1\n\n# %% [markdown]\n# End\n")
    assert [(cell.kind, cell.text) for cell in cells] == [
        ("markdown", "# Title\n\nText."),
        ("code", "a = 1"),
        ("markdown", "End"),
    ]
    with pytest.raises(ValueError, match="first line must start a cell"):
        tool.read_cells("import os\n# %%\na = 1\n")
    with pytest.raises(ValueError, match="is not a comment: 'text'"):
        tool.read_cells("# %% [markdown]\ntext\n")


def test_links_are_mapped_outside_of_code(tool: ModuleType) -> None:
    text = "[a](../pack.md#x) [b](https://example.org) [c](#d) ![e](../images/peers.png)\n```\n[a](../pack.md)\n```\n"
    mapped = tool.map_links(text, "docs/tutorials/video.py", lambda path: f"<{path}>")
    assert mapped == (
        "[a](<docs/pack.md>#x) [b](https://example.org) [c](#d) ![e](<docs/images/peers.png>)\n"
        "```\n[a](../pack.md)\n```\n"
    )
    own = "[a](https://github.com/energon-dali/energon-dali/blob/main/docs/pack.md#x)"
    assert tool.map_links(own, "README.md", lambda path: f"<{path}>") == "[a](<docs/pack.md>#x)"
