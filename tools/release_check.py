"""Refuses a release whose parts do not fit together: `python tools/release_check.py`, or `make release-check`.

    python tools/release_check.py                         # prints what to do
    python tools/release_check.py --same video.png ...    # these were made again, and came out the same

It compares the version in all places, looks for links that a package index cannot follow, and refuses images of the
documentation that are older than the last change of what they show. `SHOWN` says what each image shows. It prints what
to do, and exits with 1 if there is anything. An image that comes out the same cannot be committed again, so
docs/images/made.json records at which time it was made.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = "docs/images"
MADE = "docs/images/made.json"
"""When images were made again that came out the same: seconds since 1970, by name."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an image shows, and how it is made again."""

    sources: tuple[str, ...]
    """Files and folders; a change of one makes the image old. () for drawings that no program makes, and for those that
    a test draws again and compares."""
    command: str = ""
    """What makes it again."""


def _chart(name: str, plot: str = "benchmarks.plot") -> Shown:
    """Returns what a chart of one file of results shows."""
    results = f"benchmarks/results/{name}.json"
    return Shown((results, f"{plot.replace('.', '/')}.py"), f"python -m {plot} {results} {IMAGES}/{name}.png")


def _page(*names: str) -> Shown:
    """Returns what a screenshot of `energon-dali view` shows: the page of these files, and what all pages share."""
    own = [f"energon_dali/view/{'templates/' if name.endswith('.html') else ''}{name}" for name in names]
    shared = ("energon_dali/view/static/view.css", "energon_dali/view/templates/base.html", "tools/view_screenshots.py")
    return Shown((*own, *shared), "python tools/view_screenshots.py")


_DRAWN = Shown(())
SHOWN: dict[str, Shown] = {
    **dict.fromkeys(("rooms.svg", "hooks.svg", "concept-*.svg", "global-batches.svg", "parallelism.svg"), _DRAWN),
    **{
        f"{name}.png": _chart(name)
        for name in (
            "blend",
            "cpu",
            "decode-scale",
            "first-batch",
            "packing",
            "peers",
            "small",
            "trainer",
            "video",
            "vision",
        )
    },
    **{f"{name}.png": _chart(name, "benchmarks.remote.plot") for name in ("remote", "scale", "streams")},
    "balance.png": Shown(("benchmarks/results/balance.json", "benchmarks/balance.py"), "python -m benchmarks.balance"),
    "growth.png": Shown(
        ("benchmarks/results/cpu-growth.json", "benchmarks/plot_growth.py"),
        f"python -m benchmarks.plot_growth benchmarks/results/cpu-growth.json {IMAGES}/growth.png",
    ),
    "summary.png": Shown(
        ("benchmarks/results/cpu.json", "benchmarks/results/video.json", "benchmarks/plot_summary.py"),
        f"python -m benchmarks.plot_summary benchmarks/results/cpu.json benchmarks/results/video.json "
        f"{IMAGES}/summary.png",
    ),
    "tutorial-batch.png": Shown(
        ("energon_dali/cli/demo_data.py",),
        f"python docs/tutorials/first_model.py; cp batch.png {IMAGES}/tutorial-batch.png",
    ),
    "captioning.png": Shown(
        ("energon_dali/tasks/captioning/rows.py", "energon_dali/tasks/conf/task/multimodal/captioning.yaml"),
        "make demo-train",
    ),
    "image-gpt*.png": Shown(
        ("energon_dali/tasks/vision/igpt/samples.py", "energon_dali/tasks/conf/task/vision/igpt.yaml"),
        "make demo-train",
    ),
    "view-blend.png": _page("blend.html", "blend_pages.py", "blended.py"),
    "view-compare.png": _page("compare.html", "comparison.py"),
    "view-encoder.png": _page("encoder.html", "encoder_session.py"),
    "view-failures.png": _page("failures.html"),
    "view-grid*.png": _page("grid.html", "cards.html", "grid_choice.py", "thumbnail.py"),
    "view-mixture.png": _page("mixture.html", "drawings.html", "drawn_mixture.py"),
    "view-overview.png": _page("overview.html"),
    "view-run.png": _page("run.html", "run_pages.py"),
    "view-sample.png": _page("sample.html", "media.html", "sample_facts.py"),
    "view-statistics.png": _page("statistics.html", "statistics.py"),
    "view-step.png": _page("step.html", "cards.html"),
    "view-video*.png": _page("media.html", "thumbnail.py"),
}
"""What the images of docs/images show, by a pattern of their names."""


def main() -> int:
    """Prints what to do before a release; returns 1 if there is anything."""
    if sys.argv[1:2] == ["--same"]:
        record_same(ROOT, sys.argv[2:])
        return 0
    problems = [*versions(ROOT), *links(ROOT), *unknown_images(ROOT, SHOWN), *stale_images(ROOT, SHOWN)]
    print("\n".join(problems) or "Everything fits together.")
    return int(bool(problems))


def versions(root: Path) -> Iterator[str]:
    """Yields the places whose version is not that of the package."""
    package = (root / "energon_dali" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.*)"$', package, re.MULTILINE)
    number = re.escape(version)
    for name, pattern, wanted in (
        ("CITATION.cff", rf"^version: {number}$", f"version: {version}"),
        ("CHANGELOG.md", rf"^## {number} - \d{{4}}-\d\d-\d\d$", f"a heading `## {version} - YYYY-MM-DD`"),
    ):
        if not re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE):
            yield f"{name} does not name version {version}: write {wanted}."


def links(root: Path) -> Iterator[str]:
    """Yields the relative links of README.md: a package index shows the page without the files around it."""
    text = re.sub(r"^```.*?^```$", "", (root / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)|<img[^>]* src=\"([^\"]+)\"", text):
        link = "".join(target)
        if not re.match(r"https://|mailto:|#", link):
            yield f"README.md links to {link}, which a package index cannot follow: write an absolute link."


def unknown_images(root: Path, shown: dict[str, Shown]) -> Iterator[str]:
    """Yields the images of which nobody says what they show, and what is said of files that are not there.

    Args:
        root: The checkout.
        shown: What images show, by patterns of their names.
    """
    names = _images(root)
    for name in names:
        if len(_patterns(name, shown)) != 1:
            yield f"{IMAGES}/{name}: say what it shows, once, in SHOWN of tools/release_check.py."
    for pattern, what in shown.items():
        if not any(fnmatch(name, pattern) for name in names):
            yield f"There is no {IMAGES}/{pattern}: remove it from SHOWN of tools/release_check.py."
        for source in what.sources:
            if not (root / source).exists():
                yield f"There is no {source}, which {pattern} is said to show: correct SHOWN of tools/release_check.py."


def stale_images(root: Path, shown: dict[str, Shown]) -> Iterator[str]:
    """Yields what makes images again that are older than what they show.

    Args:
        root: A checkout with its whole history.
        shown: What images show, by patterns of their names.
    """
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        yield "This clone has no history, so ages are unknown: git fetch --unshallow."
        return
    commands: dict[str, list[str]] = {}
    for name in _images(root):
        for pattern in _patterns(name, shown):
            newer = _changed_since(root, f"{IMAGES}/{name}", shown[pattern].sources)
            if newer:
                line = f"  {IMAGES}/{name} is older than {', '.join(newer)}"
                commands.setdefault(shown[pattern].command, []).append(line)
    for command, lines in commands.items():
        yield "\n".join([f"Make again: {command}", *lines])


def _images(root: Path) -> list[str]:
    return sorted(path.name for path in (root / IMAGES).iterdir() if path.name != Path(MADE).name)


def _patterns(name: str, shown: dict[str, Shown]) -> list[str]:
    return [pattern for pattern in shown if fnmatch(name, pattern)]


def _changed_since(root: Path, image: str, sources: Sequence[str]) -> list[str]:
    """Returns the sources whose last change is later than that of an image. What is not committed is the latest."""
    made = max(_changed_at(root, image), _made_times(root).get(Path(image).name, 0.0))
    return [source for source in sources if (root / source).exists() and _changed_at(root, source) > made]


def record_same(root: Path, names: Sequence[str]) -> None:
    """Records that images were made now, and came out the same.

    Raises:
        SystemExit: There is no image of a name.
    """
    missing = [name for name in names if not (root / IMAGES / name).is_file()]
    if missing:
        raise SystemExit(f"There is no {', '.join(missing)} in {IMAGES}.")
    times = {**_made_times(root), **dict.fromkeys(names, int(time.time()))}
    (root / MADE).write_text(json.dumps(times, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _made_times(root: Path) -> dict[str, float]:
    path = root / MADE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _changed_at(root: Path, path: str) -> float:
    """Returns the time of the last commit that changed a path, in seconds; infinity if it has changed since."""
    if _git(root, "status", "--porcelain", "--", path):
        return float("inf")
    return float(_git(root, "log", "-1", "--format=%ct", "--", path))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
