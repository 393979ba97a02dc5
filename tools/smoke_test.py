"""Checks that an installed energon-dali works: creates the demo data, and decodes it with every available decoder.

    python tools/smoke_test.py                   # with the environment's Python, outside the repository root

It uses only what is installed, nothing from the repository.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Runs every step; the first error ends the program."""
    # A checkout in the working directory must not be tested instead of the installed package.
    sys.path[:] = [path for path in sys.path if path not in ("", str(Path.cwd()))]
    import energon_dali

    print(f"energon_dali {energon_dali.__version__} from {Path(energon_dali.__file__).parent}")
    for name in energon_dali.__all__:
        getattr(energon_dali, name)
    importlib.import_module("energon_dali.kernels.patchify")
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "energon-dali"), "demo-data", folder]
        subprocess.run(command, check=True, cwd=folder)
        decoders = ["SampleDecoder"]
        if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
            decoders.append("DaliDecoder")
        for decoder in decoders:
            print(f"{decoder}: {images(energon_dali, decoder, Path(folder))}")
        print(f"VideoClips: {clips(energon_dali, Path(folder) / 'video.mp4')}")


def images(energon_dali: Any, decoder: str, folder: Path) -> str:
    """Draws batches with one worker, and restores the state after the first batch in a second loader."""
    options = {"image_decode_device": "cpu"} if decoder == "DaliDecoder" else {}
    operations = [energon_dali.Resize((96, 64))]
    encoder = type(
        "Encoder",
        (energon_dali.DefaultTaskEncoder,),
        {"decoder": getattr(energon_dali, decoder)(operations=operations, **options)},
    )

    def new_loader() -> Any:
        dataset = energon_dali.get_train_dataset(
            folder / "captions",
            worker_config=energon_dali.WorkerConfig(rank=0, world_size=1, num_workers=1),
            batch_size=8,
            shuffle_buffer_size=100,
            max_samples_per_sequence=None,
            task_encoder=encoder(),
        )
        return energon_dali.get_savable_loader(dataset)

    with new_loader() as loader:
        batches = iter(loader)
        next(batches)
        state = json.dumps(loader.save_state_rank())
        expected = next(batches)
    with new_loader() as loader:
        loader.restore_state_rank(json.loads(state))
        batch = next(iter(loader))
    shape = tuple(batch.image.shape)
    if shape != (8, 3, 96, 64) or batch.caption != expected.caption or not (batch.image == expected.image).all():
        raise SystemExit(f"{decoder}: the batch after a restore differs ({shape}, {batch.caption}).")
    return f"batches of {shape}, exact after a restore"


def clips(energon_dali: Any, video: Path) -> str:
    """Decodes two clips of the demo video, with audio."""
    wanted = energon_dali.VideoClips(num_clips=2, frames_per_clip=8, clip_duration_seconds=2.0, audio=True)
    frames = energon_dali.SampleDecoder(av_decode=wanted).decode("video.mp4", video.read_bytes()).frames
    if tuple(frames.shape) != (2, 8, 3, 180, 320):
        raise SystemExit(f"VideoClips: expected two clips of 8 frames, got {tuple(frames.shape)}.")
    return f"frames of {tuple(frames.shape)}"


if __name__ == "__main__":
    main()
