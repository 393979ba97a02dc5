"""How the names get into a program: the finder beside other packages, the command, child processes, the decoder."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from energon_dali import DaliDecoder, DefaultTaskEncoder, RandomResizedCrop, SampleDecoder, get_train_dataset
from energon_dali.compat import install
from energon_dali.compat.finder import install_finder
from energon_dali.compat.loading import _options, swap_decoder
from energon_dali.compat.run import parse
from energon_dali.decode.media_decoder import DecoderOptions
from energon_dali.errors import ConfigError
from tests.decode.every_option import given_options

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, multiprocessing, sys
from importlib.metadata import version
import megatron.core
from megatron.energon.epathlib import EPath

class Config:
    path = EPath("/a") / "b"

def in_child(config):
    import megatron.energon
    return [str(config.path), megatron.energon.__version__, __name__]

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        child = pool.apply(in_child, [Config()])
    print(json.dumps([megatron.core.NAME, version("megatron-energon"), child, sys.argv[1:]]))
"""


@pytest.mark.parametrize("regular", [False, True], ids=["namespace", "regular"])
def test_the_command_runs_a_program_beside_megatron_core_and_energon(tmp_path: Path, regular: bool) -> None:
    for package, text in (("core", "NAME = 'the real core'"), ("energon", "raise AssertionError('Energon itself')")):
        folder = tmp_path / "lib" / "megatron" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    if regular:
        (tmp_path / "lib" / "megatron" / "__init__.py").touch()
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ["-m", "train", "--lr", "1"] if regular else [str(tmp_path / "train.py"), "--lr", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "energon_dali.compat", "--decoder", "sample", *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path / 'lib'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        "the real core",
        "7.4.1",
        ["/a/b", "7.4.1", "__mp_main__"],
        ["--lr", "1"],
    ]
    warnings = [line for line in done.stderr.splitlines() if "Megatron Energon is installed in" in line]
    assert len(warnings) == 2  # one in each process


RERUN = """
import json, os, subprocess, sys
import __main__
import beside
from megatron.energon import __version__

if "RANK_OF_TEST" in os.environ:
    print(json.dumps([__version__, __name__, os.path.basename(__file__), sys.argv[1:], beside.NAME]))
else:
    command = [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]
    subprocess.run(command, env={**os.environ, "RANK_OF_TEST": "1"}, check=True)
"""


def test_a_launcher_starts_the_program_again_by_its_spec(tmp_path: Path) -> None:
    """As Lightning's launcher of subprocesses does for the other ranks."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "beside.py").write_text("NAME = 'a module beside the program'")
    (folder / "train.py").write_text(RERUN)
    done = subprocess.run(
        [sys.executable, "-m", "energon_dali.compat", "programs/train.py", "--lr", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["7.4.1", "__main__", "train.py", ["--lr", "1"], "a module beside the program"]


def test_the_command_needs_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--decoder", "dali"])
    assert "give a program or -m MODULE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--decoder", "opencv", "train.py"])
    options, words = parse(["--decoder", "dali", "train.py", "--decoder", "x", "-m"])
    assert (options.decoder, words) == ("dali", ["train.py", "--decoder", "x", "-m"])
    options, words = parse(["--trust-datasets", "-m", "a.b", "--x"])
    assert (options.trust_datasets, options.module, words) == (True, ["a.b", "--x"], ["a.b", "--x"])


def test_energon_itself_must_not_be_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setitem(sys.modules, "megatron.energon", json)
    with pytest.raises(ConfigError, match=r"the first line of the program"):
        install_finder()


def test_unknown_decoders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="decoder='opencv' is unknown"):
        install(decoder="opencv")  # type: ignore[arg-type]
    monkeypatch.setenv("ENERGON_DALI_COMPAT_DECODER", "opencv")
    with pytest.raises(ConfigError, match="give 'sample' or 'dali'"):
        install()


def test_decoders_of_tensors_become_dali_decoders(caplog: pytest.LogCaptureFixture) -> None:
    options = {"image_decode": "torchrgb8", "operations": (RandomResizedCrop(32),), "max_pixels": 10_000}
    swapped = swap_decoder(SampleDecoder(**options))  # type: ignore[arg-type]
    assert isinstance(swapped, DaliDecoder)
    assert {**swapped.config(), **SampleDecoder(**options).config()} == swapped.config()  # type: ignore[arg-type]

    class Own(SampleDecoder):
        pass

    assert swap_decoder(None) is None
    with caplog.at_level(logging.WARNING, "energon_dali.compat"):
        for kept in (SampleDecoder(image_decode="pilrgb"), SampleDecoder(image_decode="rgb8"), Own()):
            assert swap_decoder(kept) is kept
            assert swap_decoder(kept) is kept
    assert len(caplog.records) == 3
    assert "image_decode='pilrgb') stays: its results are PIL images" in caplog.text


@pytest.mark.parametrize("name", DecoderOptions.__annotations__)
def test_dali_decoders_keep_every_option(name: str) -> None:
    given = SampleDecoder(**given_options(name))
    assert given.config()[name] != SampleDecoder().config()[name]
    swapped = swap_decoder(given)
    assert isinstance(swapped, DaliDecoder)
    kept = {option: given.config()[option] for option in given_options(name)}
    assert {**DaliDecoder().config(), **kept} == swapped.config()


def test_the_task_encoder_of_the_program_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_DALI_COMPAT_DECODER", "dali")
    encoder = DefaultTaskEncoder()
    given = _options({"task_encoder": encoder})["task_encoder"]
    assert isinstance(given.decoder, DaliDecoder)
    assert type(encoder.decoder) is SampleDecoder
    assert isinstance(_options({})["task_encoder"].decoder, DaliDecoder)
    monkeypatch.setenv("ENERGON_DALI_COMPAT_DECODER", "sample")
    assert _options({"task_encoder": encoder})["task_encoder"] is encoder
    assert get_train_dataset is not None
