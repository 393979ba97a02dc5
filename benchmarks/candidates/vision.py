"""Input for vision-language models: energon_dali's front ends, or transformers' processors behind another loader.

Options: library ("energon_dali", "megatron.energon", or "webdataset" with torch's DataLoader), model ("siglip",
"qwen2-vl", "llava-next", "internvl"), workers; for processors backend ("pil", "torchvision"); for energon_dali decoder
("sample", "dali"), resampling ("pil", "torch") and dtype.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_io, import_torchvision_transforms

_CLASSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "siglip": ("siglip", "SiglipImageProcessor", {"size": {"height": 384, "width": 384}}),
    "qwen2-vl": ("qwen2_vl", "Qwen2VLImageProcessor", {}),
    "llava-next": (
        "llava_next",
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
    ),
    "internvl": (
        "got_ocr2",
        "GotOcr2ImageProcessor",
        {"size": {"height": 448, "width": 448}, "crop_to_patches": True, "max_patches": 12},
    ),
}
"""Module, class and configuration of each model's image processor in transformers."""


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def make_processor(model: str, backend: str) -> Any:
    """Returns an image processor of transformers."""
    module, name, config = _CLASSES[model]
    suffix = "_pil" if backend == "pil" else ""
    found = importlib.import_module(f"transformers.models.{module}.image_processing{suffix}_{module}")
    return getattr(found, name + ("Pil" if backend == "pil" else ""))(**config)


class Process:
    """Decodes an image and runs a processor on it, as hooks do: the rows of `pixel_values` of one image.

    Each backend gets what is fastest for it: PIL's images, or tensors that torchvision decodes.
    """

    def __init__(self, model: str, backend: str) -> None:
        # Its native decoders first, which cannot be loaded later.
        self.decode = _open_with_pil if backend == "pil" else _torchvision_decoder()
        import_torchvision_transforms()  # transformers imports torchvision in any case, where it is installed
        self.processor = make_processor(model, backend)

    def __call__(self, data: bytes) -> torch.Tensor:
        """Returns float32[rows, ...]: patches, tiles, or one image."""
        pixels: torch.Tensor = self.processor(self.decode(data), return_tensors="pt")["pixel_values"]
        # LLaVA-NeXT returns a batch of one image's tiles.
        return pixels[0] if pixels.ndim == 5 else pixels


def _open_with_pil(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data))


def _torchvision_decoder() -> Callable[[bytes], torch.Tensor]:
    decode_image = import_torchvision_io().decode_image

    warnings.filterwarnings("ignore", message="The given buffer is not writable")

    def decode(data: bytes) -> torch.Tensor:
        decoded: torch.Tensor = decode_image(torch.frombuffer(data, dtype=torch.uint8), mode="RGB")
        return decoded

    return decode


def batch_rows(keys: list[str], images: list[torch.Tensor]) -> dict[str, Any]:
    """Returns one batch: the rows of all images, and how many each has."""
    return {"keys": keys, "rows": [len(image) for image in images], "pixel_values": torch.cat(images)}


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches of rows."""
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    loader = _webdataset_loader(task) if task.options["library"] == "webdataset" else _energon_loader(task)
    while True:
        for batch in loader:
            yield Delivered(batch, batch["keys"] if with_keys else None)


def _webdataset_loader(task: Task) -> Any:
    import webdataset
    from torch.utils.data import DataLoader

    process = Process(str(task.options["model"]), str(task.options["backend"]))

    def collate(samples: list[tuple[str, bytes]]) -> dict[str, Any]:
        return batch_rows([key for key, _ in samples], [process(data) for _, data in samples])

    dataset = (
        webdataset.WebDataset(task.shards, shardshuffle=False)
        .to_tuple("__key__", "jpg")
        .batched(task.batch_size, collation_fn=collate)
    )
    workers = int(task.options.get("workers", 2))
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)
    return loader


def _energon_loader(task: Task) -> Any:
    library: Any = importlib.import_module(str(task.options["library"]))
    ours = task.options["library"] == "energon_dali"
    model = str(task.options["model"])
    process = None if ours else Process(model, str(task.options["backend"]))

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = _decoder(library, task) if ours else None

        def encode_sample(self, sample: Any) -> Any:
            if process is not None:
                sample.image = process(sample.image)
            return sample

        def batch(self, samples: list[Any]) -> dict[str, Any]:
            keys, images = [sample.__key__ for sample in samples], [sample.image for sample in samples]
            if not ours:
                return batch_rows(keys, images)
            made = library.batch_vision(images)
            return {"keys": keys, "rows": [image.rows for image in images], **made}

        def encode_batch(self, batch: Any) -> Any:
            return batch

    dataset = library.get_train_dataset(
        task.dataset,
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=int(task.options.get("workers", 2))),
        batch_size=task.batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    return library.get_savable_loader(dataset)


def front_end(task: Task) -> Any:
    """Returns the front end of the processor's configuration; transformers is not imported."""
    import energon_dali

    _, name, config = _CLASSES[str(task.options["model"])]
    return energon_dali.FrontEnd.from_processor(
        {**config, "image_processor_type": name},
        dtype=task.options.get("dtype", "float32"),
        resampling=task.options.get("resampling", "pil"),
    )


def _decoder(library: Any, task: Task) -> Any:
    if task.options.get("decoder") == "dali":
        return library.DaliDecoder(front_end=front_end(task), image_decode_device=task.decodes_on)
    return library.SampleDecoder(front_end=front_end(task))
