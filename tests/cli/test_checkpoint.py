from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from energon_dali.cli.checkpoint import output_names
from energon_dali.cli.main import main
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.errors import LayoutError, StateError
from energon_dali.loader.loader_state import LoaderIdentity, merge_states, split_state
from energon_dali.loader.state_file import MEGATRON_KEY, read_state_file, write_state_files
from energon_dali.worker_config import WorkerConfig
from tests.datasets.oracle import Counting
from tests.full_disk import largest_file

STREAMS = 6


def dataset(rank: int, world_size: int, total: int = 600) -> Counting:
    return Counting(total, WorkerConfig(rank=rank, world_size=world_size, num_workers=1, num_streams=STREAMS))


def rank_states(world_size: int, batches: int = 14) -> list[Any]:
    states = []
    for rank in range(world_size):
        live = RankIterator(dataset(rank, world_size))
        for _ in range(batches):
            next(live)
        states.append(LoaderIdentity(dataset(rank, world_size)).make_state(live.state_dict()))
    return states


def numbers_after(states: list[Any], count: int) -> list[int]:
    """Returns what the ranks of a job deliver after their states, stream by stream."""
    streams: dict[int, list[int]] = {}
    for rank, state in enumerate(states):
        restored = RankIterator(dataset(rank, len(states)))
        restored.load_state_dict(LoaderIdentity(dataset(rank, len(states))).position(state))
        own = dataset(rank, len(states)).worker_config.streams
        for element in islice(restored, count * len(own)):
            streams.setdefault(element["number"] % STREAMS, []).append(element["number"])
    return [number for stream in sorted(streams) for number in streams[stream]]


def write(folder: Path, states: list[Any], suffix: str, wrapped: bool = False) -> list[Path]:
    paths = []
    for rank, state in enumerate(states):
        path = folder / f"loader_dp{rank:02d}_of_{len(states)}{suffix}"
        value = {MEGATRON_KEY: state} if wrapped else state
        if suffix == ".json":
            path.write_text(json.dumps(value))
        else:
            torch.save(value, path)
        paths.append(path)
    return paths


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["checkpoint", *map(str, words)])
    return done.exit_code, done.output


@pytest.mark.parametrize(("suffix", "wrapped"), [(".json", False), (".pt", False), (".pt", True)])
def test_states_of_three_ranks_for_two_and_back(tmp_path: Path, suffix: str, wrapped: bool) -> None:
    states = rank_states(3)
    paths = write(tmp_path, states, suffix, wrapped)
    code, text = run("redist", *paths, tmp_path / "two", "--new-world-size", 2)
    assert code == 0, text
    two = [read_state_file(path) for path in sorted((tmp_path / "two").iterdir())]
    assert [file.path.name for file in two] == [f"loader_dp{rank:02d}_of_3{suffix}" for rank in range(2)]
    assert all(file.wrapped is wrapped for file in two)
    assert numbers_after([file.states[0] for file in two], 5) == numbers_after(states, 5)
    assert run("redist", tmp_path / "two", tmp_path / "three", "--new-world-size", 3)[0] == 0
    three = [read_state_file(path).states[0] for path in sorted((tmp_path / "three").iterdir())]
    assert [state["streams"] for state in three] == [state["streams"] for state in states]


def test_names_that_do_not_differ_keep_their_numbers() -> None:
    files: Any = [SimpleNamespace(path=Path(f"rank{rank}/step_1000.pt")) for rank in range(2)]
    assert output_names(files, 2, as_global=False) == ["step_1000_rank0.pt", "step_1000_rank1.pt"]
    assert output_names(files, 2, as_global=True) == ["step_1000_rank_global.pt"]


def test_a_global_state_and_its_ranks(tmp_path: Path) -> None:
    states = rank_states(2)
    assert run("redist", *write(tmp_path, states, ".pt"), tmp_path / "all", "--global")[0] == 0
    (whole,) = (tmp_path / "all").iterdir()
    assert whole.name == "loader_dp_global.pt"
    assert read_state_file(whole).states == (merge_states(states),)
    code, text = run("redist", whole, tmp_path / "six", "--new-world-size", 6)
    assert code == 0, text
    six = [read_state_file(path).states[0] for path in sorted((tmp_path / "six").iterdir())]
    assert [list(state["streams"]) for state in six] == [[str(rank)] for rank in range(6)]
    assert merge_states(six)["streams"] == merge_states(states)["streams"]


def test_info_says_what_is_there_and_where_it_fits(tmp_path: Path) -> None:
    paths = write(tmp_path, rank_states(3), ".json")
    code, text = run("info", tmp_path)
    assert code == 0, text
    assert "Saved by:  3 ranks; given here: 0, 1, 2" in text
    assert "Streams:   6, all given" in text
    assert "Batches:   42 delivered, 7 to 7 per stream" in text
    assert "ranks x workers of 1, 2, 3, 6" in text
    assert "Counting" in text
    assert "missing here: 0, 2, 3, 5" in run("info", paths[1])[1]


def test_files_of_two_saves_are_told_from_those_of_one(tmp_path: Path) -> None:
    """This is not an error: ranks that do not step together save such states too."""
    early, late = rank_states(2, 14), rank_states(2, 24)
    for states, noted in (([early[0], late[1]], True), (early, False), (rank_states(2, 13), False)):
        paths = write(tmp_path, states, ".json")
        code, text = run("info", *paths)
        assert (code, "if these are files of two saves" in text) == (0, noted)
        code, text = run("redist", *paths, tmp_path / "one", "--global", "--force-overwrite")
        assert (code, "if these are files of two saves" in text) == (0, noted)


def test_a_list_of_states_is_a_global_state_too(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps(rank_states(2)))
    assert "given here: 0, 1" in run("info", path)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--new-world-size", 4), "4 = 4|one of 1, 2, 3, 6"),
        ((), "either --new-world-size or --global"),
        (("--global", "--new-world-size", 2), "either --new-world-size or --global"),
    ],
)
def test_a_redistribution_that_cannot_be(tmp_path: Path, arguments: tuple[object, ...], words: str) -> None:
    code, text = run("redist", *write(tmp_path, rank_states(3), ".pt"), tmp_path / "out", *arguments)
    assert code != 0
    assert any(word in text for word in words.split("|"))
    assert not (tmp_path / "out").exists()


def test_files_that_are_there_are_kept(tmp_path: Path) -> None:
    paths = write(tmp_path, rank_states(3), ".pt")
    before = paths[0].read_bytes()
    code, text = run("redist", *paths, tmp_path, "--new-world-size", 2)
    assert (code, paths[0].read_bytes()) == (1, before)
    assert "already exists" in text
    code, text = run("redist", *paths, tmp_path, "--new-world-size", 2, "--force-overwrite")
    assert code == 0
    assert paths[0].read_bytes() != before
    assert f"also holds {paths[2].name}" in text, "a file of the third rank is left"
    assert paths[1].name not in text.partition("also holds")[2]
    code, text = run("info", tmp_path)
    assert code == 1
    assert "saved by 2 and by 3 ranks" in text
    paths[2].unlink()
    assert run("info", tmp_path)[0] == 0
    assert "also holds" not in run("redist", tmp_path, tmp_path / "other", "--new-world-size", 2)[1]


def test_info_counts_no_stream_twice(tmp_path: Path) -> None:
    early, late = rank_states(2, 14), rank_states(2, 24)
    path = tmp_path / "both.json"
    path.write_text(json.dumps([*early, late[1]]))
    code, text = run("info", path)
    assert code == 1
    assert "Streams 1, 3, 5 are in more than one of these states" in text


def test_files_that_hold_no_whole_state(tmp_path: Path) -> None:
    paths = write(tmp_path, rank_states(3), ".pt")
    assert "are in none of the states" in run("redist", *paths[:2], tmp_path / "out", "--new-world-size", 2)[1]
    other = tmp_path / "other.json"
    other.write_text('{"state": 1}')
    assert "This is not a loader state" in run("info", other)[1]
    (tmp_path / "broken.pt").write_bytes(b"\x80\x04nothing")
    assert "cannot be read" in run("info", tmp_path / "broken.pt")[1]
    (tmp_path / "empty").mkdir()
    assert "holds no file" in run("info", tmp_path / "empty")[1]
    text = tmp_path / "state.txt"
    text.write_text("{}")
    assert ".json, .pt, .pth" in run("info", text)[1]


def test_a_state_is_split_among_ranks_that_divide_its_streams() -> None:
    whole = merge_states(rank_states(2))
    assert merge_states(split_state(whole, 2)) == whole
    with pytest.raises(LayoutError, match="one of 1, 2, 3, 6"):
        split_state(whole, 5)
    with pytest.raises(StateError, match="in none of the states"):
        split_state(rank_states(2)[0], 2)


def test_a_split_to_as_many_ranks_keeps_what_each_delivered() -> None:
    first, second = rank_states(2)
    given = [state["given"] for state in (first, second)]
    second = rank_states(2, batches=15)[1]
    assert [state["given"] for state in (first, second)] == [given[0], {"1": given[1]["1"] + 1}]
    whole = merge_states([first, second])
    assert [state["given"] for state in split_state(whole, 2)] == [first["given"], second["given"]]
    assert [state["given"] for state in split_state(whole, 3)] == [{"0": 9}, {"1": 9}, {"2": 9}]


@pytest.mark.parametrize("suffix", [".json", ".pt"])
def test_a_full_disk_leaves_all_files_as_they_were(tmp_path: Path, suffix: str) -> None:
    paths = write(tmp_path, rank_states(2), suffix)
    before = {path: path.read_bytes() for path in paths}
    with largest_file(100):
        code, text = run("redist", *paths, tmp_path, "--new-world-size", 2, "--force-overwrite")
    assert code == 1
    assert "Could not write" in text
    assert "unchanged" in text
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    path = tmp_path / "other" / f"state{suffix}"
    with largest_file(100), pytest.raises(StateError, match=r"other/state\.\w+: File too large"):
        write_state_files({path: rank_states(1)[0]}, wrapped=True)
    assert list(path.parent.iterdir()) == []


def test_a_stream_in_two_states_is_refused_also_where_none_is_missing() -> None:
    first, second = rank_states(2)
    later = rank_states(2, batches=20)[1]
    for states in ([first, second, second], [first, second, later]):  # every stream is present, some of them twice
        with pytest.raises(StateError, match=r"Streams \['1', '3', '5'\] are in more than one of the states"):
            merge_states(states)
    merge_states([first, second])
