"""What the container images of the project hold, read without a Docker daemon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from energon_dali.decode.video_backends import nvdec
from energon_dali.diagnosis import Host

ROOT = Path(__file__).parents[1]


def instructions(name: str) -> list[tuple[str, str]]:
    """Returns (instruction, arguments) of a Dockerfile, without comments and with continued lines joined."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest.strip()) for line in joined.splitlines() if line for word, _, rest in [line.partition(" ")]]


def environment(name: str) -> dict[str, str]:
    pairs = [pair for word, rest in instructions(name) if word == "ENV" for pair in rest.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def test_the_image_for_gpus_has_the_video_capability() -> None:
    """CUDA's images default to compute and utility, without which the driver's video library is not mounted."""
    capabilities = environment("Dockerfile")["NVIDIA_DRIVER_CAPABILITIES"]
    assert capabilities == "compute,utility,video"
    assert f"NVIDIA_DRIVER_CAPABILITIES={capabilities}" in nvdec.REMEDY


def test_the_image_for_gpus_has_what_triton_compiles_with() -> None:
    (packages,) = [rest for word, rest in instructions("Dockerfile") if word == "RUN" and "apt-get install" in rest]
    assert {"gcc", "libc6-dev", "python3-dev"} <= set(packages.split())


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cpu"])
def test_images_copy_what_is_there_and_run_the_smoke_test(name: str) -> None:
    words = instructions(name)
    assert words[0][0] == "FROM"
    programs = [match[1] for word, rest in words if word == "RUN" if (match := re.search(r"python /src/(\S+)", rest))]
    assert programs
    for path in (*programs, "constraints-ci.txt"):
        assert (ROOT / path).is_file(), path


def test_what_lacks_to_compile_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("energon_dali.diagnosis.host.sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Host().lacks_to_compile() == ["a C compiler", "Python.h"]
    (tmp_path / "Python.h").touch()
    (tmp_path / "gcc").touch(mode=0o755)
    assert Host().lacks_to_compile() == []
