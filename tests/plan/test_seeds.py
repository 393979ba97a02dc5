from __future__ import annotations

import numpy as np

from energon_dali.plan import leaf_seed, sample_seed, sample_seeds, stream_seed


def test_seeds_never_change() -> None:
    assert sample_seed(1, 2, 3, 4) == 3192912025575003880
    assert stream_seed(1, 2) == 631001166951408634
    assert leaf_seed(1, 2) == 1293050856548509131


def test_every_argument_counts() -> None:
    seeds = {sample_seed(s, leaf, e, i) for s in range(3) for leaf in range(3) for e in range(3) for i in range(3)}
    assert len(seeds) == 81
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_many_seeds_at_once_are_the_same() -> None:
    epochs, indices = np.array([0, 5, 5]), np.array([9, 0, 10**12])
    expected = [sample_seed(7, 1, e, i) for e, i in zip(epochs.tolist(), indices.tolist(), strict=True)]
    assert sample_seeds(7, 1, epochs, indices).tolist() == expected
