"""The candidates that the suites for GPUs and CPUs have in common, and the bars that they are held to."""

from __future__ import annotations

import os
from dataclasses import replace

from benchmarks.workload import Bar, Candidate, Device, Limit, Plain

CEILING = "DALI alone, from memory"
BLOCK = "energon_dali DALI, block feed"
NATIVE = "energon_dali DALI, native feed"
APART = "energon_dali DALI, decode process"
COPIED = "energon_dali DALI, block feed, copied"
BACKENDS = {"torchcodec": "energon_dali torchcodec", "pynvvideocodec": "energon_dali PyNvVideoCodec"}
"""Candidates that decode videos on a GPU with another library, by `video_backend`."""
ITERATOR = "DALI's own PyTorch iterator"
ENERGON = "megatron-energon"

CORES = len(os.sched_getaffinity(0))
"""Number of workers of candidates that decode on the CPU."""
READERS = 4 if CORES >= 8 else 1
"""Number of workers that read for DaliDecoder; they do not decode."""


def contestants(device: Device, *, native: bool) -> tuple[Candidate, ...]:
    """Returns the candidates, the most important ones first: if time is short, the last ones are dropped.

    Args:
        device: Where DALI decodes.
        native: Whether DALI's own reader can feed our loader: not with videos.
    """
    found = [
        Candidate(name=CEILING, program="ceiling"),
        ours(BLOCK, decoder="dali", workers=READERS),
        ours(NATIVE, decoder="dali", workers=0, feed="native"),
        ours(APART, decoder="dali", workers=READERS, decode_process=True),
        *(
            ours(name, decoder="dali", workers=READERS, video_backend=backend)
            for backend, name in BACKENDS.items()
            if not native and device == "gpu"
        ),
        Candidate(
            name=ENERGON,
            program="energon_style",
            environment="energon",
            options={"library": "megatron.energon", "workers": CORES},
        ),
        Candidate(name=ITERATOR, program="dali_native", options={"iterator": True, "threads": 0}),
        ours("energon_dali SampleDecoder, all cores", decoder="sample", workers=CORES),
        ours("energon_dali DALI on the CPU", decoder="dali", workers=READERS, device="cpu"),
        Candidate(name="torch DataLoader + PIL or PyAV", program="torch_loader", options={"workers": CORES}),
    ]
    # On the CPU, DaliDecoder "on the CPU" is the same as with the block feed.
    return tuple(
        one for one in found if (native or one.name != NATIVE) and (device == "gpu" or "device" not in one.options)
    )


def bars(device: Device, *, native: bool, share: float) -> tuple[Bar, ...]:
    """Returns the ratios to the ceiling, and CPU time compared with Energon. They are required only on a GPU.

    Args:
        device: Where DALI decodes.
        native: Whether the native feed takes part.
        share: Of the ceiling that our loader has to reach.
    """
    feeds = [BLOCK, NATIVE, APART] if native else [BLOCK, APART]
    cost = "cpu_milliseconds_per_sample"
    found = [Bar(of=feed, to=CEILING, at_least=share) for feed in feeds]
    found.append(Bar(of=ITERATOR, to=CEILING))
    found += [Bar(of=name, to=BLOCK) for name in BACKENDS.values() if not native and device == "gpu"]
    found.append(Bar(of=BLOCK, to=ENERGON))
    found += [Bar(of=feed, to=ENERGON, at_most=0.25, metric=cost) for feed in feeds]
    return tuple(found if device == "gpu" else [replace(bar, at_least=None, at_most=None) for bar in found])


def limits(device: Device, *, native: bool) -> tuple[Limit, ...]:
    """Returns how long a trainer may wait; also required only on a GPU."""
    feeds = [BLOCK, NATIVE, APART] if native else [BLOCK, APART]
    most = 0.02 if device == "gpu" else None
    return tuple(Limit(of=feed, metric="trainer_blocked_share", at_most=most) for feed in feeds)


def ours(name: str, **options: Plain) -> Candidate:
    """Returns a candidate with our loader, of the options of `energon_style`."""
    return Candidate(name=name, program="energon_style", options={"library": "energon_dali", **options})
