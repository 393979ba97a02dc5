"""`energon-dali doctor`: on this machine, and on simulated machines that lack something."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from energon_dali.cli.main import main
from energon_dali.decode.video_backends.nvdec import LIBRARY as NVDEC
from energon_dali.diagnosis import Diagnosis, Finding, Host, diagnose
from energon_dali.diagnosis.gpu_path import LIBRARIES
from energon_dali.host_cores import CoreShare


class MadeUpHost(Host):
    """A GPU host where everything works; tests remove parts of it."""

    def __init__(self, cuda: int = 13) -> None:
        super().__init__()
        self.versions: dict[str, str] = {
            "torch": "2.11.0",
            "numpy": "2.4.6",
            "pillow": "13.0.0",
            "av": "18.1.0",
            "webdataset": "1.0.2",
            "obstore": "0.12.1",
            "multi-storage-client": "1.3.1",
            "pydantic": "2.14.3",
            "triton": "3.7.0",
            f"nvidia-dali-cuda{cuda}0": "2.4.0",
        }
        self.required = ["filelock", 'triton==3.7.0; platform_system == "Linux"']
        self.gpu_visible = True
        self.texts: dict[str, str] = {}
        self.limits = {"nofile": 65536, "memlock": -1}
        self.shared: int | None = 64 << 30
        self.core_share = CoreShare(16, "8 ranks share 128 cores")
        self.lacking: list[str] = []
        libraries = {name: f"/usr/lib/{name}" for library in LIBRARIES for name in library.names(cuda)}
        gpu = {"name": "NVIDIA H200", "capability": [9, 0], "memory_bytes": 141 << 30}
        self.findings: dict[tuple[str, ...], Finding] = {
            ("imports",): Finding({}),
            ("torch",): Finding({"version": "2.11.0", "cuda": "13.0", "available": True}),
            ("dali",): Finding({"version": "2.4.0", "devices": 1}),
            ("driver",): Finding({"version": "580.95.05", "from": "NVML"}),
            ("cuda",): Finding({"cuda": "13.0", "devices": [gpu]}),
            ("libraries",): Finding({**libraries, NVDEC: f"/usr/lib/{NVDEC}"}),
            ("jpeg_engine",): Finding({"engines": 1, "cores": 7}),
            ("nvdec",): Finding({"codecs": {"h264": [4096, 4096]}, "engines": 7, "obstacle": ""}),
            ("image", "pil"): Finding({"route": "pil", "difference": 4}),
            ("image", "cpu"): Finding({"route": "dali-cpu", "difference": 0}),
            ("image", "gpu"): Finding({"route": "dali-gpu", "difference": 2}),
            ("video", "pyav"): Finding({"route": "pyav", "difference": 0.0, "frames": 8}),
            ("video", "gpu"): Finding({"route": "dali-gpu", "difference": 0.4, "frames": 8}),
            ("kernel",): Finding({"route": "triton"}),
        }

    def version(self, package: str) -> str | None:
        return self.versions.get(package)

    def requirements(self, package: str) -> list[str]:
        return self.required

    def probe(self, name: str, *words: str) -> Finding:
        return self.findings[(name, *words) if name in ("image", "video") else (name,)]

    def text(self, path: str) -> str | None:
        return self.texts.get(path)

    def shows_gpu(self) -> bool:
        return self.gpu_visible

    def limit(self, name: str) -> int:
        return self.limits[name]

    def free_bytes(self, path: str) -> int | None:
        return self.shared

    def cores(self) -> tuple[int, int]:
        return 16, 32

    def share(self) -> CoreShare:
        return self.core_share

    def lacks_to_compile(self) -> list[str]:
        return self.lacking


def fails(*probe: str, error: str = "RuntimeError: no") -> Callable[[MadeUpHost], Any]:
    return lambda host: host.findings.update({probe: Finding(error=error)})


def finds(*probe: str, **facts: Any) -> Callable[[MadeUpHost], Any]:
    return lambda host: host.findings.update({probe: Finding({**host.findings[probe].facts, **facts})})


def lacks(package: str, error: str = "") -> Callable[[MadeUpHost], Any]:
    def take_away(host: MadeUpHost) -> None:
        del host.versions[package]
        host.findings["imports",] = Finding({package: error} if error else {})

    return take_away


def has(**fields: Any) -> Callable[[MadeUpHost], Any]:
    return lambda host: vars(host).update(fields)


CASES: dict[str, tuple[Callable[[MadeUpHost], Any], str, str, str, str]] = {
    "torch crashes": (
        fails("torch", error="the process was ended by SIGSEGV"),
        "CUDA in torch",
        "broken",
        "--force-reinstall torch",
        "gpu",
    ),
    "torch for CPUs": (finds("torch", cuda=None), "CUDA in torch", "missing", "without a constraint", "gpu"),
    "torch is too new": (finds("torch", available=False), "CUDA in torch", "broken", "runs CUDA 13.0", "gpu"),
    "no numpy": (lacks("numpy", "ModuleNotFoundError: no"), "numpy", "missing", "pip install numpy", "cpu gpu"),
    "numpy is broken": (finds("imports", numpy="ImportError: x.so"), "numpy", "broken", "--force-reinstall", "cpu gpu"),
    "no module loads": (fails("imports", error="SIGILL"), "pillow", "broken", "--force-reinstall", "cpu gpu"),
    "no Pillow codec": (fails("image", "pil"), "JPEG, Pillow", "broken", "reinstall pillow", "cpu gpu"),
    "no video codec": (fails("video", "pyav"), "H.264, PyAV", "broken", "reinstall 'av>=17.1,<19'", "cpu gpu"),
    "DALI crashes": (fails("dali", error="SIGSEGV"), "NVIDIA DALI", "broken", "uninstall nvidia-dali", "cpu gpu"),
    "DALI crashes on images": (fails("image", "cpu"), "JPEG, DALI on the CPU", "broken", "--force", "cpu gpu"),
    "no driver": (fails("driver"), "driver", "broken", "580 or newer", "gpu"),
    "old driver": (finds("driver", version="570.1"), "driver", "broken", "580 or newer", "gpu"),
    "no libcuda": (fails("cuda", error="OSError: libcuda.so.1"), "libcuda.so.1", "broken", "--gpus all", "gpu"),
    "hidden GPU": (finds("cuda", devices=[]), "GPU", "missing", "CUDA_VISIBLE_DEVICES", "gpu"),
    "no GPU": (has(gpu_visible=False), "GPU", "missing", "install the driver", "gpu"),
    "no NVDEC": (finds("libraries", **{NVDEC: ""}), "NVDEC", "missing", "NVIDIA_DRIVER_CAPABILITIES", "gpu"),
    "no video capability": (
        finds("nvdec", codecs={}, obstacle="the driver refuses (CUDA error 302)"),
        "codecs of NVDEC",
        "broken",
        "compute,utility,video",
        "gpu",
    ),
    "NVDEC crashes": (fails("nvdec"), "codecs of NVDEC", "broken", "compute,utility,video", "gpu"),
    "no compiler": (has(lacking=["a C compiler"]), "C compiler and headers", "missing", "apt-get install gcc", ""),
    "no headers": (has(lacking=["Python.h"]), "C compiler and headers", "missing", "python3-dev", ""),
    "few cores": (has(core_share=CoreShare(2, "8 ranks share 16")), "cores of a rank", "broken", "--cpus", ""),
    "no nvJPEG": (finds("libraries", **{"libnvjpeg.so.13": ""}), "nvJPEG", "missing", "nvidia-nvjpeg;", "gpu"),
    "no NPP": (finds("libraries", **{"libnppig.so.13": ""}), "NPP", "missing", "pip install nvidia-npp;", ""),
    "no JPEG engine": (finds("jpeg_engine", engines=0), "hardware JPEG engine", "missing", "CUDA cores", ""),
    "no JPEG on the GPU": (fails("image", "gpu"), "JPEG, GPU", "broken", "lines above", "gpu"),
    "no video on the GPU": (fails("video", "gpu"), "H.264, NVDEC", "broken", "libnvcuvid", "gpu"),
    "no kernel": (fails("kernel"), "Triton kernel", "broken", "C compiler", "gpu"),
    "no Triton": (lacks("triton"), "Triton", "missing", "pip install triton==3.7.0", ""),
    "another Triton": (has(required=["triton==3.6.0"]), "Triton", "broken", "triton==3.6.0", ""),
    "Triton is broken": (finds("imports", triton="ImportError"), "Triton", "broken", "--force-reinstall", ""),
    "few open files": (has(limits={"nofile": 1024, "memlock": 1 << 23}), "open files", "broken", "ulimit -n", ""),
    "little shared memory": (has(shared=64 << 20), "/dev/shm", "broken", "--shm-size", ""),
    "no shared memory": (has(shared=None), "/dev/shm", "missing", "--shm-size", ""),
}
"""What is removed: the check that reports it, its state, part of the advice, and the paths that no longer work."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_is_named_with_what_to_do(case: str) -> None:
    take_away, name, state, advice, no_longer = CASES[case]
    host = MadeUpHost()
    take_away(host)
    diagnosis = diagnose(host, "gpu")
    (check,) = [check for check in diagnosis.checks if check.name == name]
    assert check.state == state
    lines = list(diagnosis.lines())
    place = next(number for number, line in enumerate(lines) if line.startswith(f"  {name} ({state}): "))
    assert advice in lines[place + 1]
    assert {path for path in ("cpu", "gpu") if not diagnose(host, path).works} == set(no_longer.split())
    assert diagnose(host).works is ("cpu" not in no_longer)


@pytest.mark.parametrize("cuda", [12, 13])
def test_where_all_is_there_nothing_is_to_be_done(cuda: int) -> None:
    diagnosis = diagnose(MadeUpHost(cuda), "gpu")
    assert [check.name for check in diagnosis.checks if check.state != "ok"] == []
    lines = list(diagnosis.lines())
    assert "What to do:" not in lines
    assert lines[-1] == "The GPU path works here."
    assert any("NVIDIA H200, compute capability 9.0, 141 GiB" in line for line in lines)
    assert any(f"2.4.0, built for CUDA {cuda}" in line for line in lines)


def test_the_division_of_cores_is_shown_with_what_limits_it() -> None:
    host = MadeUpHost()
    table = "\n".join(diagnose(host, "gpu").lines())
    assert "16: 8 ranks share 128 cores" in table
    assert "images 8, videos 8, PNG 16, PIL and PyAV 4" in table
    assert "128 MiB on the GPU, 128 MiB page-locked" in table
    host.gpu_visible = False
    assert "images 16, videos 16, PIL and PyAV 4" in "\n".join(diagnose(host).lines())


def test_a_torch_that_is_too_new_for_the_driver_is_mended_by_commands() -> None:
    host = MadeUpHost()
    host.findings["torch",] = Finding({"version": "2.11.0", "cuda": "13.0", "available": False})
    host.findings["driver",] = Finding({"version": "550.54", "from": "NVML"})
    lines = "\n".join(diagnose(host, "gpu").lines())
    assert "pip install --force-reinstall torch --index-url" in lines
    assert 'pip install "energon-dali[cuda12]"' in lines


def test_without_dali_and_gpu_the_cpu_path_works_and_little_is_advised() -> None:
    host = MadeUpHost()
    del host.versions["nvidia-dali-cuda130"]
    host.findings["dali",] = Finding(error="ModuleNotFoundError: no nvidia")
    host.gpu_visible = False
    host.findings["torch",] = Finding({"version": "2.11.0+cpu", "cuda": None, "available": False})
    diagnosis = diagnose(host)
    assert diagnosis.works
    assert [check.name for check in diagnosis.gpu_checks] == ["GPU", "CUDA in torch", "Triton"]
    advised = [line.split(" (")[0].strip() for line in diagnosis.lines() if " (missing): " in line]
    assert advised == ["NVIDIA DALI", "GPU"]
    assert not diagnose(host, "gpu").works


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ({"/sys/fs/cgroup/cpu.max": "350000 100000\n"}, "16 of 32, 3.5 by the quota of the container"),
        ({"/sys/fs/cgroup/cpu.max": "max 100000\n"}, "16 of 32"),
        (
            {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            "16 of 32, 2 by the quota of the container",
        ),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, "16 of 32"),
    ],
)
def test_quotas_of_containers_are_seen(texts: dict[str, str], shown: str) -> None:
    host = MadeUpHost()
    host.texts = texts
    (cores,) = [check for check in diagnose(host, "cpu").checks if check.name == "CPU cores"]
    assert cores.found == shown


def test_a_probe_that_fails_hangs_or_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    assert host.probe("imports", "json", "no_such_module").facts == {
        "json": "",
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    }
    assert host.probe("jpeg_engine", "libnothing.so.1").error == "DeviceError: libnothing.so.1 is not found."
    assert host.probe("no_such_probe").error == "KeyError: 'no_such_probe'"
    assert host.probe("imports", "tests.cli.ending").error == "the process was ended by SIGSEGV"
    assert Host(timeout_seconds=0.5).probe("imports", "tests.cli.endless").error == "no answer within 0.5 s"


@pytest.mark.usefixtures("warm_programs")
def test_this_machine(tmp_path: Path) -> None:
    report = tmp_path / "new" / "doctor.json"
    done = CliRunner().invoke(main, ["doctor", "--device", "cpu", "--json", str(report)])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "The CPU path works here."
    told = json.loads(report.read_text())
    assert told["works"] is True
    states = {check["name"]: check["state"] for check in told["checks"]}
    assert states["JPEG, DALI on the CPU"] == states["H.264, PyAV"] == states["torch"] == "ok"


def test_the_exit_status_is_that_of_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for works in (True, False):
        monkeypatch.setattr(Diagnosis, "works", works)
        monkeypatch.setattr("energon_dali.diagnosis.Host", MadeUpHost)
        assert CliRunner().invoke(main, ["doctor", "--device", "gpu"]).exit_code == (not works)


def test_a_report_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("energon_dali.diagnosis.Host", MadeUpHost)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["doctor", "--json", str(tmp_path / "file" / "doctor.json")])
    assert done.exit_code == 1
    assert "The CPU path works here." in done.output
    assert "doctor.json cannot be written" in done.output


def test_what_urls_alone_need_keeps_no_path_from_working() -> None:
    host = MadeUpHost()
    host.findings[("imports",)] = Finding({"multistorageclient": "ModuleNotFoundError: No module named 'xattr'"})
    diagnosis = diagnose(host, "gpu")
    (check,) = [check for check in diagnosis.checks if check.name == "multi-storage-client"]
    assert (check.state, diagnosis.works) == ("broken", True)
    host.findings[("imports",)] = Finding({"av": "ImportError: libav.so"})
    assert not diagnose(host, "gpu").works
