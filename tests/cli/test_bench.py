"""`energon-dali bench` measures every stage and setting, and `tune` chooses among settings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from energon_dali import (
    ConfigError,
    DaliDecoder,
    DefaultTaskEncoder,
    Resize,
    SampleDecoder,
    TaskEncoder,
    VideoClips,
    WorkerConfig,
    get_train_dataset,
    stateless,
)
from energon_dali.cli.bench import describe
from energon_dali.cli.main import main
from energon_dali.decode.media_decoder import DecoderOptions
from energon_dali.diagnosis import rates as rates_module
from energon_dali.diagnosis import tune as tuning
from energon_dali.diagnosis.bench import bench, decoder_of, measure_stages
from energon_dali.diagnosis.rates import (
    CpuMeter,
    CpuUse,
    LoaderRate,
    Setting,
    StageRate,
    advise,
    usable_decoders,
    with_decoder,
)
from energon_dali.loader.statistics import LoaderStatistics
from tests.decode.every_option import EVERY_DALI_OPTION, given_options
from tests.loader.dataset_folder import captioning_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("bench") / "images", 24, 2)


class Measuring(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8", operations=[Resize((16, 16))])
    seen: ClassVar[Counter[str]] = Counter()

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.seen[sample.__key__] += 1
        assert tuple(sample.image.shape) == (3, 16, 16)
        return sample


class Early(TaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=[Resize((16, 16))], image_decode_device="cpu")

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        assert sample.image.width >= 64  # a handle, which has its size
        return sample


def open_with(folder: Path, encoder: Any) -> Any:
    def opened(setting: Setting) -> Any:
        job = WorkerConfig(rank=0, world_size=1, num_workers=setting.num_workers, num_streams=4)
        chosen = with_decoder(encoder, setting.decoder)
        return get_train_dataset(str(folder), worker_config=job, batch_size=4, task_encoder=chosen)

    return opened


def test_each_stage_and_setting_is_measured(folder: Path) -> None:
    Measuring.seen.clear()
    told: list[Any] = []
    settings = [Setting(0), Setting(1, 3), Setting(0, 2, "dali-cpu")]
    result = bench(open_with(folder, Measuring()), settings, seconds=0.4, report=told.append)
    assert [stage.name for stage in result.stages] == ["reading", "decoding", "hooks"]
    assert all(one.samples > 0 and one.seconds > 0 and not one.problem for one in told)
    assert result.stages[0].size_bytes > 0
    assert [one.setting for one in result.loaders] == settings
    assert result.best in result.loaders
    assert "encode_sample" in result.loaders[0].stage_seconds
    assert len(Measuring.seen) == 24
    assert result.advice[0].startswith("Time per sample in one process, each alone: ")


def test_hooks_that_see_handles_are_measured_with_them(folder: Path) -> None:
    dataset = open_with(folder, Early())(Setting(0))
    _, decoding, hooks = measure_stages(dataset, decoder_of(dataset), 0.05)
    assert decoding.samples > 0
    assert hooks.samples > 0
    assert hooks.problem.startswith("with decoding")


def test_a_setting_that_cannot_run_is_told(folder: Path) -> None:
    class Broken(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = None

        def encode_sample(self, sample: Any) -> Any:
            raise MemoryError

    result = bench(open_with(folder, Broken()), [Setting(0)], seconds=0.01)
    assert "encode_sample raised MemoryError" in result.loaders[0].problem
    assert "encode_sample raised MemoryError" in result.stages[2].problem
    assert any("could not run: FatalSampleError" in sentence for sentence in result.advice)


def test_decoders_are_exchanged_with_their_options() -> None:
    own = Measuring()
    assert with_decoder(own, "own") is own
    dali = with_decoder(own, "dali-cpu").decoder
    assert isinstance(dali, DaliDecoder)
    assert (dali.image_decode_device, dali.spec) == ("cpu", own.decoder.spec)
    back = with_decoder(with_decoder(own, "dali-cpu"), "pil").decoder
    assert type(back) is SampleDecoder
    assert back.config() == own.decoder.config()
    clips = type("OfVideos", (DefaultTaskEncoder,), {"decoder": SampleDecoder(av_decode=VideoClips(1, 8))})()
    assert with_decoder(clips, "dali-cpu").decoder.av_decode == VideoClips(1, 8)
    assert usable_decoders(own.decoder)[:2] == ["own", "dali-cpu"]
    assert usable_decoders(None) == ["own"]
    with pytest.raises(ConfigError, match="cannot be exchanged"):
        with_decoder(type("Other", (DefaultTaskEncoder,), {"decoder": None})(), "pil")


@pytest.mark.parametrize("name", [*DecoderOptions.__annotations__, *EVERY_DALI_OPTION])
def test_exchanged_decoders_keep_every_option(name: str) -> None:
    given = DaliDecoder(**given_options(name))
    assert given.config()[name] != DaliDecoder().config()[name]
    encoder = type("Given", (DefaultTaskEncoder,), {"decoder": given})()
    devices = {"image_decode_device": "cpu", "video_decode_device": "cpu"}
    assert with_decoder(encoder, "dali-cpu").decoder.config() == {**given.config(), **devices}
    shared = SampleDecoder().config()
    assert with_decoder(encoder, "pil").decoder.config() == {option: given.config()[option] for option in shared}


def test_the_advice_names_what_takes_the_time() -> None:
    stages = [StageRate("reading", 100, 0.1), StageRate("decoding", 100, 3.0), StageRate("hooks", 100, 0.2)]
    did = LoaderStatistics(
        batches=2,
        elapsed_seconds=10.0,
        blocked_seconds=10.0,
        first_batch_seconds=0.0,
        stage_seconds={"decode": 9.0, "read": 1.0},
        cpu_seconds={"decode": 9.0},
    )
    slow = LoaderRate(Setting(0), 30, 1.0, 0.1)
    fast = LoaderRate(Setting(2), 55, 1.0, 0.3, {"decode": 9.0, "read": 1.0}, statistics=did)
    told = "\n".join(advise(stages, [slow, fast]))
    assert "33.00 ms (reading 3%, decoding 91%, hooks 6%)" in told
    assert "Decoding takes most of it" in told
    assert "own, 2 workers, prefetch_factor=2, 1.83 times as fast as own, 0 workers" in told
    assert "decode 9.0 s, read 1.0 s" in told
    assert "Without workers it is fastest" in "\n".join(advise(stages, [LoaderRate(Setting(0), 90, 1.0, 0.1), fast]))


@pytest.mark.parametrize("stage", ["decode", "encode_sample"])
@pytest.mark.parametrize("cpu", [0.0, 9.0])
def test_the_advice_does_not_contradict_the_measurements(stage: str, cpu: float) -> None:
    did = LoaderStatistics(
        batches=2,
        elapsed_seconds=10.0,
        blocked_seconds=10.0,
        first_batch_seconds=0.0,
        stage_seconds={stage: 9.0, "read": 0.04},
        cpu_seconds={stage: cpu},
        hooks=["encode_sample"],
    )
    alone = LoaderRate(Setting(0), 300, 10.0, 0.1, dict(did.stage_seconds), statistics=did)
    text = "\n".join(advise([], [alone, LoaderRate(Setting(2), 290, 10.0, 0.1)]))
    assert "orkers were tried, and were not faster" in text
    assert "help" not in text
    assert "Without workers it is fastest" not in text, "a difference of 3 % is none"
    assert "read 0.0 s" not in text
    text = "\n".join(advise([], [alone, LoaderRate(Setting(2), 0, 0.0, 0.0, problem="it failed")]))
    assert "workers (num_workers) help" in text


def test_cpu_time_of_threads_and_children_is_counted() -> None:
    meter = CpuMeter()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    use = meter.read()
    assert 0.02 <= use.busiest_seconds <= use.own_seconds
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert (child.pid, child.pid) in dict(rates_module._thread_times())
        child.communicate(b"\n")


def test_on_a_busy_machine_settings_are_compared_by_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(open_dataset: Any, setting: Setting, seconds: float) -> LoaderRate:
        by_clock = {0: 50, 1: 10, 2: 20}[setting.num_workers]
        use = CpuUse(own_seconds=1.0, busiest_seconds=0.5 / (1 + setting.num_workers), other_seconds=100.0)
        return LoaderRate(setting, by_clock, 1.0, 0.1, cpu=use)

    monkeypatch.setattr(tuning, "measure_loader", measure)
    monkeypatch.setattr("energon_dali.diagnosis.rates.usable_cores", lambda: 100)
    result = tuning.tune(None, seconds=5, most_workers=2)  # type: ignore[arg-type]
    assert result.is_estimate
    assert result.setting == Setting(2, 1)
    assert result.samples_per_second == 20, "what was measured"
    assert result.estimates[result.setting] == 120
    stored = result.as_dict()
    assert (stored["samples_per_second"], stored["estimated_samples_per_second"]) == (20, 120)
    assert "20.0 samples/s measured, about 120.0 estimated without the other processes" in describe(result)
    told = "\n".join(advise([], [measure(None, Setting(0), 1.0)]))
    assert "Other processes kept up to 100.0 cores busy" in told


def fake_rates(monkeypatch: pytest.MonkeyPatch, rate: Any) -> list[Setting]:
    measured: list[Setting] = []

    def measure(open_dataset: Any, setting: Setting, seconds: float) -> LoaderRate:
        measured.append(setting)
        found = rate(setting)
        return LoaderRate(setting, round(found * 1000), 1000.0, 0.1, problem="" if found else "it is broken")

    monkeypatch.setattr(tuning, "measure_loader", measure)
    return measured


def test_tune_finds_the_fastest_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def rate(setting: Setting) -> float:
        if setting.decoder == "dali-gpu":
            return 0.0
        speed = {0: 10, 1: 20, 2: 40, 4: 70, 8: 60}[setting.num_workers] * (2 if setting.decoder == "dali-cpu" else 1)
        return speed * {1: 0.8, 2: 1, 4: 1.2}[setting.prefetch_factor]

    measured = fake_rates(monkeypatch, rate)
    result = tuning.tune(None, decoders=["own", "dali-cpu", "dali-gpu"], seconds=5, most_workers=8)  # type: ignore[arg-type]
    assert result.setting == Setting(4, 4, "dali-cpu")
    assert result.samples_per_second == 168
    assert result.rates[Setting(2, 2, "dali-gpu")] == 0
    assert measured.count(result.setting) == 4
    result.write(tmp_path / "settings.json")
    written = json.loads((tmp_path / "settings.json").read_text())
    assert (written["num_workers"], written["prefetch_factor"], written["decoder"]) == (4, 4, "dali-cpu")


def test_of_equally_fast_settings_the_smallest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rates(monkeypatch, lambda setting: 100 + setting.num_workers / 8 + setting.prefetch_factor / 10)
    result = tuning.tune(None, seconds=5, most_workers=8, num_streams=6)  # type: ignore[arg-type]
    assert result.setting == Setting(0, 2)
    assert set(result.rates) >= {Setting(0), Setting(1), Setting(2), Setting(3), Setting(6)}


def test_tune_says_when_nothing_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_rates(monkeypatch, lambda setting: 0.0)
    with pytest.raises(ConfigError, match="No setting could run:\nown, 0 workers, prefetch_factor=2: it is broken"):
        tuning.tune(None, seconds=5, most_workers=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 5"):
        tuning.tune(None, seconds=1)  # type: ignore[arg-type]


def test_the_commands_print_rates_and_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [str(folder), "--batch-size", "4", "--encoder", f"{__name__}:Measuring"]
    told = CliRunner().invoke(main, ["bench", *options, "--num-workers", "0", "--decoder", "own", "--seconds", "0.1"])
    assert told.exit_code == 0, told.output
    assert [line.split()[0] for line in told.output.splitlines()[:4]] == ["reading", "decoding", "hooks", "own,"]
    as_json = [*options, "--num-workers", "0", "--decoder", "own", "--seconds", "0.1", "--json"]
    document = json.loads(CliRunner().invoke(main, ["bench", *as_json]).output)
    assert document["loaders"][0]["num_workers"] == 0
    measured = fake_rates(monkeypatch, lambda setting: 1 + setting.num_workers)
    result = CliRunner().invoke(main, ["tune", *options, "--seconds", "5", "--most-workers", "2"])
    assert result.exit_code == 0, result.output
    assert "num_workers=2, num_streams=8 * world_size" in result.output
    assert {setting.decoder for setting in measured} >= {"own", "dali-cpu"}
    result = CliRunner().invoke(
        main, ["tune", *options, "--seconds", "5", "--most-workers", "2", "--write", "/proc/x/y"]
    )
    assert result.exit_code == 1, "the file cannot be written"
    assert "num_workers=2, num_streams=8 * world_size" in result.output
