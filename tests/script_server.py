"""Runs scripts one by one, each in a fork of a process that has imported what most of them import.

Reads lines of JSON, [path, folder], and answers each with [exit status, standard output, standard error].
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMPORTED = ("torch", "numpy", "PIL.Image", "nvidia.dali", "nvidia.dali.fn", "av", "energon_dali")


class ScriptServer:
    """The process that forks.

    Args:
        process: Runs this module.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, script: Path, folder: Path) -> tuple[int, str, str]:
        """Returns (exit status, standard output, standard error) of a script.

        Args:
            script: Run as `python -W error::DeprecationWarning:__main__ SCRIPT` would.
            folder: The current folder.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(script), str(folder)]), file=self._process.stdin, flush=True)
        status, printed, errors = json.loads(self._process.stdout.readline())
        return status, printed, errors


@contextmanager
def serving_scripts() -> Iterator[ScriptServer]:
    """Context manager for a server; it ends with the context."""
    command = [sys.executable, "-m", "tests.script_server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[1]) as process:
        yield ScriptServer(process)


def _run(script: str, folder: str) -> int:
    """Runs a script in a fork, and returns its exit status."""
    os.chdir(folder)
    sys.argv, sys.path[0] = [script], str(Path(script).parent)
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
    try:
        runpy.run_path(script, run_name="__main__")
        return 0
    except SystemExit as error:
        return int(error.code or 0) if isinstance(error.code, (int, type(None))) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    """Answers until standard input is closed."""
    for name in IMPORTED:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        script, folder = json.loads(line)
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
            pid = os.fork()
            if pid == 0:
                os.dup2(printed.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os._exit(_run(script, folder))
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            texts = [os.pread(file.fileno(), 1 << 24, 0).decode() for file in (printed, errors)]
        print(json.dumps([status, *texts]), file=answers, flush=True)


if __name__ == "__main__":
    main()
