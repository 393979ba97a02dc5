"""`python tools/tutorials.py FOLDER`: writes each tutorial in docs/tutorials as a notebook into FOLDER.

A tutorial is a Python program in Jupytext's percent format: `# %%` starts a cell of code, and `# %% [markdown]` a cell
of text, whose lines are comments. So it runs as a program, opens as a notebook in editors that have the format, and
becomes a page of the site (tools/site_pages.py).
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "docs/tutorials"
REPOSITORY = "https://github.com/energon-dali/energon-dali"
OWN = re.compile(
    r"https://(?:github\.com/energon-dali/energon-dali/(?:blob|tree)"
    r"|raw\.githubusercontent\.com/energon-dali/energon-dali)/main/(.+)"
)
"""The address of a file, folder or image of the repository."""
MARKER = re.compile(r"^# %%( \[markdown\])?$", re.MULTILINE)
FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook."""

    kind: str
    """ "markdown" or "code"."""
    text: str
    """Without the comment signs, and without empty lines around it."""


def sources() -> list[Path]:
    """Returns the tutorials, sorted by name."""
    return sorted((ROOT / FOLDER).glob("*.py"))


def read_cells(source: str) -> list[Cell]:
    """Returns the cells of a program.

    Raises:
        ValueError: The program does not begin with a cell, or a line of text is not a comment.
    """
    before, *parts = MARKER.split(source)
    if before.strip():
        raise ValueError(f"The first line must start a cell, such as '# %% [markdown]', but it is {before[:60]!r}.")
    cells = []
    for markdown, text in zip(parts[::2], parts[1::2], strict=True):
        text = text.strip("\n")
        if markdown:
            lines = text.split("\n")
            wrong = [line for line in lines if line != "#" and not line.startswith("# ")]
            if wrong:
                raise ValueError(f"A line of a text cell is not a comment: {wrong[0]!r}. Start it with '# '.")
            text = "\n".join(line[2:] for line in lines)
        cells.append(Cell("markdown" if markdown else "code", text))
    return cells


def map_links(text: str, page: str, target_of: Callable[[str], str]) -> str:
    """Returns a text with its links to files of this repository replaced; links to other sites and to anchors stay.

    Args:
        text: Markdown.
        page: Path of its file in the repository; relative links start there.
        target_of: Returns the new target of a path in the repository.
    """

    def mapped(link: re.Match[str]) -> str:
        image, label, target, anchor = link[1], link[2], link[3], link[4] or ""
        own = OWN.match(target)
        if not own and ":" in target:
            return link[0]
        path = own[1] if own else posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if not (ROOT / path).exists():
            return link[0]  # it is not a link, or a broken one, which mkdocs reports
        return f"{image}[{label}]({target_of(path)}{anchor})"

    parts = FENCED.split(text)  # text and blocks of code in turn
    return "".join(part if number % 2 else LINK.sub(mapped, part) for number, part in enumerate(parts))


def file_url(path: str) -> str:
    """Returns the address of a file or folder of the repository, or of the bytes of an image."""
    if path.endswith((".png", ".svg")):
        return f"https://raw.githubusercontent.com/energon-dali/energon-dali/main/{path}"
    return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


def notebook(path: Path) -> dict[str, Any]:
    """Returns a tutorial as a notebook of nbformat 4.5. Its links lead to the repository."""
    page = path.resolve().relative_to(ROOT).as_posix()
    cells: list[dict[str, Any]] = []
    for number, cell in enumerate(read_cells(path.read_text(encoding="utf-8"))):
        text = map_links(cell.text, page, file_url) if cell.kind == "markdown" else cell.text
        made = {
            "id": f"cell-{number}",
            "cell_type": cell.kind,
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        cells.append(made if cell.kind == "markdown" else {**made, "execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def page_text(path: Path) -> str:
    """Returns a tutorial as Markdown, with links to the program and the notebook after its title."""
    cells = read_cells(path.read_text(encoding="utf-8"))
    texts = [cell.text if cell.kind == "markdown" else f"```python\n{cell.text}\n```" for cell in cells]
    title, _, rest = texts[0].partition("\n")
    program = f"{REPOSITORY}/blob/main/{FOLDER}/{path.name}?plain=1"  # without plain=1 it would be a link to this page
    files = f"This page is a program: run it as [`{path.name}`]({program}), or as a [notebook]({path.stem}.ipynb)."
    return "\n\n".join([title, files, rest.strip("\n"), *texts[1:]]) + "\n"


def main(arguments: list[str]) -> int:
    """Writes the notebooks."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for path in sources():
        text = json.dumps(notebook(path), indent=1, ensure_ascii=False)
        (folder / f"{path.stem}.ipynb").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
