"""Which GPU a thread and a process take. These tests need no GPU: they replace the answers of CUDA."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

from energon_dali.decode import DaliDecoder
from energon_dali.decode.dali.runtime import device
from energon_dali.decode.dali.runtime.device import Device, resolve_device
from energon_dali.errors import DeviceError
from energon_dali.loader.cuda_handoff import CudaHandoff
from tests.fake_cuda import FakeCuda


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA that is not in use yet and has four GPUs."""
    monkeypatch.setattr(device, "sees_gpu", lambda: True)
    monkeypatch.setattr(device, "_count_gpus", lambda: 4)
    monkeypatch.setattr(device, "_of_thread", threading.local())
    monkeypatch.setattr(device, "_process", dict.fromkeys(device._process, False))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)  # where torch was built for CUDA


def start_cuda(monkeypatch: pytest.MonkeyPatch, current: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)


@pytest.mark.usefixtures("four_gpus")
def test_local_rank_chooses_until_torch_does_and_a_thread_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "6")
    assert resolve_device("gpu") == Device("gpu", 2)
    start_cuda(monkeypatch, 0)
    assert resolve_device("gpu") == Device("gpu", 2)  # blocks of one loader stay on one GPU
    others: list[Device] = []
    thread = threading.Thread(target=lambda: others.append(resolve_device("auto")))
    thread.start()
    thread.join(60)
    assert others == [Device("gpu", 0)]
    assert resolve_device(3) == Device("gpu", 3)


def test_a_thread_of_ours_follows_local_rank_when_the_trainer_has_no_gpu_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer takes its GPU while the thread runs: the thread's own current device stays 0."""
    cuda = FakeCuda(gpus=4, initialized=False).install(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "2")
    found: list[Any] = []

    def work(rank: CudaHandoff) -> None:
        rank.enter()
        torch.cuda.init()  # a hook, or the trainer's own thread
        found.extend((resolve_device("gpu"), torch.cuda.current_device()))

    monkeypatch.setattr(torch.cuda, "init", lambda: setattr(cuda, "initialized", True))
    thread = threading.Thread(target=work, args=(CudaHandoff(torch.cuda),))
    assert cuda.contexts == set()
    thread.start()
    thread.join(60)
    assert found == [Device("gpu", 2), 2]
    assert cuda.contexts == {2}
    assert torch.cuda.current_device() == 0  # the trainer's own is its own to choose


def test_a_process_that_was_forked_after_cuda_was_asked_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(gpus=1).install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    for option in ("auto", "gpu", 0):
        with pytest.raises(DeviceError, match=r'CUDA does not work after a fork.*start_method="spawn"'):
            resolve_device(option)  # type: ignore[arg-type]
    assert resolve_device("cpu") == Device("cpu")


@pytest.mark.usefixtures("four_gpus")
def test_torchs_current_device_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    start_cuda(monkeypatch, 1)
    assert resolve_device("auto", "video") == Device("gpu", 1)


@pytest.mark.usefixtures("four_gpus")
def test_a_fork_after_the_first_use_of_a_gpu_is_refused() -> None:
    def ask_child() -> str:
        """Returns the device that a forked child reports."""
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(into, str(resolve_device("gpu")).encode())
            except DeviceError as error:
                os.write(into, str(error).encode())
            os._exit(0)
        os.close(into)
        os.waitpid(child, 0)
        with os.fdopen(out) as answer:
            return answer.read()

    assert ask_child() == "gpu 0"
    resolve_device("gpu")
    assert "forked from one that had used a GPU" in ask_child()


@pytest.mark.parametrize("media", ["image", "video"])
@pytest.mark.parametrize("cause", ["the driver", "torch", "DALI"])
def test_auto_that_leaves_a_gpu_idle_warns_once_and_says_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cause: str, media: Any
) -> None:
    """As with driver 550 and a torch for CUDA 13."""
    cuda = FakeCuda(gpus=1).install(monkeypatch)
    monkeypatch.setattr(device, "_said", set())
    if cause == "the driver":
        monkeypatch.setattr(device, "_count_gpus", lambda: 0)
    elif cause == "torch":
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    else:
        monkeypatch.setattr(device, "has_dali", lambda: False)
    for _ in range(2):
        if cause == "DALI":
            assert not device.uses_dali("auto", media)
        else:
            assert resolve_device("auto", media) == Device("cpu")
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert 'pip install "energon-dali[cuda12]"' in record.message
    if cause == "torch":
        assert "the driver is probably too old for CUDA 13.0" in record.message
    if cause != "DALI":
        assert "pip install --force-reinstall torch --index-url" in record.message
        assert "energon-dali doctor" in record.message
    assert cuda.contexts == set()


def test_auto_without_a_gpu_does_not_warn(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    FakeCuda(gpus=0).install(monkeypatch)
    monkeypatch.setattr(device, "_said", set())
    with caplog.at_level("INFO"):
        assert resolve_device("auto") == Device("cpu")
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.parametrize(("visible", "seen"), [("0", True), ("-1", False), ("-1,0", False), ("", False), ("1,0", True)])
def test_what_hides_the_gpus(monkeypatch: pytest.MonkeyPatch, visible: str, seen: bool) -> None:
    monkeypatch.setattr(device, "_any_file", lambda patterns: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device.sees_gpu() is seen


def test_a_device_that_is_the_cpu_works() -> None:
    assert device.device_works(DaliDecoder(image_decode_device="cpu").device)
