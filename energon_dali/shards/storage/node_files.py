"""Small files that are read when datasets are opened: the processes of a job on one node read them once.

The first process that asks binds a Unix socket in the abstract namespace, named after the job, and keeps what was read
in its memory: it is the keeper. Each process asks the keeper before it reads a file, and receives either the content or
a request to fetch and return it; processes that ask meanwhile wait. When the fetching process ends, a waiting one
receives the request. When the keeper ends, the others read for themselves, or one of them takes its place. Nothing
remains, because the kernel drops the name with the process.

A job is one of `torchrun` or Slurm, or the one that the environment variable ENERGON_DALI_JOB names; "" turns this off.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from energon_dali.shards.storage.forks import drop_in_child

if TYPE_CHECKING:
    from energon_dali.shards.storage import StoragePath
    from energon_dali.shards.storage.protocols import RangeReader

VARIABLE = "ENERGON_DALI_JOB"
KEPT_BYTES = 256 << 20
"""Bytes that are kept for other processes; the oldest files are dropped first."""
MISSING_SECONDS = 30.0
"""How long a file that was missing counts as missing."""
KEPT_SECONDS = 600.0
"""How long a file is kept: a job that opens a dataset later sees what changed."""
MOST_BYTES = 64 << 20
"""Larger files are read by each process."""
WAIT_SECONDS = 60.0
"""After this time a process reads for itself what another one is fetching."""
Answer = tuple[str, "bytes | None"]
"""What a process receives: ("content", the file), or what it has to do."""
_LENGTH = struct.Struct("<q")
_BACKLOG = 1024
_PAUSE_SECONDS = 0.1


def read_once(name: str, fetch: Callable[[], bytes | None]) -> bytes | None:
    """Returns what `fetch` returns, in this process or in another one of the job on this node.

    Args:
        name: What is read: a URL, and the range of bytes if it is not the whole file.
        fetch: Reads it; returns None if there is no such file. What it raises is raised only in this process.
    """
    job = job_name()
    if job is None:
        return fetch()
    connection = _client.connection(job)
    if connection is None:
        return fetch()
    try:
        answer = connection.ask(name)
    except (OSError, EOFError) as error:
        _client.drop(pause_seconds=WAIT_SECONDS if isinstance(error, TimeoutError) else 0.0)
        return fetch()
    except BaseException:  # such as Ctrl-C: what arrives later would be taken for the answer to another question
        _client.drop()
        raise
    if answer == _ALONE:
        return fetch()
    if answer != _FETCH:
        return answer[1]
    try:
        content = fetch()
    except BaseException:
        _client.drop()  # another process that waits has to fetch it then
        raise
    try:
        connection.hand_in(content)
    except OSError:
        _client.drop()
    except BaseException:
        _client.drop()
        raise
    return content


class NodeReader:
    """Reads ranges of a remote file, each of them once for all processes of the job on this node.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: It cannot be opened.
    """

    def __init__(self, path: StoragePath) -> None:
        self._path = path
        self._reader: RangeReader | None = None
        self._lock = threading.Lock()
        self.is_alone = False
        """Whether this process reads for itself from now on, because what was kept is damaged."""
        size = read_once(f"{path.url} size", self._find_size)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path.url)
        self.size = int(size)

    def _find_size(self) -> bytes | None:
        try:
            self._reader = self._path.open()
        except FileNotFoundError:
            return None
        return str(self._reader.size).encode()

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from an offset; fewer at the end of the file.

        Raises:
            StorageError: They cannot be read.
        """
        if self.is_alone:
            return self._read(offset, size)
        return read_once(f"{self._path.url} {self.size} {offset}+{size}", lambda: self._read(offset, size)) or b""

    read_view = read_at

    def _read(self, offset: int, size: int) -> bytes:
        with self._lock:
            if self._reader is None:
                self._reader = self._path.open(self.size)
        return self._reader.read_at(offset, size)

    def close(self) -> None:
        """Closes the file, if this process has opened it."""
        if self._reader is not None:
            self._reader.close()


def job_name() -> str | None:
    """Returns the name of this job; None if its processes do not read together."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return given or None
    get = os.environ.get
    if int(get("LOCAL_WORLD_SIZE") or get("SLURM_NTASKS_PER_NODE") or 1) < 2:
        return None
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT")
    return "|".join(get(name, "") for name in names)


def _address(job: str) -> str:
    digest = hashlib.blake2b(job.encode(), digest_size=16).hexdigest()
    return f"\0energon-dali-files-{os.getuid()}-{digest}"


_FETCH: Answer = ("fetch", None)
"""Read it, and send its content to the keeper."""
_ALONE: Answer = ("alone", None)
"""Read it without the keeper: it is too large to keep."""


class _Connection:
    """The connection of one thread to the process that keeps files."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.settimeout(WAIT_SECONDS)

    def ask(self, name: str) -> Answer:
        _send(self._socket, name)
        return _receive(self._socket)

    def hand_in(self, content: bytes | None) -> None:
        if content is not None and len(content) > MOST_BYTES:
            _send(self._socket, ("large", None))
        else:
            _send(self._socket, ("content", content))

    def close(self) -> None:
        self._socket.close()


def _send(sock: socket.socket, value: object) -> None:
    data = pickle.dumps(value, protocol=5)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _receive(sock: socket.socket) -> Answer:
    (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size))
    answer: Answer = pickle.loads(_receive_exactly(sock, length))
    return answer


def _receive_exactly(sock: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data


class _Client:
    """The connections of this process, one per thread."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._keeper: Keeper | None = None
        self._failed_until = 0.0

    def connection(self, job: str) -> _Connection | None:
        """Returns the connection of this thread; None if none can be made now."""
        found: _Connection | None = getattr(self._local, "connection", None)
        if found is None and time.monotonic() > self._failed_until:
            try:
                found = self._local.connection = _Connection(self._connect(_address(job)))
            except OSError:
                self._failed_until = time.monotonic() + 1.0
        return found

    def _connect(self, address: str) -> socket.socket:
        with self._lock:
            for _ in range(3):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.settimeout(WAIT_SECONDS)
                try:
                    sock.connect(address)
                    if not is_own_user(sock):
                        raise PermissionError("a process of another user has the socket of this job")
                    return sock
                except ConnectionRefusedError:
                    sock.close()
                    with contextlib.suppress(OSError):  # another process was faster
                        self._keeper = Keeper(address)
                except OSError:
                    sock.close()
                    raise
        raise ConnectionRefusedError

    def drop(self, pause_seconds: float = 0.0) -> None:
        """Ends the connection of this thread; the next question makes a new one.

        Args:
            pause_seconds: How long this process reads for itself before.
        """
        if pause_seconds:
            self._failed_until = time.monotonic() + pause_seconds
        found: _Connection | None = getattr(self._local, "connection", None)
        if found is not None:
            self._local.connection = None
            found.close()

    def after_fork(self) -> None:
        """Drops the parent's connections in a forked child."""
        self.drop()
        self._local, self._lock = threading.local(), threading.Lock()
        if self._keeper is not None:
            self._keeper.server.close()
            self._keeper = None


def is_own_user(connection: socket.socket) -> bool:
    """Returns whether the process at the other end of a Unix socket runs as the same user as this one."""
    credentials = struct.Struct("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return bool(credentials.unpack(found)[1] == os.getuid())


@dataclass(eq=False)
class _File:
    """A file that was fetched, or is being fetched."""

    fetching: socket.socket | None
    """The process that fetches it."""
    waiting: list[socket.socket] = field(default_factory=list)
    content: bytes | None = None
    since: float = 0.0

    def is_old(self) -> bool:
        """Returns whether it has to be fetched again."""
        return time.monotonic() - self.since > (MISSING_SECONDS if self.content is None else KEPT_SECONDS)


class Keeper:
    """Keeps the files in a thread of the first process of a job on its node.

    Args:
        address: Name of the socket.

    Raises:
        OSError: Another process has this name.
    """

    def __init__(self, address: str) -> None:
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.server.bind(address)
            self.server.listen(_BACKLOG)
            self.server.setblocking(False)
        except BaseException:
            self.server.close()
            raise
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._kept_bytes = 0
        self._of: dict[socket.socket, str] = {}
        """What each connection fetches."""
        self._parts: dict[socket.socket, bytearray] = {}
        threading.Thread(target=self._run, name="energon-dali-files", daemon=True).start()

    def _run(self) -> None:
        connections: dict[int, socket.socket] = {}
        try:
            self._serve(connections)
        finally:  # so that others notice, and one of them takes its place
            self.server.close()
            for connection in connections.values():
                connection.close()

    def _serve(self, connections: dict[int, socket.socket]) -> None:
        poller = select.poll()
        poller.register(self.server, select.POLLIN)
        while True:
            for number, _ in poller.poll():
                if number == self.server.fileno():
                    new = self._accepted()
                    if new is not None:
                        connections[new.fileno()] = new
                        self._parts[new] = bytearray()
                        poller.register(new, select.POLLIN)
                    continue
                connection = connections[number]
                try:
                    self._take(connection)
                except Exception:  # it has ended, or sends what no process of this job sends
                    poller.unregister(number)
                    del connections[number], self._parts[connection]
                    self._lost(connection)
                    connection.close()

    def _accepted(self) -> socket.socket | None:
        try:
            new, _ = self.server.accept()
        except BlockingIOError:
            return None
        except OSError:  # too many open files
            time.sleep(_PAUSE_SECONDS)
            return None
        if not is_own_user(new):
            new.close()
            return None
        new.settimeout(WAIT_SECONDS)
        return new

    def _take(self, connection: socket.socket) -> None:
        """Receives what has arrived, and handles each complete message."""
        data = connection.recv(1 << 20)
        if not data:
            raise EOFError
        parts = self._parts[connection]
        parts += data
        while len(parts) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(parts)[0]
            if len(parts) < end:
                return
            message = pickle.loads(memoryview(parts)[_LENGTH.size : end])
            del parts[:end]
            if isinstance(message, str):
                self._asked(connection, message)
            else:
                self._handed_in(connection, *message)

    def _asked(self, connection: socket.socket, name: str) -> None:
        known = self._files.get(name)
        if known is not None and known.fetching is None and known.is_old():
            self._forget(name)
            known = None
        if known is None:
            self._files[name] = _File(connection)
            self._of[connection] = name
            _answer(connection, _FETCH)
        elif known.fetching is not None:
            known.waiting.append(connection)
        else:
            _answer(connection, ("content", known.content))

    def _handed_in(self, connection: socket.socket, kind: str, content: bytes | None) -> None:
        name = self._of.pop(connection)
        found = self._files[name]
        waiting, found.waiting = found.waiting, []
        if kind == "large":
            del self._files[name]
            for one in waiting:
                _answer(one, _ALONE)
            return
        found.fetching, found.content, found.since = None, content, time.monotonic()
        self._kept_bytes += len(content or b"")
        for one in waiting:
            _answer(one, ("content", content))
        self._files.move_to_end(name)
        while self._kept_bytes > KEPT_BYTES:
            self._forget(next(name for name, one in self._files.items() if one.fetching is None))

    def _forget(self, name: str) -> None:
        self._kept_bytes -= len(self._files.pop(name).content or b"")

    def _lost(self, connection: socket.socket) -> None:
        """Lets another process fetch the file that an ended process was fetching."""
        for one in self._files.values():
            if connection in one.waiting:
                one.waiting.remove(connection)
        name = self._of.pop(connection, None)
        found = None if name is None else self._files.get(name)
        if name is None or found is None or found.fetching is not connection:
            return
        while found.waiting:
            found.fetching = found.waiting.pop(0)
            self._of[found.fetching] = name
            if _answer(found.fetching, _FETCH):
                return
        del self._files[name]


def _answer(connection: socket.socket, answer: Answer) -> bool:
    """Sends an answer; False if the process has ended, which `_run` notices when it reads the connection."""
    try:
        _send(connection, answer)
    except OSError:
        return False
    return True


_client = _Client()
drop_in_child(_client)
