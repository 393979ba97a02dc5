"""README and docs/ are correct: Python blocks run and print what their comments say, and links work."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.data.recipe import Recipe, make_dataset
from energon_dali.cli.main import main
from tests.av.corpus import VideoRecipe, encode_video
from tests.photographs import photograph_file
from tools import check_links

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)
PATH = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.py)?)`")
CODE_PAGES = (
    "architecture.md",
    "modules.md",
    "plan.md",
    "processes.md",
    "benchmarks.md",
    "benchmarks-log.md",
    "av-decoder.md",
    "damaged-images.md",
    "decode-scale.md",
    "decoders.md",
    "video-backends.md",
    "cuda-graphs.md",
    "gpu.md",
    "gpu-evidence.md",
    "gpu-notes.md",
    "kernels.md",
    "../CONTRIBUTING.md",
)
"""Pages that name files of this repository."""
REPOSITORY = "https://github.com/energon-dali/energon-dali"
CAPTIONS = ("--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg,png,webp", "caption": "txt"}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data that the pages read: data/captions, data/photo.jpg and data/video.mp4."""
    root = tmp_path_factory.mktemp("reader")
    made = make_dataset(
        Recipe(name="captions", samples=48, shards=4, style="jpeg"), root / "data", progress=False, processes=1
    )
    arguments = ["prepare", str(made), "--non-interactive", "--split-ratio", "1,0,0", "--num-workers", "1", *CAPTIONS]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    (root / "data" / "photo.jpg").write_bytes(photograph_file("china").read_bytes())
    video = VideoRecipe(frames=250, size=(320, 180), b_frames=2, gop=250, audio="aac")
    (root / "data" / "video.mp4").write_bytes(encode_video(video))
    return root


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """A folder with data from the commands in the README."""
    root = tmp_path_factory.mktemp("demo")
    text = (ROOT / "README.md").read_text()
    made, packed = re.findall(r"^energon-dali ((?:demo-data|pack data/)[^#\n]*)", text, re.MULTILINE)
    for arguments in (made, packed):
        command = [warm_python, "-m", "energon_dali", *shlex.split(arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd=root)
    return root


@pytest.mark.timeout(400)  # up to a dozen programs, each with a loader, possibly on a busy machine
@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.stem)
def test_blocks_run_and_print_what_they_say(page: Path, warm_python: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue("demo_folder" if page.stem == "README" else "folder")
    blocks = BLOCK.findall(page.read_text())
    for number, block in enumerate(blocks):
        script = folder / f"{page.stem}{number}.py"
        script.write_text(block)
        command = [warm_python, "-W", "error::DeprecationWarning:__main__", str(script)]
        environment = {**os.environ, "WARM_WORKERS": "1"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        expected = [text.strip() for text in PRINTED.findall(block)]
        printed = done.stdout.splitlines()
        assert sorted(set(printed)) == sorted(set(expected)), done.stderr
        if len(printed) == len(expected):  # no line was printed in a loop
            assert printed == expected


def test_messages_and_docstrings_name_sections_that_exist() -> None:
    wrong = []
    for folder in ("energon_dali", "kernels"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text()
            for name, anchor in re.findall(r"((?:docs/)[\w/-]+\.md)(?:#([\w-]+))?", text):
                page = ROOT / name
                if not page.exists() or (anchor and anchor not in check_links.anchors(page)):
                    wrong.append(f"{file.relative_to(ROOT)}: {name}#{anchor}")
            wrong += [f"{file.relative_to(ROOT)}: {quoted}" for quoted in re.findall(r'README, "[^"]*"', text)]
    assert not wrong


@pytest.mark.parametrize("page", check_links.pages(), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    assert check_links.faults_of(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n\n## A b c\n")
    good = ("#a-b-c", "page.md#a-b-c_1", "https://example.com/a", "", f"{REPOSITORY}/blob/main/README.md#install")
    bad = ("#b", "other.md", "page.md#other", "https://example", "htp://example.com", f"{REPOSITORY}/blob/main/none.md")
    assert [target for target in good if check_links.fault_of(page, target)] == []
    assert [target for target in bad if not check_links.fault_of(page, target)] == []


def test_links_of_the_readme_work_on_a_package_index() -> None:
    targets = check_links.targets_of(ROOT / "README.md")
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert sum(bool(check_links.own_path(target)) for target in targets) > 50


@pytest.mark.parametrize("name", CODE_PAGES)
def test_paths_of_the_code_exist(name: str) -> None:
    named = [path for path in PATH.findall((ROOT / "docs" / name).read_text()) if "NAME" not in path]
    assert [path for path in named if not any((root / path).exists() for root in (ROOT, ROOT / "energon_dali"))] == []


@pytest.mark.parametrize("picture", ["rooms", "hooks"])
def test_pictures_are_up_to_date(picture: str) -> None:
    """`python tools/rooms.py` and `python tools/hooks.py` draw them again."""
    script = f"import sys; sys.path.insert(0, 'tools'); import {picture}; print({picture}.draw(), end='')"
    drawn = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert drawn == (ROOT / "docs" / "images" / f"{picture}.svg").read_text()


def test_drawings_of_concepts_are_up_to_date() -> None:
    """`python tools/concepts.py` draws them again."""
    from tools import concepts

    images = ROOT / "docs" / "images"
    drawn = {f"concept-{name}.svg": draw() for name, draw in concepts.DRAWINGS.items()}
    assert drawn == {file.name: file.read_text() for file in images.glob("concept-*.svg")}


def test_terms_are_linked_where_they_are_first_used() -> None:
    from tools import glossary_links

    glossary = (ROOT / "docs" / glossary_links.GLOSSARY).read_text()
    assert [term for term in glossary_links.TERMS if f'id="term-{term}"' not in glossary] == []
    page = "# Shards\n\n`shard` [shard](pack.md), shards of a CUDA stream. Shards.\n\n```python\nrank\n```\n\nranks\n"
    linked = page.replace("shards of", "[shards](../concepts.md#term-shard) of")
    linked = linked.replace("\nranks", "\n[ranks](../concepts.md#term-rank)")
    assert glossary_links.link_terms(page, "coming-from/page.md") == linked


def test_the_picture_of_the_hooks_has_every_hook() -> None:
    from energon_dali.task_encoder.encoder import HOOKS

    picture = (ROOT / "docs" / "images" / "hooks.svg").read_text()
    assert [hook for hook in HOOKS if f">{hook}<" not in picture] == []


def test_the_command_of_the_readme_is_accepted(folder: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^energon-dali (prepare .*)$", text.replace("\\\n", ""), re.MULTILINE)
    arguments = shlex.split(command)
    shards = tmp_path / "captions"
    shards.mkdir()
    for shard in (folder / "data" / "captions").glob("*.tar"):
        shutil.copy(shard, shards)
    assert arguments[1] == "shards/"
    done = CliRunner().invoke(main, ["prepare", str(shards), *arguments[2:]])
    assert done.exit_code == 0, done.output
    assert (shards / ".nv-meta" / "dataset.yaml").exists()


def test_every_environment_variable_is_on_its_page() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    read = re.compile(r"""environ(?:\.get\(|\[)\s*["']([A-Z_]+)["']""")
    sources = [*(ROOT / "energon_dali").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    names = {name for source in sources for name in read.findall(source.read_text())}
    assert names <= set(re.findall(r"`([A-Z_]+)`", page))


def test_every_error_is_on_its_page() -> None:
    from energon_dali import errors

    page = (ROOT / "docs" / "errors.md").read_text()
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert {name for name in classes if f"`{name}`" not in page} == set()


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    import energon_dali

    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    entries = [
        name for page in pages for name in re.findall(r"^::: energon_dali\.(\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(entries) == sorted(set(energon_dali.__all__) - {"__version__"})


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    tutorials = {f"tutorials/{path.stem}.md" for path in (ROOT / "docs" / "tutorials").glob("*.py")}
    assert navigation == pages | tutorials | {"index.md", "contributing.md", "changelog.md"}
