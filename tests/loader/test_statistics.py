from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integrations.observed import everything


def test_the_difference_of_two_snapshots_is_what_happened_between_them() -> None:
    old = everything()
    new = replace(
        old,
        batches=old.batches + 10,
        elapsed_seconds=old.elapsed_seconds + 5,
        blocked_seconds=old.blocked_seconds + 1,
        stage_seconds={**old.stage_seconds, "load": 6.0, "batch": 0.5},
        routes={"pil": 910, "dali-cpu": 97},
        block_bytes=old.block_bytes + 100,
        blend={
            "/data/a": {"samples": 760, "share": 0.7, "units": 3100, "unit_share": 0.6},
            "/data/b": {"samples": 280, "share": 0.3, "units": 2000, "unit_share": 0.4},
        },
        planned_blend={
            "/data/a": {"wanted": 86.5, "planned": 83, "wanted_share": 0.72, "planned_share": 0.69},
            "/data/b": {"wanted": 33.5, "planned": 37, "wanted_share": 0.28, "planned_share": 0.31},
        },
        requests={"requests": 110, "bytes_wanted": 4_000, "bytes_fetched": 5_000, "in_flight": 4.25},
        counts={**old.counts, "samples.failed": 4, "failed.decode": 4},
        failures=[*old.failures, {"stage": "decode", "key": "k2"}],
        failure_kinds={"decode: DecodeError at x.py:1": 4},
    )
    between = new.since(old)
    assert (between.batches, between.elapsed_seconds, between.blocked_seconds) == (10, 5, 1)
    assert between.first_batch_seconds is None
    assert between.blocked_share == pytest.approx(0.2)
    assert between.batches_per_second == 2
    assert between.stage_seconds == {"read": 0, "load": 2.0, "encode_sample": 0, "rank": 0, "batch": 0.5}
    assert between.routes == {"pil": 10, "dali-cpu": 0}
    assert between.block_bytes == 100
    assert between.blend["/data/a"] == {"samples": 10, "share": 0.25, "units": 100, "unit_share": 1.0}
    assert between.planned_blend == {
        "/data/a": {"wanted": 10, "planned": 8, "wanted_share": 0.5, "planned_share": 0.4},
        "/data/b": {"wanted": 10, "planned": 12, "wanted_share": 0.5, "planned_share": 0.6},
    }
    assert old.since(new).planned_blend == old.planned_blend  # counted again from another step on
    assert between.requests["requests"] == 10
    assert between.requests["in_flight"] == pytest.approx((4.25 * 17.5 - 3.5 * 12.5) / 5)
    assert between.counts["samples.failed"] == 1
    assert between.failures == [{"stage": "decode", "key": "k2"}]
    assert between.failure_kinds == {"decode: DecodeError at x.py:1": 1}
    nothing = new.since(new)
    assert (nothing.batches, nothing.batches_per_second, nothing.blocked_share) == (0, 0, 0)
    assert nothing.failures == []
