"""Measures the size of the package, and how many modules a sample and a state pass.

    python tools/house.py                        # this checkout
    python tools/house.py --root ../before       # another checkout, such as a git worktree of an earlier commit
    python tools/house.py --files                # also list the files that a sample and a state pass
    python tools/house.py --check                # fail if a count is worse than in tools/house.json
    python tools/house.py --update               # write the counts into tools/house.json

A module counts as passed if one of its functions is entered (`sys.setprofile`). For a sample, all threads count, while
8 batches of 8 images are drawn in process after 3 warm-up batches. For a state, only the main thread counts, while one
loader saves a state, a second loader restores it, and the first batch after it is drawn. During that batch, a function
counts only if its name or its class is named after states (`save_state`, `restore_key`, `LoaderState`), because every
batch passes the others.

Lines of code exclude blank lines, comments and docstrings. The number of statements does not depend on the layout, so
it can be compared before and after a formatter ran.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent.parent
KEPT = HERE / "tools" / "house.json"
SHORT_MODULE_LINES = 60
LONG_MODULE_LINES = 400
WARM_UP_BATCHES, COUNTED_BATCHES, BATCH_SIZE = 3, 8, 8
NOT_KEPT = ("modules", f"modules under {SHORT_MODULE_LINES} lines", "lines")
"""Counts that may grow: short modules and docstrings are no fault."""
RUNS = 3
FILES = ("sample_files", "state_files")
STATE_WORDS = ("state", "restore", "snapshot", "checkpoint")


def modules(root: Path) -> list[Path]:
    """Returns the files of the package below `root`, kernels included."""
    return sorted([*(root / "energon_dali").rglob("*.py"), *(root / "kernels").rglob("*.py")])


def module_name(root: Path, path: Path) -> str:
    """Returns the name under which a file of the checkout is imported."""
    parts = [part for part in path.relative_to(root).with_suffix("").parts if part != "__init__"]
    return ".".join(["energon_dali", *parts] if parts[0] == "kernels" else parts)


def code_lines(text: str) -> int:
    """Returns the number of lines with code: without blank lines, comments and docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def statements(text: str) -> int:
    """Returns the number of statements without docstrings."""
    nodes = ast.walk(ast.parse(text))
    return sum(
        isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in nodes
    )


def imports(root: Path, path: Path, *, lazy: bool) -> Iterator[str]:
    """Yields what a module imports: when it is imported, or with `lazy` also later and for type checkers."""
    name = module_name(root, path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parts = package.split(".")
                    base = ".".join([*parts[: len(parts) - child.level + 1], *([base] if base else [])])
                yield base
                yield from (f"{base}.{alias.name}" for alias in child.names)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                # Neither for type checkers nor as a program is a module imported.
                condition = ast.unparse(child.test) if isinstance(child, ast.If) else ""
                elsewhere = "TYPE_CHECKING" in condition or "__main__" in condition
                if lazy or not (function or elsewhere):
                    yield from walk(child)

    return walk(ast.parse(path.read_text(encoding="utf-8")))


def import_graph(root: Path, *, lazy: bool) -> dict[str, set[str]]:
    """Returns which module of the package imports which."""
    paths = {module_name(root, path): path for path in modules(root)}
    return {
        name: {there for there in imports(root, path, lazy=lazy) if there in paths and there != name}
        for name, path in paths.items()
    }


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of two or more modules, each sorted (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for there in graph[name]:
            if there not in index:
                visit(there)
                low[name] = min(low[name], low[there])
            elif there in stack:
                low[name] = min(low[name], index[there])
        if low[name] == index[name]:
            component = [stack.pop()]
            while component[-1] != name:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def pairs(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Returns the pairs of modules that import each other."""
    return sorted((one, two) for one in graph for two in graph[one] if one < two and one in graph[two])


class Tracer:
    """Records which files of the package are entered, and how often a call goes from one of them to another.

    Create it before the threads that it watches. It counts only while `counting` is true.
    """

    def __init__(self, root: Path) -> None:
        self._roots = (str(root / "energon_dali") + os.sep, str(root / "kernels") + os.sep)
        self.counting = False
        self.files: set[str] = set()
        self.files_of_main_thread: set[str] = set()
        self.state_files: set[str] = set()
        self.calls_between_files = 0
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if not self.counting or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._roots) or code.co_name == "<module>":
            return
        self.files.add(code.co_filename)
        if threading.get_ident() == threading.main_thread().ident:
            self.files_of_main_thread.add(code.co_filename)
        if speaks_of_state(frame):
            self.state_files.add(code.co_filename)
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.calls_between_files += caller.f_code.co_filename.startswith(self._roots)


def speaks_of_state(frame: FrameType) -> bool:
    """Returns whether a function, or the class of the method, is named after states."""
    names = [frame.f_code.co_name.lower()]
    if "self" in frame.f_locals:
        names.append(type(frame.f_locals["self"]).__name__.lower())
    return any(word in name for name in names for word in STATE_WORDS)


def make_dataset(folder: Path, count: int = 512) -> Path:
    """Writes one shard of small JPEGs with captions, and prepares it with the command of the checkout."""
    import numpy as np
    from PIL import Image

    data = folder / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    with tarfile.open(data / "shard-0.tar", "w") as tar:
        for number in range(count):
            picture = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(picture, "JPEG")
            for name, content in ((f"{number:04}.jpg", picture.getvalue()), (f"{number:04}.txt", b"a caption")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    command = [sys.executable, "-m", "energon_dali", "prepare", str(data), "--non-interactive"]
    command += ["--split-ratio", "1,0,0", "--sample-type", "CaptioningSample"]
    command += ["--field-map", '{"image": "jpg", "caption": "txt"}']
    subprocess.run(command, check=True, capture_output=True)
    return data


def trace(root: Path, decoder: str, folder: Path) -> dict[str, Any]:
    """Returns what a sample and a state pass with a decoder; this process imports `energon_dali` from `root`."""
    tracer = Tracer(root)
    import energon_dali as ed

    gc.disable()  # what it calls, whenever it runs, is not on the way of a sample
    options = {"image_decode_device": "cpu"} if decoder == "DaliDecoder" else {}
    encoder = type("Encoder", (ed.TaskEncoder,), {"decoder": getattr(ed, decoder)(**options)})

    def new_loader() -> Any:
        dataset = ed.get_train_dataset(
            folder,
            worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=BATCH_SIZE,
            shuffle_buffer_size=16,
            max_samples_per_sequence=None,
            task_encoder=encoder(),
        )
        return ed.get_savable_loader(dataset)

    def relative(files: set[str]) -> list[str]:
        return sorted(str(Path(file).relative_to(root)) for file in files)

    with new_loader() as loader:
        batches = iter(loader)
        for _ in range(WARM_UP_BATCHES):
            next(batches)
        tracer.counting = True
        for _ in range(COUNTED_BATCHES):
            next(batches)
        tracer.counting = False
        sample_files, calls = relative(tracer.files), tracer.calls_between_files
        tracer.files_of_main_thread.clear()
        tracer.state_files.clear()
        tracer.counting = True
        state = loader.save_state_rank()
        tracer.counting = False
    with new_loader() as loader:
        tracer.counting = True
        loader.restore_state_rank(state)
        called = set(tracer.files_of_main_thread)
        next(iter(loader))
        tracer.counting = False
    return {
        "sample_files": sample_files,
        "calls_between_files_per_sample": round(calls / (COUNTED_BATCHES * BATCH_SIZE), 1),
        "state_files": relative(tracer.state_files | called),
    }


def traces(root: Path) -> dict[str, dict[str, Any]]:
    """Returns the result of `trace` for each decoder, each in its own process that imports the package from `root`."""
    os.environ["PYTHONPATH"] = str(root)
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_dataset(Path(temporary))

        def run(decoder: str) -> dict[str, Any]:
            command = [sys.executable, str(HERE / "tools" / "house.py"), "--root", str(root)]
            command += ["--trace", decoder, str(folder)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=temporary)
            return json.loads(done.stdout)  # type: ignore[no-any-return]

        found = {}
        with ThreadPoolExecutor(2) as pool:
            for decoder in ("DaliDecoder", "SampleDecoder"):
                # A thread may do in one run what it did before the count in another: what all runs passed counts.
                runs = list(pool.map(run, [decoder] * RUNS))
                both = {name: set.intersection(*(set(one[name]) for one in runs)) for name in FILES}
                found[decoder] = {**runs[0], **{name: sorted(files) for name, files in both.items()}}
        return found


def count(root: Path) -> dict[str, Any]:
    """Returns the counts that need no run."""
    texts = {path: path.read_text(encoding="utf-8") for path in modules(root)}
    lengths = {path: len(text.splitlines()) for path, text in texts.items()}
    eager, lazy = import_graph(root, lazy=False), import_graph(root, lazy=True)
    skips = subprocess.run(
        ["git", "grep", "-c", "# fmt: s" + "kip", "--", "*.py"], cwd=root, capture_output=True, text=True, check=False
    )
    return {
        "modules": len(texts),
        f"modules under {SHORT_MODULE_LINES} lines": sum(n < SHORT_MODULE_LINES for n in lengths.values()),
        f"modules over {LONG_MODULE_LINES} lines": sum(n > LONG_MODULE_LINES for n in lengths.values()),
        "longest module, lines": max(lengths.values()),
        "lines": sum(lengths.values()),
        "lines of code": sum(code_lines(text) for text in texts.values()),
        "statements": sum(statements(text) for text in texts.values()),
        "import cycles at import time": len(cycles(eager)),
        "pairs of modules that import each other, lazily": len(pairs(lazy)),
        "# fmt: s" + "kip": sum(int(line.rpartition(":")[2]) for line in skips.stdout.splitlines()),
    }


def kept_counts(root: Path) -> dict[str, int]:
    """Returns the counts that must not get worse: less is better."""
    counts = {name: number for name, number in count(root).items() if name not in NOT_KEPT}
    for decoder, found in traces(root).items():
        counts[f"modules on the way of a sample, {decoder}"] = len(found["sample_files"])
        counts[f"files on the way of a state, {decoder}"] = len(found["state_files"])
    return counts


def worse(kept: dict[str, int], now: dict[str, int]) -> list[str]:
    """Returns a line for each count that is larger than it was, or that nobody has kept."""
    return [
        f"{name}: {number:,}, and it was {kept[name]:,}." if name in kept else f"{name}: {number:,}, and it is new."
        for name, number in now.items()
        if number > kept.get(name, -1)
    ]


def check(root: Path) -> int:
    """Compares the counts with those that are kept; returns the exit status."""
    kept, now = json.loads(KEPT.read_text(encoding="utf-8")), kept_counts(root)
    found = worse(kept, now)
    if found:
        print("The house got worse:", *found, sep="\n  ")
        print("Make it smaller. Or run `python tools/house.py --update`, and say in the commit why it had to grow.")
    better = [name for name, number in now.items() if number < kept.get(name, -1)]
    if better:
        print(f"Better than tools/house.json: {'; '.join(better)}. Keep it: python tools/house.py --update")
    return 1 if found else 0


def main() -> None:
    """Prints the counts; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=HERE, help="checkout to measure (default: this one)")
    parser.add_argument("--files", action="store_true", help="list the files that a sample and a state pass")
    parser.add_argument("--check", action="store_true", help="fail if a count is worse than in tools/house.json")
    parser.add_argument("--update", action="store_true", help="write the counts into tools/house.json")
    parser.add_argument("--trace", nargs=2, metavar=("DECODER", "DATA"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.trace:
        print(json.dumps(trace(root, arguments.trace[0], Path(arguments.trace[1]))))
        return
    if arguments.check:
        sys.exit(check(root))
    if arguments.update:
        KEPT.write_text(json.dumps(kept_counts(root), indent=2) + "\n", encoding="utf-8")
        return
    for name, number in count(root).items():
        print(f"{number:8,}  {name}")
    for one, two in pairs(import_graph(root, lazy=True)):
        print(f"          {one} <-> {two}")
    for decoder, found in traces(root).items():
        print(f"{len(found['sample_files']):8}  modules on the way of a sample, {decoder}")
        print(f"{found['calls_between_files_per_sample']:8}  calls from file to file per sample, {decoder}")
        print(f"{len(found['state_files']):8}  files on the way of a state, {decoder}")
        if arguments.files:
            print("".join(f"          sample  {file}\n" for file in found["sample_files"]), end="")
            print("".join(f"          state   {file}\n" for file in found["state_files"]), end="")


if __name__ == "__main__":
    main()
