"""Says where the time of a loader goes, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from energon_dali.diagnosis.rates import LoaderRate, StageRate, usable_cores

_LARGE = 0.5
"""Share of the work from which on one stage is said to take most of it."""
_BETTER = 1.05
"""Ratio from which on a setting counts as faster."""
_DISTURBED = 0.2
"""Share of the cores that other processes keep busy from which on the clock says little."""
_BUSY = 0.6
"""Share of what all cores could do alone below which a loader waits for something else."""

_CHANGES = {
    "reading": "Reading takes most of it: put the data on a faster disk, read remote data with more read_ahead_bytes "
    "or a shard_cache, and drop parts that no field needs with part_filter.",
    "decoding": "Decoding takes most of it: store images in the size that the model sees, resize inside the decoder "
    "(operations=[Resize(...)]), and choose fewer frames of videos.",
    "hooks": "Your hooks take most of it: look for the slowest stage below, move work into preencode_sample or the "
    "decoder's operations, and tokenise or resize when the dataset is made.",
}


def advise(stages: Sequence[StageRate], loaders: Sequence[LoaderRate]) -> Iterator[str]:
    """Yields sentences about measurements.

    Args:
        stages: Reading, decoding and hooks alone.
        loaders: The whole loader in several settings.
    """
    work = sum(stage.seconds_per_sample for stage in stages)
    if work:
        shares = ", ".join(f"{stage.name} {stage.seconds_per_sample / work:.0%}" for stage in stages if stage.samples)
        yield f"Work per sample in one process: {work * 1e3:.2f} ms ({shares})."
        largest = max(stages, key=lambda stage: stage.seconds_per_sample)
        if largest.seconds_per_sample > _LARGE * work:
            yield _CHANGES[largest.name]
    measured = [one for one in loaders if not one.problem]
    for failed in (one for one in loaders if one.problem):
        yield f"{failed.setting} could not run: {failed.problem}"
    if not measured:
        return
    best = max(measured, key=lambda one: one.samples_per_second)
    first = measured[0]
    if best is not first and first.samples_per_second:
        ratio = best.samples_per_second / first.samples_per_second
        if ratio > _BETTER:
            yield f"Fastest: {best.setting}, {ratio:.2f} times as fast as {first.setting}."
    if best.setting.num_workers == 0:
        yield "Without workers it is fastest: sending samples between processes takes longer than making them."
    slowest = sorted(best.stage_seconds.items(), key=lambda pair: -pair[1])[:4]
    if slowest:
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
        yield f"Time at work in the fastest setting, over all processes: {shown}."
    cores = usable_cores()
    disturbed = max((one.other_cores for one in measured), default=0.0)
    if disturbed > _DISTURBED * cores:
        yield (
            f"Other processes kept up to {disturbed:.1f} cores busy, so these rates say little. By CPU time alone, "
            + ", ".join(f"{one.setting} would deliver {one.idle_samples_per_second:,.1f} samples/s" for one in measured)
            + "."
        )
    if work and best.samples_per_second * work < _BUSY * cores:
        busy = best.samples_per_second * work / cores
        yield (
            f"The fastest setting keeps {cores} cores busy to {busy:.0%} with this work: it waits for storage, for a "
            "single busy process, or the machine has other work. More workers help only if cores are idle."
        )
    elif work and best.setting.num_workers:
        yield f"The fastest setting keeps all {cores} cores busy: only less work per sample, or more cores, helps."
