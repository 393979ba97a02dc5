"""`tools/release_check.py` refuses releases whose parts do not fit together."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import release_check
from tools.release_check import SHOWN, Shown, links, record_same, stale_images, unknown_images, versions

CHART = Shown(("results.json", "plot"), "python plot.py")
Commit = Callable[..., None]


@pytest.fixture
def commit(tmp_path: Path) -> Commit:
    """Returns a function that writes files and commits them at a time, in seconds."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "plot").mkdir()

    def run(time: int, **files: str) -> None:
        for name, content in files.items():
            path = {"chart": "docs/images/chart.png", "results": "results.json", "plot": "plot/bars.py"}.get(name, name)
            (tmp_path / path).write_text(content)
        date = f"{time} +0000"
        environment = {
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_DATE": date,
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
        }
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        for arguments in (["add", "-A"], [*identity, "commit", "-q", "-m", "Change"]):
            subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, env=environment)

    return run


def found(root: Path) -> list[str]:
    return list(stale_images(root, {"chart.png": CHART}))


def test_an_image_that_is_as_new_as_what_it_shows_is_accepted(commit: Commit, tmp_path: Path) -> None:
    commit(1_000_000_000, results="1", plot="1", chart="1")
    assert found(tmp_path) == []
    commit(1_000_000_100, results="2")
    commit(1_000_000_200, chart="2")
    assert found(tmp_path) == []


def test_an_older_image_is_refused_with_what_makes_it_again(commit: Commit, tmp_path: Path) -> None:
    commit(1_000_000_000, results="1", plot="1", chart="1")
    commit(1_000_000_100, plot="2")
    (problem,) = found(tmp_path)
    assert problem == "Make again: python plot.py\n  docs/images/chart.png is older than plot"


def test_what_is_not_committed_is_the_latest(commit: Commit, tmp_path: Path) -> None:
    commit(1_000_000_000, results="1", plot="1", chart="1")
    (tmp_path / "results.json").write_text("2")
    assert "older than results.json" in found(tmp_path)[0]
    (tmp_path / "docs" / "images" / "chart.png").write_text("2")
    assert found(tmp_path) == []


def test_an_image_that_comes_out_the_same_is_recorded(commit: Commit, tmp_path: Path) -> None:
    commit(1_000_000_000, results="1", plot="1", chart="1")
    commit(1_000_000_100, plot="2")
    assert found(tmp_path)
    record_same(tmp_path, ["chart.png"])
    assert found(tmp_path) == []
    with pytest.raises(SystemExit, match=r"There is no other\.png"):
        record_same(tmp_path, ["other.png"])


def test_images_and_sources_that_are_not_there_are_named(commit: Commit, tmp_path: Path) -> None:
    commit(1_000_000_000, results="1", chart="1", plot="1")
    (tmp_path / "docs" / "images" / "new.png").write_text("1")
    problems = list(unknown_images(tmp_path, {"chart.png": Shown(("gone.json",)), "old.png": CHART}))
    assert [problem.partition(":")[0] for problem in problems] == [
        "docs/images/new.png",
        "There is no gone.json, which chart.png is said to show",
        "There is no docs/images/old.png",
    ]


def test_a_clone_without_history_is_refused(commit: Commit, tmp_path: Path) -> None:
    commit(1_000_000_000, results="1", chart="1", plot="1")
    commit(1_000_000_100, results="2")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{tmp_path}", str(clone)], check=True)
    assert found(clone) == ["This clone has no history, so ages are unknown: git fetch --unshallow."]


def test_every_image_is_said_to_show_something_that_exists() -> None:
    assert list(unknown_images(release_check.ROOT, SHOWN)) == []


def test_versions_and_links(tmp_path: Path) -> None:
    (tmp_path / "energon_dali").mkdir()
    (tmp_path / "energon_dali" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2.0 - 2026-11-26\n")
    (tmp_path / "README.md").write_text("[a](https://a.org/b) [c](#d)\n```\n[e](f.md)\n```\n")
    assert [*versions(tmp_path), *links(tmp_path)] == []
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.1.0\n")
    (tmp_path / "CHANGELOG.md").write_text("## 1.2.0\n")
    (tmp_path / "README.md").write_text('[a](docs/b.md "B") ![c](image.png) <img width="9" src="d.png">\n')
    assert [problem.split()[0] for problem in versions(tmp_path)] == ["CITATION.cff", "CHANGELOG.md"]
    assert [problem.split()[3].rstrip(",") for problem in links(tmp_path)] == ["docs/b.md", "image.png", "d.png"]
