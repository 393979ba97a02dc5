"""Runs a program in the namespace of `__main__`, and again where multiprocessing imports its parent's main module.

A process that a program spawns (multiprocessing, a worker of a torch DataLoader) imports its parent's main module under
the name `__mp_main__`. That is this module, so the names of Energon are there before the program's code is imported.
So it is for launchers that start the program again with `python -m`.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
from typing import Any

from energon_dali.compat import install
from energon_dali.compat.finder import ROOT

_PROGRAM = "ENERGON_DALI_COMPAT_PROGRAM"
"""Set for processes that the program spawns: "module NAME" or "file PATH"."""


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns (options of this command, the program or module and its own arguments)."""
    parser = argparse.ArgumentParser(
        prog="python -m energon_dali.compat",
        usage="%(prog)s [--decoder {sample,dali}] [--trust-datasets] (PROGRAM | -m MODULE) [ARGUMENT ...]",
        description="Runs a program that imports megatron.energon, on energon_dali. What follows PROGRAM or MODULE is "
        "passed to it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--decoder",
        choices=("sample", "dali"),
        help="dali replaces the program's SampleDecoders by DaliDecoders where their results are tensors",
    )
    parser.add_argument(
        "--trust-datasets",
        action="store_true",
        default=None,
        help="let datasets name code and run code, as Energon does",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="run a file")
    options = parser.parse_args(arguments)
    words = options.module or options.program
    if not words:
        parser.error("give a program or -m MODULE")
    return options, words


def _locate(kind: str, name: str) -> tuple[str, str]:
    """Returns (path of the program's source, its package)."""
    if kind == "file":
        path = os.path.join(name, "__main__.py") if os.path.isdir(name) else name
        if not os.path.isfile(path):
            sys.exit(f"python -m energon_dali.compat: can't open file {name!r}: No such file")
        return path, ""
    if name == f"{ROOT}.cli.main":
        name = "energon_dali.compat.cli"  # Energon's modules have no source here
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.has_location:
        sys.exit(f"python -m energon_dali.compat: no module named {name!r}")
    return spec.origin, name.rpartition(".")[0]


def start(arguments: list[str]) -> tuple[str, str]:
    """Returns (path of the program's source, its package); sets up `sys.argv` and `sys.path` as Python does.

    Args:
        arguments: Those of the command.
    """
    options, (program, *rest) = parse(arguments)
    install(decoder=options.decoder, trust_datasets=options.trust_datasets)
    if options.module:
        kind, name = "module", program
    else:
        kind, name = "file", os.path.abspath(program)
        # `python -m` put the current folder first; for a file it is the file's folder.
        sys.path[0] = name if os.path.isdir(name) else os.path.dirname(name)
    path, package = _locate(kind, name)
    os.environ[_PROGRAM] = f"{kind} {name}"
    sys.argv = [path if options.module else program, *rest]
    return path, package


def execute(namespace: dict[str, Any], path: str, package: str) -> None:
    """Runs the program.

    Args:
        namespace: Of `__main__`, or of the copy of it in a spawned process.
        path: Source of the program.
        package: Its package, for relative imports; "" for a file.
    """
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    kept: dict[str, Any] = {name: namespace[name] for name in ("__name__", "__builtins__") if name in namespace}
    # The namespace may be that of this function.
    spec = importlib.util.find_spec("energon_dali.compat.run")
    namespace.clear()
    namespace.update(
        kept,
        __spec__=spec,
        __file__=path,
        __package__=package,
        __doc__=None,
        __cached__=None,
        __annotations__={},
    )
    exec(code, namespace)


def start_again() -> tuple[str, str]:
    """Returns (path of the program's source, its package) in a process that runs this module as its main module.

    Launchers that start a program once more for other ranks, such as Lightning's, run the module that `__main__` names
    in `__spec__`, which is this one, with the program's own arguments.
    """
    if _PROGRAM not in os.environ:
        sys.exit("Run `python -m energon_dali.compat PROGRAM`.")
    kind, _, name = os.environ[_PROGRAM].partition(" ")
    path, package = _locate(kind, name)
    if kind == "file":
        sys.path[0] = name if os.path.isdir(name) else os.path.dirname(name)
    sys.argv[0] = path
    return path, package


if __name__ == "__main__":
    execute(globals(), *start_again())
elif __name__ == "__mp_main__":
    _kind, _, _name = os.environ[_PROGRAM].partition(" ")
    _path, _package = _locate(_kind, _name)
    # As in Python itself: the __main__.py of a package or folder runs unconditionally, so children do without it.
    if os.path.basename(_path) != "__main__.py":
        execute(globals(), _path, _package)
