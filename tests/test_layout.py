from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError, LayoutError
from energon_dali.worker_config import Layout


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_every_stream_runs_in_one_place(world_size: int, num_workers: int, factor: int) -> None:
    layout = Layout(world_size, num_workers, world_size * num_workers * factor)
    seen: list[int] = []
    for rank in range(world_size):
        streams = layout.rank_streams(rank)
        workers = [layout.worker_streams(rank, worker) for worker in range(num_workers)]
        assert sorted(stream for worker in workers for stream in worker) == streams
        for worker, own in enumerate(workers):
            assert len(own) == factor
            assert all(layout.worker_of_stream(stream) == (rank, worker) for stream in own)
        seen += streams
    assert sorted(seen) == list(range(layout.num_streams))


def test_streams_go_round_the_ranks() -> None:
    layout = Layout(world_size=2, num_workers=2, num_streams=8)
    assert layout.rank_streams(1) == [1, 3, 5, 7]
    assert layout.worker_streams(1, 0) == [1, 5]
    assert layout.worker_of_stream(7) == (1, 1)


def test_a_layout_that_does_not_divide_names_those_that_do() -> None:
    fitting = "must be one of 1, 2, 3, 4, 6, 12; with world_size=2, num_workers may be 1, 2, 3, 6"
    with pytest.raises(LayoutError, match=fitting):
        Layout(world_size=2, num_workers=4, num_streams=12)
    with pytest.raises(LayoutError, match="no number of workers fits world_size=5"):
        Layout(world_size=5, num_workers=1, num_streams=12)
    with pytest.raises(LayoutError, match="must all be at least 1"):
        Layout(world_size=1, num_workers=0, num_streams=1)


def test_places_that_do_not_exist_are_refused() -> None:
    layout = Layout(world_size=2, num_workers=1, num_streams=2)
    with pytest.raises(ConfigError, match="Rank 2 does not exist"):
        layout.rank_streams(2)
    with pytest.raises(ConfigError, match="Worker 1 does not exist"):
        layout.worker_streams(0, 1)
    with pytest.raises(ConfigError, match="Stream -1 does not exist"):
        layout.worker_of_stream(-1)
