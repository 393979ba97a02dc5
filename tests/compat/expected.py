"""Writes what the programs do with Energon itself, for test_programs.py: `PYTHON_WITH_ENERGON expected.py [OUT]`.

The Python needs megatron-energon 7.4.1 with its extra `av_decode`. The two packages order samples differently, so what
is kept is, by key, the content of each sample of an epoch, and the dtypes and shapes of the batches, sorted.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = ("vqa_provider", "chatml_train", "diffusion_latents", "mimo_captions", "length_pool")


def comparable(report):
    return {"samples": sorted(report["samples"]), "batches": sorted(report["batches"])}


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "data" / "energon_programs.json"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"

        def run(program, *arguments):
            subprocess.run([sys.executable, str(HERE / "programs" / f"{program}.py"), *arguments], check=True)

        run("make_shards", folder)
        run("prepare_data", folder, str(report))
        found["prepare_data"] = json.loads(report.read_text())
        for program in PROGRAMS:
            run(program, folder, str(report))
            found[program] = comparable(json.loads(report.read_text()))
        # Where batches end depends on the order.
        run("own_mixture", folder, str(report))
        found["own_mixture"] = {"samples": sorted(json.loads(report.read_text())["samples"])}
    out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
