"""A process that answers lines of JSON with lines of JSON: it can neither block nor end the server of the page."""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

_LOOK_SECONDS = 0.2
"""How often a request looks whether the process has ended."""


class ProcessEndedError(Exception):
    """The process ended, or was ended because it took too long; the message says how. The next request starts it.

    Args:
        message: What happened, after the name of what the process does.
        end: How the process ended, such as "with SIGSEGV"; "" if it was ended.
    """

    def __init__(self, message: str, end: str = "") -> None:
        super().__init__(message)
        self.end = end


class LineProcess:
    """Starts a Python process when it is first asked, and again after it ended.

    One thread at a time may ask; any thread may call `interrupt` and `close`.

    Args:
        make: A function of a module: called in the process with `first`, it returns what answers a request.
        first: Plain values.
        environment: Variables of the process, besides those of this one.
    """

    def __init__(
        self, make: Callable[[Any], Callable[[Any], Any]], first: Any, environment: Mapping[str, str] | None = None
    ) -> None:
        self._make = f"{make.__module__}:{make.__qualname__}"
        self._first = first
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()
        """Held where a process is started or killed, so that none is started after `close`."""

    def ask(self, request: Any, seconds: float) -> Any:
        """Returns the answer to a request.

        Args:
            request: Plain values.
            seconds: Longest time; the first request includes starting Python.

        Raises:
            ProcessEndedError: There is no answer.
        """
        process = self._process
        if process is None or process.poll() is not None:
            self.end()
            process = self._begin()
        assert process.stdin is not None, "it is a pipe"
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process, time.monotonic() + seconds)
        except BrokenPipeError:
            line = b""
        except TimeoutError as error:
            self.end()
            raise ProcessEndedError(f"took longer than {seconds:g} seconds, and was ended") from error
        except BaseException:  # an answer to this request must not be taken for that to the next one
            self.end()
            raise
        if not line:
            end = self.end()
            raise ProcessEndedError(f"ended its process {end}", end)
        return json.loads(line)

    def _begin(self) -> subprocess.Popen[bytes]:
        path = [*filter(None, sys.path), os.getcwd()]
        with self._lock:
            if self._closed:
                raise ProcessEndedError("was ended with the page")
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", __name__, self._make],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **self._environment},
            )
        assert process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):  # noticed when the answer is read
            process.stdin.write(json.dumps(self._first).encode() + b"\n")
        return process

    def interrupt(self) -> None:
        """Ends the process. A thread that is asking gets a ProcessEndedError; the next request starts it again."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Ends the process for good: from now on, every request is a ProcessEndedError."""
        with self._lock:
            self._closed = True
        self.interrupt()

    def end(self) -> str:
        """Ends the process if it runs, and returns how it ended, such as "with SIGSEGV"."""
        process, self._process = self._process, None
        if process is None:
            return ""
        try:
            code = process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        return how_it_ended(code)


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Returns a line of the process; b"" if it ended, even if a process that it forked still holds the pipe.

    Raises:
        TimeoutError: The deadline passed.
    """
    assert process.stdout is not None, "it is a pipe"
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not parts or not parts[-1].endswith(b"\n"):
            ended, left = process.poll() is not None, deadline - time.monotonic()
            if not selector.select(0 if ended else max(0.0, min(left, _LOOK_SECONDS))):
                if ended:
                    return b""
                if left <= 0:
                    raise TimeoutError
                continue
            part = os.read(process.stdout.fileno(), 1 << 20)
            if not part:
                return b""
            parts.append(part)
    return b"".join(parts)


def how_it_ended(code: int) -> str:
    """Returns the exit status of a process in words: "with status 1", "with SIGSEGV"."""
    if code >= 0:
        return f"with status {code}"
    try:
        return f"with {signal.Signals(-code).name}"
    except ValueError:
        return f"with signal {-code}"


def main(name: str) -> None:
    """Runs in the process: answers requests until standard input is closed.

    What decoders and other code print goes to standard error, and is not taken for an answer. Ctrl-C, which a terminal
    sends to all processes of the command, is left to the page, which then ends this one.

    Args:
        name: `MODULE:FUNCTION` of what makes the answers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, function = name.partition(":")
    make, values = getattr(importlib.import_module(module), function), map(json.loads, sys.stdin)
    for first in values:
        answer = make(first)
        for request in values:
            channel.write(json.dumps(answer(request)) + "\n")
            channel.flush()


if __name__ == "__main__":
    main(sys.argv[1])
