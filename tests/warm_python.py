"""A Python whose programs start at once: each is a fork of one process that has imported what most programs import.

Importing torch takes three seconds of CPU, and Lightning eight more. Programs are run by their real entry points, in
processes of their own, with the environment, folder and descriptors of their caller. They wait for their threads and
call exit handlers, but modules are not taken down. With WARM_WORKERS=1 in their environment, the workers that they
spawn start in the same way. Do not use it where imports or process ids are what is looked at.

    python -m tests.warm_python SOCKET      serves until nobody holds a lease any more
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing.spawn
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

IMPORTED = (
    "hypothesis",  # before gc.freeze, after which it does not find who holds a generator of random numbers
    "pytest",
    "torch",
    "numpy",
    "PIL.Image",
    "nvidia.dali.fn",
    "av",
    "lightning.pytorch.loggers",
    "hydra.main",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "torch.distributed.run",
    "transformers",
    "multistorageclient",
    "hydra.core.plugins",
    "energon_dali",
    "energon_dali.loader",
    "energon_dali.shards.prepare",
    "energon_dali.tasks.checkpoint",
    "energon_dali.tasks.task",
    "energon_dali.tasks.train",
    "energon_dali.tasks.training",
)
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

inherited = []
for number in map(int, os.listdir("/proc/self/fd")):
    try:
        if number > 2 and os.get_inheritable(number):
            inherited.append(number)
    except OSError:
        pass  # the folder's own
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), os.getppid(), inherited]).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2, *inherited])
    server.sendall(request)
    for number in inherited:
        os.close(number)
    answers = server.makefile()
    pid = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    answer = answers.readline()
if not answer:
    os._exit(1)  # the test run, and with it the server, has ended before this program, such as Python's fork server
status = int(answer)
code = os.waitstatus_to_exitcode(status)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def started_python(folder: Path) -> Iterator[str]:
    """Context manager for the path of an executable that takes the arguments of Python: a script, -m or -c.

    Args:
        folder: All processes that name the same folder share a server, which ends after the last of them left.
    """
    path, client = folder / "warm_python.socket", folder / "warm_python"
    with open(folder / "warm_python.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lease = _lease(path)
        if lease is None:
            path.unlink(missing_ok=True)
            client.write_text(CLIENT.format(python=sys.executable, path=str(path)))
            client.chmod(0o755)
            command = [sys.executable, "-m", "tests.warm_python", str(path)]
            subprocess.run(command, cwd=Path(__file__).parents[1], stdin=subprocess.DEVNULL, check=True)
            lease = _lease(path)
            assert lease is not None
    with lease:
        yield str(client)


def _lease(path: Path) -> socket.socket | None:
    """Returns a connection that keeps the server alive; None if there is no server."""
    lease = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        lease.connect(str(path))
        lease.sendall(bytes(4))
        if lease.recv(1):
            return lease
    lease.close()
    return None


class _Server:
    """Forks a program for each request, and answers with its process id and, once it has ended, its status."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._leases: list[socket.socket] = []
        self._callers: dict[int, socket.socket] = {}
        self._ended, self._wakeup = os.pipe()
        for end in (self._ended, self._wakeup):
            os.set_blocking(end, False)

    def next_program(self) -> tuple[list[str], str, dict[str, str]] | None:
        """Returns the (arguments, folder, environment) of a program, in its own process; None once the server ends."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup)
        had_lease = False
        while self._leases or not had_lease:
            watched: list[Any] = [self._listener, self._ended, *self._leases, *self._callers.values()]
            readable, _, _ = select.select(watched, [], [])
            for lease in [one for one in self._leases if one in readable]:
                self._leases.remove(lease)
                lease.close()
            if self._ended in readable:
                os.read(self._ended, 1 << 10)
                self._answer()
            for pid, caller in self._callers.items():
                if caller in readable:  # it was killed
                    os.kill(pid, signal.SIGKILL)
            if self._listener in readable:
                program = self._accept()
                if program is not None:
                    return program
                had_lease = True
        return None

    def _accept(self) -> tuple[list[str], str, dict[str, str]] | None:
        """Returns the program in its own process, None in this one."""
        caller, _ = self._listener.accept()
        head, streams, _, _ = socket.recv_fds(caller, 4, 64)
        if len(head) < 4:
            caller.close()
            return None
        size = int.from_bytes(head, "big")
        if not size:
            self._leases.append(caller)
            caller.sendall(b"l")
            return None
        with caller.makefile("rb") as sent:  # unlike recv, it goes on after the signal of a program that ended
            request: list[Any] = json.loads(sent.read(size))
        pid = os.fork()
        if pid:
            self._callers[pid] = caller
            with suppress(OSError):
                caller.sendall(b"%d\n" % pid)
            for stream in streams:
                os.close(stream)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for open_socket in (self._listener, caller, *self._leases, *self._callers.values()):
            open_socket.close()
        for end in (self._ended, self._wakeup):  # before the program's descriptors take their numbers
            os.close(end)
        arguments, folder, environment, parent, inherited = request
        high = [fcntl.fcntl(stream, fcntl.F_DUPFD, 1 << 9) for stream in streams]
        for stream in streams:
            os.close(stream)
        for number, stream in zip((0, 1, 2, *inherited), high, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        own, actual = os.getpid(), os.getppid
        # Our processes compare it with the process that started them; those that this one forks ask the kernel.
        os.getppid = lambda: parent if os.getpid() == own else actual()
        return arguments, folder, environment

    def _answer(self) -> None:
        """Tells callers that their programs have ended."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                with suppress(OSError), self._callers.pop(pid) as caller:
                    caller.sendall(b"%d\n" % status)


_kept: dict[str, Any] = {}
"""The variables of a program that has ended; like other modules, they are not taken down."""


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Runs a program as `python ARGUMENTS` would."""
    import numpy
    import torch

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    numpy.random.seed()
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if environment.get("WARM_WORKERS") == "1":
        multiprocessing.spawn.set_executable(str(Path(sys.argv[1]).with_name("warm_python")))
    sys.path[1:1] = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
    while arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        option = arguments.pop(0)
        if option.startswith("-W"):
            chosen = option[2:] or arguments.pop(0)
            warnings._processoptions([chosen])  # type: ignore[attr-defined]  # as the interpreter does
        else:
            assert option in ("-u", "-B"), option
    first, *rest = arguments
    if first in ("-m", "-c"):
        sys.path[0] = folder if first == "-m" else ""
        sys.argv = [first, *rest[1:]]
        if first == "-m":
            sys.modules.pop(rest[0], None)  # it runs as __main__, and runpy would warn of a second copy
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            names = {"__name__": "__main__", "__builtins__": __builtins__}
            exec(rest[0], names)
        return
    sys.argv = arguments
    sys.path[0] = str(Path(first).resolve().parent)
    # Kept: torch may hang when the last reference to a process group of gloo is dropped.
    _kept.update(runpy.run_path(first, run_name="__main__"))


def _status(arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """Runs a program to its end, and returns its exit status."""
    try:
        _run(arguments, folder, environment)
        return 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    """Imports, and returns as soon as programs can be run; the server goes on in a process of its own."""
    for name in IMPORTED:
        with suppress(ModuleNotFoundError):  # a GPU host may lack some, and what needs one says so itself
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    server = _Server(sys.argv[1])
    if os.fork():
        os._exit(0)
    os.setsid()
    program = server.next_program()
    os._exit(_status(*program) if program is not None else 0)


if __name__ == "__main__":
    main()
