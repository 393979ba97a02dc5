"""From shards to the input of vision-language models: front ends, and transformers' processors in other loaders."""

from __future__ import annotations

from benchmarks.cpu import ENERGON, OURS
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Workload

PHOTOGRAPHS = Recipe(
    name="vision-jpegs", samples=300, style="jpeg", width=1024, height=768, target_bytes=180_000, seed=50
)
"""1024 x 768 pixels, each side up to 15 % more or less."""
MODELS = {
    "qwen2-vl": "Qwen2-VL: patches",
    "llava-next": "LLaVA-NeXT: tiles",
    "internvl": "InternVL: tiles",
    "siglip": "SigLIP: 384 x 384",
}
"""Title of each model."""


def _ours(name: str, model: str, decoder: str = "sample", **options: str) -> Candidate:
    return Candidate(
        name=f"energon_dali {name}",
        program="vision",
        options={
            "library": OURS,
            "model": model,
            "decoder": decoder,
            "workers": 1 if decoder == "dali" else 2,
            **options,
        },
    )


def _processor(name: str, library: str, model: str, backend: str) -> Candidate:
    """Returns a processor in another loader. They share the environment that has torchvision."""
    return Candidate(
        name=f"{name} + processor ({backend})",
        program="vision",
        options={"library": library, "model": model, "backend": backend, "workers": 2},
        environment="energon",
    )


def _workload(model: str, title: str) -> Workload:
    pil, torchvision = (f"webdataset + processor ({backend})" for backend in ("pil", "torchvision"))
    exact, fast = "energon_dali PIL's pixels, float32", "energon_dali float32"
    fixed = model == "siglip"
    return Workload(
        name=model,
        title=title,
        metric="samples_per_second",
        unit="images/s",
        recipe=PHOTOGRAPHS,
        output="vision",
        batch_size=8,
        warmup_samples=32,
        samples=128,
        repetitions=3,
        candidates=(
            _processor("webdataset", "webdataset", model, "pil"),
            _processor("webdataset", "webdataset", model, "torchvision"),
            _processor("megatron-energon", ENERGON, model, "torchvision"),
            _ours("PIL's pixels, float32", model),
            _ours("float32", model, resampling="torch"),
            _ours("bfloat16", model, resampling="torch", dtype="bfloat16"),
            _ours("uint8", model, resampling="torch", dtype="uint8"),
            _ours("DALI, float32", model, "dali", resampling="torch"),
        ),
        bars=(
            Bar(of=exact, to=pil),
            Bar(of=fast, to=pil, at_least=None if fixed else 4.0),
            Bar(of=fast, to=torchvision, at_least=1.3 if fixed else 2.0),
            Bar(of="energon_dali bfloat16", to=torchvision, at_least=None if fixed else 3.0),
            Bar(of="energon_dali uint8", to=torchvision, at_least=None if fixed else 3.0),
            Bar(of="energon_dali DALI, float32", to=torchvision),
            Bar(of=fast, to="megatron-energon + processor (torchvision)"),
        ),
    )


WORKLOADS = tuple(_workload(model, title) for model, title in MODELS.items())
