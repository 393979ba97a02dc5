"""Whatever a dataset holds or an address says, the server answers, and goes on answering."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from energon_dali.view.sample_facts import SampleCheck, SampleFacts
from energon_dali.view.scan_source import ScanSource
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards
from tests.running_time import wait_until
from tests.view.page_server import PageServer, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    folder = tmp_path_factory.mktemp("robustness")
    parts = {
        "half.json": b'{"a": "\\ud800", "b": "\\u0000"}',
        "deep.json": b"[" * 5000 + b"]" * 5000,
        "txt": b"\x00\xff\xfe" * 100,
        "mp4": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "jpg": b"",
    }
    data = prepare(
        write_shards(folder / "data", {"k0": parts, "k1": {"txt": b"fine"}}, 1), {"text": "txt"}, "TextSample"
    )
    with serving(data, folder / "scans") as running:
        yield running


def test_odd_contents_are_shown(server: PageServer) -> None:
    page = server.ask("/data/0/sample/0")
    assert page.status == 200
    assert "root:" not in page.text
    for part in range(5):
        for what in ("", "/thumbnail", "/image", "/strip", "/waveform", "/pixel", "/text"):
            assert server.ask(f"/data/0/sample/0/part/{part}{what}").status in (200, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/data/" + "9" * 5000,
        "/data/0/sample/0/part/" + "9" * 5000,
        "/data/0/sample/" + "9" * 400,
        "/data/0?page=" + "9" * 30 + "&fails=1",
        "/data/0?page=" + "9" * 5000,
        "/data/0?min_width=1e400&max_aspect=nan&text=%22",
        "/data/0/sample/0?position=" + "9" * 16 + "&fails=1",
        "/data/0/find?key=%23" + "9" * 30,
        "/data/0?text=%ff%fe&key=%00",
    ],
)
def test_odd_addresses_are_answered(server: PageServer, path: str) -> None:
    assert server.ask(path).status < 500


def test_web_sockets_are_not_spoken(server: PageServer) -> None:
    lines = ["GET / HTTP/1.1", f"Host: 127.0.0.1:{server.port}", f"Cookie: {server.cookie}", "Upgrade: websocket"]
    lines += ["Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13", "", ""]
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(12).split()[1] not in (b"101", b"500")


def test_slow_checks_leave_the_other_pages_alone(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def examine(source: int, index: int) -> SampleFacts:
        ended.wait(60)
        return SampleFacts(index, "", "")

    monkeypatch.setattr(server.site.check, "examine", examine)
    asking = [threading.Thread(target=server.ask, args=(f"/data/0/sample/1/facts?{number}",)) for number in range(50)]
    for thread in asking:
        thread.start()
    try:
        assert server.ask("/scan").status == 200
        assert server.ask("/data/0").status == 200
    finally:
        ended.set()
        for thread in asking:
            thread.join()


def test_a_sample_that_ends_the_process_is_said_to(tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "data", count=3)
    (folder / ".nv-meta" / "sample_loader.py").write_text(
        "import os\ndef sample_loader(raw):\n    os.kill(os.getpid(), 9)\ndef part_filter(part):\n    return True\n"
    )
    config = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}
    functions = {name: f"sample_loader.py:{name}" for name in ("sample_loader", "part_filter")}
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps({**config, **functions}))
    check = SampleCheck([ScanSource(str(folder), allow_code=True)])
    try:
        facts = check.examine(0, 1)
        assert (facts.index, facts.stage, facts.reason) == (1, "decode", "Decoding it ended its process with SIGKILL")
        assert check.examine(0, 1) is facts
    finally:
        check.close()


def test_the_end_does_not_wait_for_a_browser_that_reads_nothing(tmp_path: Path) -> None:
    """Such a connection stays open; `serving` fails if the server has not ended after 30 s."""
    text = b"word " * 4_000_000
    data = prepare(write_shards(tmp_path / "data", {"k0": {"txt": text}}, 1), {"text": "txt"}, "TextSample")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        with serving(data, tmp_path / "scans") as server:
            connection.connect(("127.0.0.1", server.port))
            lines = [
                "GET /data/0/sample/0/part/0 HTTP/1.1",
                f"Host: 127.0.0.1:{server.port}",
                f"Cookie: {server.cookie}",
            ]
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            assert connection.recv(12).split()[1] == b"200"


HANGING = """
import os, time
from pathlib import Path

def sample_loader(raw):
    os.fork()  # a child that holds the pipes of its parent, and is not ended with it
    (Path(__file__).parent / f"pid-{os.getpid()}").touch()
    time.sleep(1000)

def part_filter(part):
    return True
"""


def test_the_end_does_not_wait_for_code_of_the_dataset(tmp_path: Path) -> None:
    """It hangs in a scan and in a check, for which requests wait; `serving` fails if the server does not end."""
    data = captioning_dataset(tmp_path / "data", count=3)
    (data / ".nv-meta" / "sample_loader.py").write_text(HANGING)
    config = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}
    functions = {name: f"sample_loader.py:{name}" for name in ("sample_loader", "part_filter")}
    (data / ".nv-meta" / "dataset.yaml").write_text(json.dumps({**config, **functions}))

    def hanging() -> set[int]:
        return {int(path.name.removeprefix("pid-")) for path in data.glob(".nv-meta/pid-*")}

    def ask(server: PageServer, index: int) -> None:
        with suppress(OSError, HTTPException):  # at the end, it may get no answer
            server.ask(f"/data/0/sample/{index}/facts")

    try:
        with serving(data, tmp_path / "scans", allow_code=True) as server:
            server.site.scan.start()
            asking = [threading.Thread(target=ask, args=(server, index)) for index in range(3)]
            for thread in asking:
                thread.start()
            # A process that checks and one that scans, each with a child: the samples are one block.
            assert wait_until(lambda: len(hanging()) >= 4, 60)
            before = hanging()
        for thread in asking:
            thread.join()
        assert hanging() == before, "a request that waited for its turn started a process"
    finally:
        for pid in hanging():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_ctrl_c_in_a_terminal_leaves_the_processes_to_the_page(tmp_path: Path) -> None:
    data = captioning_dataset(tmp_path / "data", count=3)
    check = SampleCheck([ScanSource(str(data))])
    try:
        check.examine(0, 0)
        worker = check._process._worker
        assert worker is not None
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGINT)
        assert check.examine(0, 1).reason == ""
        assert check._process._worker is worker
    finally:
        check.close()
