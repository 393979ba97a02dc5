"""`energon-dali lint` reports what training would lose, and nothing else."""

from __future__ import annotations

import functools
import io
import json
import pickle
import shutil
from pathlib import Path

import av
import pytest
from click.testing import CliRunner

from energon_dali.av import AVDecoder
from energon_dali.cli.main import main
from energon_dali.diagnosis.lint import LintJob, join_reports, run_share
from energon_dali.shards import prepare_jsonl
from tests.av.corpus import audio_file, video_file
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards

GOLDEN = Path(__file__).parent.parent / "data" / "energon_7_4_1_mix"


def lint(*words: object) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, ["lint", *map(str, words)])
    return result.exit_code, result.output.splitlines()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Nine samples in three shards: k0001 has no caption, k0002 has a truncated image; the last shard changed later."""
    samples = {f"k{number:04d}": captioning_sample(4 * number) for number in range(9)}
    del samples["k0001"]["txt"]
    samples["k0002"]["jpg"] = samples["k0002"]["jpg"][:200]
    folder = prepare(write_shards(tmp_path / "damaged", samples))
    shard = folder / "shard_002.tar"
    content = shard.read_bytes()
    assert content.count(b"k0007.jpg") == 1
    shard.write_bytes(content.replace(b"k0007.jpg", b"k0007.gif").replace(b"k0008", b"x0008"))
    return folder


@pytest.mark.parametrize("decoder", ["pil", "dali"])
def test_every_bad_sample_is_named_with_its_shard_and_the_reason(decoder: str, damaged: Path) -> None:
    code, lines = lint(damaged, "--split-parts", "train", "--decoder", decoder)
    assert code == 1
    index = lines.index(f"{damaged}, train: 9 samples, errors: 4")
    assert lines[0].startswith(f"{damaged}, index: ")
    found = [line.split(maxsplit=3) for line in lines[index + 1 :]]
    assert [row[:3] for row in found] == [
        ["shard_000.tar", "k0001", "DatasetFormatError:"],
        ["shard_000.tar", "k0002", "DecodeError:"],
        ["shard_002.tar", "k0007", "ShardError:"],
        ["shard_002.tar", "k0008", "ShardError:"],
    ]
    assert "no part 'txt'" in found[0][3]


def test_video_and_sound_are_decoded_to_their_end(tmp_path: Path) -> None:
    """Their headers are intact: a file without its second half, and some with garbage in the middle."""
    video, sound = with_its_index_in_front(video_file("h264-b-mp4"), tmp_path), audio_file("mp3")
    files = {
        "good": {"mp4": video},
        "heard": {"mp3": sound},
        "cut": {"mp4": video[: len(video) // 2]},
        "seen_wrong": {"mp4": with_garbage(video)},
        "heard_wrong": {"mp3": with_garbage(sound)},
    }
    for parts in files.values():
        metadata = AVDecoder(next(iter(parts.values()))).get_metadata()
        assert metadata.video_num_frames or metadata.audio_duration
    folder = write_shards(tmp_path / "media", {key: {**parts, "txt": b"-"} for key, parts in files.items()}, 1)
    prepare(folder, {"image": "mp4,mp3", "caption": "txt"})
    code, lines = lint(folder, "--split-parts", "train")
    assert code == 1
    assert lines[1] == f"{folder}, train: 5 samples, errors: 3"
    assert [line.split(maxsplit=3)[1:3] for line in lines[2:]] == [
        [key, "DecodeError:"] for key in ("cut", "heard_wrong", "seen_wrong")
    ]


def with_its_index_in_front(data: bytes, folder: Path) -> bytes:
    """Returns an MP4 file with its index at the front, as for streaming."""
    path = folder / "in_front.mp4"
    with av.open(io.BytesIO(data)) as given, av.open(path, "w", options={"movflags": "faststart"}) as made:
        streams = [made.add_stream_from_template(stream) for stream in given.streams]
        for packet in given.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                made.mux(packet)
    return path.read_bytes()


def with_garbage(data: bytes) -> bytes:
    """Returns a file with changed bytes in the middle."""
    half, length = len(data) // 2, len(data) // 6
    return data[:half] + b"\xff" * length + data[half + length :]


def test_an_index_that_does_not_fit_is_named(damaged: Path) -> None:
    (damaged / "shard_001.tar.idx").write_bytes((damaged / "shard_000.tar.idx").read_bytes()[::-1])
    code, lines = lint(damaged, "--split-parts", "train")
    assert code == 1
    flaws = lines[1 : lines.index(f"{damaged}, train: 9 samples, errors: 4")]
    assert [flaw.split(maxsplit=1)[0] for flaw in flaws] == ["shard_001.tar", "shard_002.tar"]
    assert "offsets that do not grow" in flaws[0]
    assert "checksum" in flaws[1]
    other = (damaged / "shard_000.tar").read_bytes()
    (damaged / "shard_002.tar").write_bytes(other)
    shutil.copy(damaged / "shard_000.tar.idx", damaged / "shard_001.tar.idx")
    _, lines = lint(damaged, "--split-parts", "train")
    told = "\n".join(lines[: lines.index(f"{damaged}, train: 9 samples, errors: 5")])
    assert "the offsets in shard_001.tar.idx differ from those of the tar" in told
    for index in ("extents", "index.sqlite"):
        assert f"shard_002.tar  k0000  {index} has the key 'k0006' instead" in told


def test_shares_of_several_processes_are_the_whole(damaged: Path) -> None:
    def run(shares: int) -> list[list[str]]:
        job = LintJob(str(damaged), ("train", "val"), "pil", {}, shares)
        task = pickle.loads(pickle.dumps(functools.partial(run_share, job)))
        whole, *others = (task(share) for share in range(shares))
        for other in others:
            whole = [join_reports(*pair) for pair in zip(whole, other, strict=True)]
        return [[report.name, str(report.num_samples), *sorted(map(str, report.flaws))] for report in whole]

    assert run(1) == run(2)
    assert sum(map(len, run(1))) > 10


@pytest.mark.filterwarnings("ignore:.*subflavor is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["second.yaml", "join.yaml"])
def test_metadatasets_are_whole(name: str) -> None:
    code, lines = lint(GOLDEN / name)
    assert (code, lines[-1]) == (0, "Done. Nothing is wrong.")
    assert sum(", index: errors: 0" in line for line in lines) >= 3


def test_a_part_without_samples_says_so(damaged: Path) -> None:
    (damaged / ".nv-meta" / "split.yaml").write_text("split_parts: {train: [shard_001.tar], val: []}")
    code, lines = lint(damaged)
    assert code == 1, "the index of a shard outside every part is still wrong"
    assert lines[-2:] == [f"{damaged}, train: 3 samples, errors: 0", f"{damaged}, val: 0 samples, errors: 0"]


def test_lines_and_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(json.dumps({"n": 0}) + "\n{broken\n")
    prepare_jsonl(str(file))
    code, lines = lint(file)
    assert code == 1
    assert lines[0] == f"{file}, train: 2 samples, errors: 1"
    assert lines[1].split()[:3] == ["lines.jsonl", "1", "DecodeError:"]
    code, lines = lint(tmp_path / "nothing")
    assert code == 1
    assert lines == [f"Error: {tmp_path / 'nothing'} is not a folder. Give the folder that holds the tar shards."]
