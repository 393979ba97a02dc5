"""`python -m energon_dali.compat PROGRAM ...` runs a program that imports `megatron.energon`.

The program runs as `__main__`, in the namespace of this module. Processes that it starts by spawning (multiprocessing,
the workers of a torch DataLoader) import their parent's main module again: that is this module, so the names of Energon
are there before the program's own code is imported.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from energon_dali.compat import install

_PROGRAM = "ENERGON_DALI_COMPAT_PROGRAM"
"""Set for processes that the program spawns: "module NAME" or "file PATH"."""


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns (options of this command, the program or module and its own arguments)."""
    parser = argparse.ArgumentParser(
        prog="python -m energon_dali.compat",
        usage="%(prog)s [--decoder {sample,dali}] [--trust-dataset-code] (PROGRAM | -m MODULE) [ARGUMENT ...]",
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
        "--trust-dataset-code",
        action="store_true",
        default=None,
        help="let datasets run the code that they name, and unpickle their parts, as Energon does",
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
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.has_location:
        sys.exit(f"python -m energon_dali.compat: no module named {name!r}")
    return spec.origin, name.rpartition(".")[0]


def _start() -> tuple[str, str]:
    """Returns (path of the program's source, its package); sets up `sys.argv` and `sys.path` as Python does."""
    if __name__ != "__main__":  # a spawned process: multiprocessing has set sys.argv and sys.path
        kind, _, name = os.environ[_PROGRAM].partition(" ")
        return _locate(kind, name)
    options, (program, *arguments) = _parse(sys.argv[1:])
    install(decoder=options.decoder, trust_dataset_code=options.trust_dataset_code)
    if options.module:
        kind, name = "module", program
    else:
        kind, name = "file", os.path.abspath(program)
        # `python -m` put the current folder first; for a file it is the file's folder.
        sys.path[0] = name if os.path.isdir(name) else os.path.dirname(name)
    path, package = _locate(kind, name)
    os.environ[_PROGRAM] = f"{kind} {name}"
    sys.argv = [path if options.module else program, *arguments]
    return path, package


if __name__ in ("__main__", "__mp_main__"):
    import io as _io

    _path, _package = _start()
    with _io.open_code(_path) as _file:
        _code = compile(_file.read(), _path, "exec")
    _namespace = globals()
    _kept = ("__name__", "__spec__", "__builtins__", "__loader__")
    for _name in [name for name in _namespace if name not in _kept and not name.startswith("_")]:
        del _namespace[_name]
    _namespace.update(__file__=_path, __package__=_package, __doc__=None, __cached__=None, __annotations__={})
    exec(_code, _namespace)
