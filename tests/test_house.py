"""The order of the rooms: which imports which, what is public, and that importing the package has no side effects."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import energon_dali
from tests.loader.dataset_folder import prepare, write_shards

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "energon_dali"

ORDER = (
    "kernels",
    "plan",
    "samples",
    "error_handlers",
    "worker_config",
    "shards",
    "cache",
    "av",
    "decode",
    "pack",
    "task_encoder",
    "metadataset",
    "datasets",
    "assembly",
    "loader",
    "integrations",
    "tasks",
    "diagnosis",
    "view",
    "cli",
    "compat",
)
"""A room (a folder or a top-level module) imports only from those before it and from modules that are not listed."""

ENTRANCES = ("pack", "integrations", "tasks", "diagnosis", "view", "cli", "compat")
"""Rooms that the others do without."""


def modules() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])


def name_of(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    parts = [part for part in relative.parts if part != "__init__"]
    return ".".join(["energon_dali", *parts] if parts[0] == "kernels" else parts)


def folder_of(module: str) -> str | None:
    """Returns the entry of ORDER that a module belongs to, or None for top-level modules without an entry."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else None


@cache  # most tests look at all files
def imports_of(path: Path) -> list[tuple[str, int, bool]]:
    """Returns (module, line, whether it runs at import time) for every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]

    def walk(node: ast.AST, eager: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child.lineno, eager
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    anchor = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*anchor, base] if base else anchor)
                yield base, child.lineno, eager
                for alias in child.names:
                    yield f"{base}.{alias.name}", child.lineno, eager
            else:
                typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, eager and not typing_only and not function)

    return list(walk(tree, True))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_arrows_point_upwards(path: Path) -> None:
    module = name_of(path)
    here = folder_of(module)
    if here is None:
        return
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for imported, line, _ in imports_of(path)
        if (there := folder_of(imported)) is not None
        and imported.startswith("energon_dali.")
        and there != here
        and ORDER.index(there) > ORDER.index(here)
    ]
    assert not wrong, "\n".join(wrong)


def test_loader_imports_neither_metadataset_nor_task_encoder() -> None:
    """`assembly` turns them into a tree of datasets; `loader` runs any tree."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in sorted((PACKAGE / "loader").rglob("*.py"))
        for imported, line, _ in imports_of(path)
        if folder_of(imported) in ("metadataset", "task_encoder", "assembly")
    ]
    assert not wrong, "\n".join(wrong)


def test_plan_needs_only_numpy_and_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "numpy"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in sorted((PACKAGE / "plan").rglob("*.py"))
        for imported, line, _ in imports_of(path)
        if imported.split(".")[0] not in allowed
        and not imported.startswith(("energon_dali.plan", "energon_dali.errors", "energon_dali.calls"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("nvidia", "energon_dali/decode/dali"),
        ("triton", "kernels"),
        ("multistorageclient", "energon_dali/shards"),
        ("obstore", "energon_dali/shards/storage"),
        ("botocore", "energon_dali/shards/storage"),
        ("yaml", "energon_dali/shards/documents"),
    ],
)
def test_library_stays_in_its_room(library: str, home: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in modules()
        for imported, line, _ in imports_of(path)
        if imported.split(".")[0] == library and ROOT / home not in path.parents
    ]
    assert not wrong, "\n".join(wrong)


def test_dali_is_imported_only_when_it_is_used() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in modules()
        for imported, line, eager in imports_of(path)
        if eager and imported.split(".")[0] == "nvidia"
    ]
    assert not wrong, "\n".join(wrong)


def test_kernels_import_nothing_of_the_package() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in sorted((ROOT / "kernels").rglob("*.py"))
        for imported, line, _ in imports_of(path)
        if imported.startswith("energon_dali") and not imported.startswith("energon_dali.kernels")
    ]
    assert not wrong, "\n".join(wrong)


def packages_with_all() -> list[str]:
    return [
        name_of(path)
        for path in modules()
        if path.name == "__init__.py" and "__all__" in path.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("package", packages_with_all())
def test_public_names_are_sorted_and_there(package: str) -> None:
    module = importlib.import_module(package)
    names = list(module.__all__)
    assert names == sorted(set(names))
    for name in names:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("stub", sorted(PACKAGE.rglob("__init__.pyi")), ids=name_of)
def test_type_checkers_see_every_public_name(stub: Path) -> None:
    """A name counts as re-exported if it is imported as itself, here from the module where it is found at run time."""
    package = importlib.import_module(name_of(stub))
    imported = {
        alias.asname: (node.module, alias.name)
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(imported) == set(package.__all__) - {"__version__"}
    for name, (module, original) in imported.items():
        assert original == name
        assert getattr(importlib.import_module(module), name) is getattr(package, name)


def test_star_import_brings_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from energon_dali import *", names)
    assert set(energon_dali.__all__) <= names.keys()


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = energon_dali.NoSuchName


def test_public_names_load_neither_cuda_nor_dali() -> None:
    script = (
        "import sys, energon_dali\n"
        "for name in energon_dali.__all__: getattr(energon_dali, name)\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized(), 'CUDA was initialised'\n"
        "loaded = sorted(m for m in sys.modules if m.split('.')[0] in ('nvidia', 'triton'))\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_other_rooms_do_without_the_entrances(tmp_path: Path) -> None:
    """Every public name is there, and a loader with a worker resumes, where these folders are deleted."""
    for path in [*modules(), *PACKAGE.rglob("py.typed")]:
        if path.relative_to(ROOT).parts[1] not in ENTRANCES:
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    dataset = write_shards(tmp_path / "data", {f"{number:03d}": {"txt": b"text"} for number in range(64)}, 2)
    prepare(dataset, {"text": "txt"}, "TextSample")
    (tmp_path / "program.py").write_text(
        "import energon_dali as ed\n"
        "class Encoder(ed.DefaultTaskEncoder):\n"
        "    decoder = ed.SampleDecoder()\n"
        "def loader():\n"
        "    config = ed.WorkerConfig(rank=0, world_size=1, num_workers=1)\n"
        "    options = dict(batch_size=4, shuffle_buffer_size=8, max_samples_per_sequence=None)\n"
        "    dataset = ed.get_train_dataset('data', worker_config=config, task_encoder=Encoder(), **options)\n"
        "    return ed.get_savable_loader(dataset)\n"
        "if __name__ == '__main__':\n"
        "    for name in ed.__all__: getattr(ed, name)\n"
        "    with loader() as first:\n"
        "        next(first), next(first)\n"
        "        state, expected = first.save_state_rank(), next(first).__key__\n"
        "    with loader() as second:\n"
        "        second.restore_state_rank(state)\n"
        "        assert next(second).__key__ == expected\n"
        "    print(ed.__file__)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_wheel_contains_every_package() -> None:
    script = (
        "import setuptools\n"
        "setuptools.setup = lambda packages: print('\\n'.join(packages))\n"
        "exec(open('setup.py').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    listed = set(done.stdout.split())
    folders = {name_of(path / "__init__.py") for path in {path.parent for path in modules()}}
    assert folders == listed, "a folder with modules has no __init__.py, or setup.py does not list it"
