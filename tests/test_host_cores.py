"""How many cores a rank has, whatever launched it, and how its threads divide them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from energon_dali import host_cores
from energon_dali.decode import DaliDecoder
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.host_decoding import num_host_threads
from energon_dali.decode.dali.runtime.pipeline import PipelineOptions
from energon_dali.host_cores import divide_cores, share_of_rank

GPU = Device("gpu", 0)
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """Returns a function that sets up cores, ranks and cgroups."""

    def set_up(
        cores: int = 128, *, bound: int | None = None, ranks: str | None = None, own: str = "0::/", **files: str
    ) -> None:
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(bound or cores)))
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        if ranks is not None:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "own").write_text(own + "\n")
        monkeypatch.setattr(host_cores, "_CGROUPS", tmp_path)
        monkeypatch.setattr(host_cores, "_OWN_CGROUP", tmp_path / "own")
        for cached in (host_cores._cores_of_cgroup, host_cores._quota_of_cgroup):
            cached.cache_clear()

    yield set_up
    for cached in (host_cores._cores_of_cgroup, host_cores._quota_of_cgroup):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("situation", "cores", "why"),
    [
        ({}, 128, "the cores of the host: 128"),
        ({"ranks": "8"}, 16, "8 ranks share 128 cores"),
        ({"ranks": "0"}, 128, "the cores of the host: 128"),
        ({"ranks": "many"}, 128, "the cores of the host: 128"),
        ({"ranks": "200"}, 1, "200 ranks share 128 cores"),
        # torchrun with numactl: each rank has 16 cores of its own, which must not be divided again.
        ({"ranks": "8", "bound": 16, "cpuset_DOT_cpus_DOT_effective": "0-127"}, 16, "8 ranks share 128 cores"),
        ({"ranks": "8", "bound": 64, "cpuset_DOT_cpus_DOT_effective": "0-127"}, 16, "8 ranks share 128 cores"),
        (
            {"ranks": "2", "bound": 8, "cpuset_DOT_cpus_DOT_effective": "0-127"},
            8,
            "this process is bound to 8 cores",
        ),
        # A container of 32 cores.
        ({"ranks": "8", "bound": 32, "cpuset_DOT_cpus_DOT_effective": "0-15,64-79"}, 4, "8 ranks share 32 cores"),
        ({"bound": 32}, 32, "the cores that this container or process may use: 32"),
        # A quota, as of Kubernetes or `docker run --cpus`.
        ({"ranks": "8", "cpu_DOT_max": "6400000 100000"}, 8, "8 ranks share 64 cores"),
        ({"cpu_DOT_max": "max 100000"}, 128, "the cores of the host: 128"),
        ({"cpu_DOT_max": "50000 100000"}, 1, "a CPU quota of 0.5 cores: 1"),
        # The smallest quota of all groups around the process.
        (
            {"own": "0::/pod/box", "pod__box__cpu_DOT_max": "max 100000", "pod__cpu_DOT_max": "1200000 100000"},
            12,
            "a CPU quota of 12 cores: 12",
        ),
        # Version 1 of cgroups.
        (
            {
                "own": "4:cpu,cpuacct:/box\n3:cpuset:/box",
                "cpu,cpuacct__box__cpu_DOT_cfs_quota_us": "800000",
                "cpu,cpuacct__box__cpu_DOT_cfs_period_us": "100000",
            },
            8,
            "a CPU quota of 8 cores: 8",
        ),
        (
            {
                "own": "4:cpu,cpuacct:/box\n3:cpuset:/box",
                "cpu,cpuacct__box__cpu_DOT_cfs_quota_us": "-1",
                "cpu,cpuacct__box__cpu_DOT_cfs_period_us": "100000",
                "cpuset__box__cpuset_DOT_cpus": "0-63",
                "bound": 8,
                "ranks": "8",
            },
            8,
            "8 ranks share 64 cores",
        ),
    ],
    ids=str,
)
def test_the_cores_of_a_rank(machine: Machine, situation: dict[str, Any], cores: int, why: str) -> None:
    machine(**situation)
    share = share_of_rank()
    assert (share.cores, share.limited_by) == (cores, why)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 16, 32, 192])
def test_images_and_videos_of_a_gpu_have_no_more_threads_than_the_rank_has_cores(cores: int) -> None:
    shares = divide_cores(cores, gpu=True)
    assert shares.images + shares.videos <= max(2, cores)
    assert 1 <= shares.images <= 8
    assert 1 <= shares.videos <= 16
    assert 1 <= shares.on_host <= 16
    assert 2 <= shares.fallbacks <= max(2, cores // 4)


def test_what_eight_ranks_of_a_host_with_128_cores_use(machine: Machine) -> None:
    """Threads, pipelines and bytes of one rank; eight of them fit the host."""
    machine(128, ranks="8")
    options = DaliDecoder().engine_options
    pipelines: dict[str, PipelineOptions] = {
        "images": options.on(GPU),
        "PNG, BMP, PNM": options.on(GPU, on_host=True),
        "videos": options.on(GPU, "video"),
    }
    assert {name: each.num_threads for name, each in pipelines.items()} == {
        "images": 8,
        "PNG, BMP, PNM": 16,
        "videos": 8,
    }
    assert num_host_threads() == 4
    images, on_host = pipelines["images"].tuning, pipelines["PNG, BMP, PNM"].tuning
    # What nvJPEG reserves for each thread: on the device, and page-locked twice.
    assert 8 * images.device_memory_padding == 128 << 20
    assert 8 * 2 * images.host_memory_padding == 128 << 20
    assert (on_host.device_memory_padding, on_host.host_memory_padding, on_host.hw_decoder_load) == (0, 0, 0)
    assert replace(on_host, hw_decoder_load=0.65, device_memory_padding=16 << 20, host_memory_padding=8 << 20) == images
    # Images and videos of all ranks together have one thread per core.
    assert 8 * (pipelines["images"].num_threads + pipelines["videos"].num_threads) == 128


def test_the_simulation_of_doctor_shows_what_ranks_would_use(machine: Machine) -> None:
    """`energon-dali doctor --simulate 8 128`, on any machine; docs/gpu.md has the same table."""
    from energon_dali.cli.main import main

    machine(2)
    done = CliRunner().invoke(main, ["doctor", "--simulate", "8", "128"])
    assert done.exit_code == 0
    head, *lines = done.output.splitlines()
    assert head == "8 ranks share 128 cores, 16 each; each has a GPU of its own"
    numbers = {line[:45].strip(): line[45:].replace(" MiB", "").split() for line in lines[1:]}
    assert numbers == {
        "threads of the pipeline of images": ["8", "64"],
        "threads of the pipeline of PNG, BMP and PNM": ["16", "128"],
        "threads of the pipeline of videos": ["8", "64"],
        "threads of PIL, PyAV and front ends": ["4", "32"],
        "pipelines, if all of these are decoded": ["3", "24"],
        "reserved by nvJPEG on the GPU": ["128", "1024"],
        "page-locked by nvJPEG": ["128", "1024"],
        "hardware decoders of 720p videos": ["232", "1856"],
        "most memory of decoding on the GPU": ["8192", "65536"],
    }
    page = (Path(__file__).parents[1] / "docs" / "gpu.md").read_text()
    assert done.output in page
    refused = CliRunner().invoke(main, ["doctor", "--simulate", "8", "4"])
    assert refused.exit_code != 0
    assert "8 ranks on 4 cores is invalid" in refused.output + str(refused.exception)


def test_pipelines_on_the_cpu_have_the_share_of_their_rank(machine: Machine) -> None:
    machine(128, ranks="8")
    options = DaliDecoder().engine_options
    assert (options.on(Device("cpu"), "image").num_threads, options.on(Device("cpu"), "video").num_threads) == (16, 16)
    assert DaliDecoder(num_threads=5).engine_options.on(Device("cpu")).num_threads == 5
    machine(128)
    assert options.on(Device("cpu")).num_threads == 32
