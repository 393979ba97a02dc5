"""From recordings in shards to features: audio front ends, and transformers' extractors in a torch DataLoader.

python -m benchmarks.audio_features                       # Whisper, Gemma 3n, CLAP, wav2vec 2, SeamlessM4T; minutes
python -m benchmarks.audio_features --models clap --repetitions 7
python -m benchmarks.audio_features --workers 2           # with worker processes, whose CPU time is not counted

Both read the same tar files of FLAC and of WAV at the model's rate, and make the same batches. The DataLoader decodes
with soundfile, or with PyAV where it is not installed. Runs alternate, each in a process of its own with one thread.
The last row of a model is without reading and decoding: features of decoded samples. The last of
all are decoding alone.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import commit, describe_machine
from benchmarks.measuring import finish, write_shards
from benchmarks.results import summarise

ROOT = Path(__file__).resolve().parent.parent
EXTRACTORS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "whisper": ("WhisperFeatureExtractor", {"feature_size": 80}, {}),
    "gemma3n": ("Gemma3nAudioFeatureExtractor", {}, {}),
    "clap": ("ClapFeatureExtractor", {}, {}),
    "wav2vec2": ("Wav2Vec2FeatureExtractor", {"return_attention_mask": True}, {"padding": True}),
    "seamless_m4t": ("SeamlessM4TFeatureExtractor", {}, {}),
}
"""(class, values, options of the call) of each model's extractor."""
LIBRARIES = ("energon_dali", "transformers")
CODECS = {"flac": "flac", "wav": "pcm_s16le"}
"""FFmpeg's encoder of each kind of file."""
DECODER = "soundfile" if find_spec("soundfile") else "pyav"
"""What the DataLoader decodes with."""
PER_SHARD = 50
BATCH = 8
WARMUP_BATCHES = 2
SHORTEST_SECONDS, LONGEST_SECONDS = 4.0, 16.0
DISTINCT = 24
"""Recordings that differ; the files repeat them."""


def recordings(rate: int) -> list[Any]:
    """Returns float32[samples] of tones that move, in noise, with pauses, from shortest to longest."""
    draw, made = np.random.default_rng(7), []
    for seconds in np.linspace(SHORTEST_SECONDS, LONGEST_SECONDS, DISTINCT):
        when = np.arange(int(seconds * rate)) / rate
        tone = sum(np.sin(2 * np.pi * hertz * when * (1 + 0.05 * when)) for hertz in draw.uniform(90, 3000, 4))
        loud = 0.1 * tone * (when % 1.3 < 1.0) + 0.01 * draw.standard_normal(len(when))
        made.append(np.clip(loud, -1, 1).astype(np.float32))
    return made


def encode(kind: str, waveform: Any, rate: int) -> bytes:
    """Returns a FLAC or WAV file of 16 bits."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream = container.add_stream(CODECS[kind], rate=rate)
        stream.codec_context.layout, stream.codec_context.format = "mono", "s16"
        values = np.round(waveform * 32767).astype(np.int16)[None]
        for start in range(0, values.shape[1], 4096):
            frame = av.AudioFrame.from_ndarray(values[:, start : start + 4096], format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


def dataset(folder: Path, kind: str, rate: int, samples: int) -> Path:
    """Returns a dataset of FLAC or WAV files, made if it is not there."""
    root = folder / f"{kind}-{rate}-{samples}"
    if root.exists():
        return root
    files = [encode(kind, waveform, rate) for waveform in recordings(rate)]
    order = np.random.default_rng(3).permutation(np.arange(samples) % DISTINCT)
    write_shards(root, samples, PER_SHARD, lambda number: {kind: files[order[number]], "txt": b"a"})
    finish(root, "CaptioningSample", {"image": kind, "caption": "txt"})
    return root


def decode_theirs(data: bytes, rate: int) -> Any:
    """Returns the samples of a recording of one channel as soundfile, or PyAV, decodes them: float32[samples]."""
    if DECODER == "soundfile":
        samples, found = import_module("soundfile").read(io.BytesIO(data), dtype="float32")
        assert found == rate
        assert samples.ndim == 1
        return samples
    import av

    resampler = av.AudioResampler("flt", "mono", rate)
    with av.open(io.BytesIO(data)) as container:
        frames = [made for frame in container.decode(audio=0) for made in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def make_extractor(model: str) -> Any:
    """Returns the extractor of a model."""
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()
    name, values, _ = EXTRACTORS[model]
    return getattr(transformers, name)(**values)


def extract(model: str, extractor: Any, waveforms: list[Any]) -> Any:
    """Returns the extractor's batch."""
    options = dict(EXTRACTORS[model][2])
    if model != "gemma3n":
        options["sampling_rate"] = extractor.sampling_rate
    return extractor(waveforms, return_tensors="pt", **options)


def our_batches(model: str, root: Path, workers: int) -> Iterator[Any]:
    """Yields batches of energon_dali."""
    import energon_dali as ed

    name, values, _ = EXTRACTORS[model]
    front_end = ed.AudioFrontEnd.from_processor({"feature_extractor_type": name, **values})

    class Encoder(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = ed.SampleDecoder(audio_front_end=front_end)

        @ed.stateless
        def batch(self, samples: list[Any]) -> Any:
            return ed.batch_audio([sample.image for sample in samples])

    data = ed.get_train_dataset(
        root,
        task_encoder=Encoder(),
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=BATCH,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    yield from ed.get_loader(data)


def their_batches(model: str, root: Path, workers: int) -> Iterator[Any]:
    """Yields batches of transformers' extractor in a torch DataLoader over webdataset."""
    import webdataset
    from torch.utils.data import DataLoader

    extractor = make_extractor(model)

    def decode(sample: dict[str, Any]) -> Any:
        return decode_theirs(next(sample[kind] for kind in CODECS if kind in sample), extractor.sampling_rate)

    files = sorted(str(path) for path in root.glob("*.tar"))
    data = webdataset.WebDataset(files, shardshuffle=False, empty_check=False).map(decode).repeat()
    yield from DataLoader(
        data, batch_size=BATCH, num_workers=workers, collate_fn=lambda waveforms: extract(model, extractor, waveforms)
    )


def run_loader(library: str, model: str, root: Path, samples: int, workers: int) -> dict[str, float]:
    """Returns the CPU time per sample and samples per second of a loader in this process."""
    import torch

    torch.set_num_threads(1)
    batches = (our_batches if library == LIBRARIES[0] else their_batches)(model, root, workers)
    for _ in range(WARMUP_BATCHES):
        next(batches)
    count = max(1, samples // BATCH)
    cpu, begin = time.process_time(), time.perf_counter()
    for _ in range(count):
        next(batches)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - begin
    found = {"samples_per_second": count * BATCH / seconds}
    return found if workers else {"cpu_ms_per_sample": 1e3 * cpu / (count * BATCH), **found}


def run_features(model: str, repetitions: int) -> dict[str, list[dict[str, float]]]:
    """Returns the CPU time per sample of features and batches of decoded samples, in turns."""
    import torch

    from energon_dali import AudioFrontEnd, batch_audio

    torch.set_num_threads(1)
    name, values, _ = EXTRACTORS[model]
    front_end = AudioFrontEnd.from_processor({"feature_extractor_type": name, **values})
    extractor = make_extractor(model)
    waveforms = recordings(front_end.sampling_rate)
    np.random.default_rng(5).shuffle(waveforms)
    groups = [waveforms[start : start + BATCH] for start in range(0, DISTINCT, BATCH)]
    ways: dict[str, Callable[[list[Any]], Any]] = {
        LIBRARIES[0]: lambda some: batch_audio([front_end.render(waveform) for waveform in some]),
        LIBRARIES[1]: lambda some: extract(model, extractor, some),
    }
    found: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
    for number in range(repetitions + 1):
        for library, make in ways.items():
            cpu = time.process_time()
            for some in groups:
                make(some)
            if number:  # the first warms up
                found[library].append({"cpu_ms_per_sample": 1e3 * (time.process_time() - cpu) / DISTINCT})
    return found


def run_decoding(kind: str, repetitions: int) -> dict[str, list[dict[str, float]]]:
    """Returns the CPU time per recording at 16 kHz of opening and decoding files in memory, in turns."""
    from energon_dali import AudioFrontEnd
    from energon_dali.decode.audio_front_ends.audio_decoding import read_waveform, stage_recording
    from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle, AudioSpec

    rate = 16_000
    spec = AudioSpec(AudioFrontEnd.from_processor({"feature_extractor_type": EXTRACTORS["whisper"][0]}))
    files = [encode(kind, waveform, rate) for waveform in recordings(rate)]

    def decode_ours(data: bytes) -> Any:
        handle, _ = stage_recording("audio", data, spec)
        assert isinstance(handle, AudioHandle)
        return read_waveform(handle)[0]

    ways: dict[str, Callable[[bytes], Any]] = {
        LIBRARIES[0]: decode_ours,
        LIBRARIES[1]: lambda data: decode_theirs(data, rate),
    }
    for data in files:
        assert np.array_equal(*(decode(data) for decode in ways.values()))
    found: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
    for _ in range(repetitions):
        for library, decode in ways.items():
            cpu = time.process_time()
            for data in files:
                decode(data)
            found[library].append({"cpu_ms_per_sample": 1e3 * (time.process_time() - cpu) / DISTINCT})
    return found


def run_apart(arguments: Sequence[str]) -> Any:
    """Returns what this program prints in a process of its own, with one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.audio_features", *arguments]
    done = subprocess.run(command, env={**os.environ, **threads}, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def row_of(model: str, what: str, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Returns a row of the results: medians and spreads, and the ratio of the extractor to the front end."""
    key = "cpu_ms_per_sample" if "cpu_ms_per_sample" in runs[LIBRARIES[0]][0] else "samples_per_second"
    ours, theirs = ([run[key] for run in runs[library]] for library in LIBRARIES)
    ratios = [b / a if key.startswith("cpu") else a / b for a, b in zip(ours, theirs, strict=True)]
    row = {library: summarise(runs[library]) for library in LIBRARIES}
    return {"model": model, "what": what, **row, "times_faster": float(np.median(ratios)), "ratios": ratios}


def measure(model: str, folder: Path, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the rows of a model."""
    rate = 48_000 if model == "clap" else 16_000
    shared = ["--folder", str(folder), "--samples", str(given.samples), "--workers", str(given.workers)]
    for kind in CODECS:
        root = dataset(folder, kind, rate, given.samples + PER_SHARD)
        runs: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
        for _ in range(given.repetitions):
            for library in LIBRARIES:
                runs[library].append(run_apart(["--run", library, model, str(root), *shared]))
        yield row_of(model, f"from shards of {kind.upper()}", runs)
    features = run_apart(["--run", "features", model, "-", "--repetitions", str(given.repetitions)])
    yield row_of(model, "features alone", features)


def measure_decoding(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the rows of decoding alone."""
    for kind in CODECS:
        runs = run_apart(["--run", "decoding", kind, "-", "--repetitions", str(given.repetitions)])
        yield row_of("any", f"decoding {kind.upper()}", runs)


def by_model(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each model, how many times less CPU time a front end takes, by what was measured."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["model"], {"model": row["model"]})[row["what"]] = row["times_faster"]
    return [entry for entry in found.values() if "features alone" in entry]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results, and writes them with the machine."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audio_features", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(EXTRACTORS), choices=list(EXTRACTORS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keeps the data; without it, a temporary folder")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/audio-features.json")
    parser.add_argument("--run", nargs=3, metavar=("LIBRARY", "MODEL", "DATA"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.run:
        library, model, data = given.run
        if library == "features":
            print(json.dumps(run_features(model, given.repetitions)))
        elif library == "decoding":
            print(json.dumps(run_decoding(model, given.repetitions)))
        else:
            print(json.dumps(run_loader(library, model, Path(data), given.samples, given.workers)))
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        for part in (*(measure(model, folder, given) for model in given.models), measure_decoding(given)):
            for row in part:
                rows.append(row)
                print(_line(row), flush=True)
            made = {"machine": describe_machine(), "commit": commit(ROOT), "decoder": DECODER, "workers": given.workers}
            made |= {"models": by_model(rows), "rows": rows}
            given.json.write_text(json.dumps(made, indent=1) + "\n")
    return 0


def _line(row: dict[str, Any]) -> str:
    numbers = []
    for library in LIBRARIES:
        for metric, values in row[library].items():
            spread = f"{values['median']:.2f} ({values['low']:.2f} to {values['high']:.2f})"
            numbers.append(f"{library} {spread} {metric}")
    return f"{row['model']}, {row['what']}: {row['times_faster']:.2f} times; " + "; ".join(numbers)


if __name__ == "__main__":
    raise SystemExit(main())
