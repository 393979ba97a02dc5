"""The benefit of a decode process for a trainer whose Python is busy, and its cost for an idle one.

The hooks make a few torch calls per sample. Each form of the loader runs next to an idle trainer, next to a
trainer's thread that never releases the interpreter lock, and next to an equally busy process.
"""

from __future__ import annotations

from benchmarks.cpu import JPEGS
from benchmarks.workload import Bar, Candidate, Workload

FORMS = {"in process": False, "decode process": True}


def _contest() -> tuple[tuple[Candidate, ...], tuple[Bar, ...]]:
    candidates = [
        Candidate(
            name=f"{form}, {neighbour}",
            program="torch_hooks",
            options={"decode_process": process, "workers": 1, "trainer": trainer},
        )
        for trainer, neighbour in (("none", "idle"), ("thread", "next to a thread"), ("process", "next to a process"))
        for form, process in FORMS.items()
    ]
    bars = [Bar(of="decode process, idle", to="in process, idle")]
    for form, process in FORMS.items():
        wanted = 0.9 if process else None
        for metric in (None, "trainer_turns_per_second"):
            bars.append(
                Bar(of=f"{form}, next to a thread", to=f"{form}, next to a process", at_least=wanted, metric=metric)
            )
    bars.append(Bar(of="decode process, next to a thread", to="in process, next to a thread"))
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
