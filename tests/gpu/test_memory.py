"""Memory: what remains after thousands of batches, the budget of runs in flight, and the release of memory."""

from __future__ import annotations

from energon_dali.decode.dali import memory_use, release_memory
from tests.decode.sample_images import sample_images
from tests.gpu.observations import Observations
from tests.gpu.test_streams import flat
from tests.gpu.where import Where, values_of

MIB = 1 << 20


def test_memory_does_not_grow_with_the_number_of_batches(where: Where, observe: Observations) -> None:
    decoder = where.decoder(image_decode="torchrgb8")
    handles = [decoder.stage("jpg", flat(level, (32, 32))) for level in range(4)]
    batches = 10_000 if where.kind == "gpu" else 1_500
    seen = []
    for number in range(batches + 1):
        values_of(decoder, handles)
        if number % (batches // 5) == 0:
            where.finish()
            seen.append(where.used_bytes())
    observe(batches=batches, used_mib=[round(size / MIB, 1) for size in seen])
    assert seen[-1] - seen[1] < 64 * MIB


def test_the_budget_is_kept_and_memory_is_given_back(where: Where, observe: Observations) -> None:
    budget = 64 * MIB
    decoder = where.decoder(image_decode="torchrgb8", gpu_memory_budget_bytes=budget)
    handles = [decoder.stage("jpg", sample_images()["jpeg-420"]) for _ in range(600)]
    for _ in range(3):
        assert len(values_of(decoder, handles)) == 600
    uses = [use for device, use in memory_use() if device.startswith(where.kind)]
    if where.kind == "gpu":
        uses = [use for use in uses if use.budget_bytes == budget]
        assert uses[-1].in_flight_peak_bytes <= budget
    assert 0 == uses[-1].in_flight_bytes < uses[-1].in_flight_peak_bytes
    held = values_of(decoder, handles[:1])[0]
    before = where.used_bytes()
    release_memory()
    where.finish()
    observe(used_mib=[round(before / MIB, 1), round(where.used_bytes() / MIB, 1)])
    if where.kind == "gpu":
        assert where.used_bytes() <= before
    assert held.shape == (3, 118, 157)
    assert values_of(decoder, handles[:1])[0].equal(held)


def test_the_pipeline_of_pngs_reserves_nothing_for_nvjpeg(where: Where, observe: Observations) -> None:
    """Its CPU threads decode; with nvJPEG's padding it took 512 MiB of the GPU, and as much page-locked memory."""
    decoder = where.decoder(image_decode="torchrgb8")
    png, jpeg = (
        decoder.stage(*file) for file in (("png", sample_images()["png-rgb"]), ("jpg", sample_images()["jpeg-420"]))
    )
    values_of(decoder, [jpeg])  # what CUDA and the libraries take themselves
    where.finish()
    before = where.used_bytes()
    values_of(decoder, [png] * 8)
    where.finish()
    grown = where.used_bytes() - before
    observe(grown_mib=round(grown / MIB, 1))
    assert grown < 256 * MIB
