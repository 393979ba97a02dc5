"""The benefit of a decode process for a trainer whose Python is busy, and its cost for an idle one.

The hooks make a few torch calls per sample. Each form of the loader runs beside an idle trainer, beside a trainer's
thread that never gives the interpreter lock away, and beside an equally busy process.
"""

from __future__ import annotations

from benchmarks.cpu import JPEGS
from benchmarks.workload import Bar, Candidate, Workload

FORMS = {"in process": False, "decode process": True}


def _contest() -> tuple[tuple[Candidate, ...], tuple[Bar, ...]]:
    candidates = [
        Candidate(
            name=f"{form}, {beside}",
            program="torch_hooks",
            options={"decode_process": process, "workers": 1, "trainer": trainer},
        )
        for trainer, beside in (("none", "idle"), ("thread", "beside a thread"), ("process", "beside a process"))
        for form, process in FORMS.items()
    ]
    bars = [Bar(of="decode process, idle", to="in process, idle")]
    for form, process in FORMS.items():
        wanted = 0.9 if process else None
        for metric in (None, "trainer_turns_per_second"):
            bars.append(
                Bar(of=f"{form}, beside a thread", to=f"{form}, beside a process", at_least=wanted, metric=metric)
            )
    bars.append(Bar(of="decode process, beside a thread", to="in process, beside a thread"))
    return tuple(candidates), tuple(bars)


CANDIDATES, BARS = _contest()
HOOKS = Workload(
    name="hooks",
    title="JPEG to 224 x 224, normalised by a hook in torch, batches of 64: in process and by a decode process",
    metric="samples_per_second",
    unit="samples/s",
    recipe=JPEGS,
    output="float224",
    warmup_samples=192,
    samples=1500,
    repetitions=3,
    candidates=CANDIDATES,
    bars=BARS,
)

WORKLOADS = (HOOKS,)
