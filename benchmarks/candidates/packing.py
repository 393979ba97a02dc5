"""Packs per second of text samples, with energon_dali or megatron-energon, by the same task encoder.

Options: library ("energon_dali" or "megatron.energon"), packer (a name of PACKERS; for energon_dali "sequence", its
SequencePacker, or "planned", its PlannedPacks, by lengths that were measured before), buffer (or window of the plan),
workers, save_every (batches between saved states; 0 saves none), decoder ("dali" for energon_dali's DaliDecoder, with
which the rank packs; otherwise the workers do).
Timing begins after the first buffer of each worker and ends after `samples` samples for each, or after `seconds`.
"""

from __future__ import annotations

import importlib
import io
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.candidates.process_tree import tree_cpu_seconds
from benchmarks.candidates.task import Task

PACK_LENGTH = 4096
"""Tokens of a pack; a token is a byte of the text."""
PACKS_PER_STEP = 32
"""Packs of a step, where steps are planned."""


def greedy_knapsack(samples: list[Any]) -> list[list[Any]]:
    """Returns packs that take the longest sample that still fits, again and again."""
    rest = sorted(samples, key=length)
    lengths = list(map(length, rest))
    packs = []
    while rest:
        pack, room = [], PACK_LENGTH
        while (place := bisect_right(lengths, room) - 1) >= 0:
            room -= lengths.pop(place)
            pack.append(rest.pop(place))
        packs.append(pack)
    return packs


def first_fit_decreasing(samples: list[Any]) -> list[list[Any]]:
    """Returns packs that take the samples, longest first, each into the first pack with room."""
    rooms = np.zeros(len(samples), np.int64)
    packs: list[list[Any]] = []
    for sample in sorted(samples, key=length, reverse=True):
        size = length(sample)
        place = int(np.argmax(rooms[: len(packs)] >= size)) if packs else 0
        if not packs or rooms[place] < size:
            place = len(packs)
            packs.append([])
            rooms[place] = PACK_LENGTH
        rooms[place] -= size
        packs[place].append(sample)
    return packs


PACKERS: dict[str, Callable[[list[Any]], list[list[Any]]]] = {
    "greedy_knapsack": greedy_knapsack,
    "first_fit_decreasing": first_fit_decreasing,
}


def length(sample: Any) -> int:
    """Returns the number of tokens of a sample."""
    return len(sample.text)


def measure(task: Task) -> dict[str, float]:
    """Returns packs/s, CPU time per pack, fill, and what saving and restoring states costs.

    Raises:
        AssertionError: A restored loader does not go on with the same pack.
    """
    # Some loaders always pin, and torch warns about that if there is no accelerator.
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    torch.set_num_threads(1)
    save_every, buffers = int(task.options["save_every"]), max(1, int(task.options["workers"]))
    if task.options["packer"] == "planned":  # once, before training
        open_loader(task).close()
    loader = open_loader(task)
    began = time.perf_counter()
    batches = iter(loader)
    skipped = int(next(batches)["samples"])
    first_seconds = time.perf_counter() - began
    while skipped < buffers * int(task.options["buffer"]):  # the first buffer of each worker
        skipped += int(next(batches)["samples"])
    packs = samples = tokens = 0
    saving: list[float] = []
    saving_cpu = 0.0
    cpu, start = tree_cpu_seconds(), time.perf_counter()
    while samples < buffers * task.samples and not 0 < task.seconds < time.perf_counter() - start:
        batch = next(batches)
        packs += 1
        samples += int(batch["samples"])
        tokens += int(batch["length"])
        if save_every and packs % save_every == 0:
            before, before_cpu = time.perf_counter(), time.process_time()
            loader.save_state_rank()
            saving.append(time.perf_counter() - before)
            saving_cpu += time.process_time() - before_cpu
    seconds, cpu = time.perf_counter() - start, tree_cpu_seconds() - cpu
    numbers = {
        "packs_per_second": packs / seconds,
        "samples_per_second": samples / seconds,
        "cpu_milliseconds_per_pack": cpu / packs * 1e3,
        "fill": tokens / packs / PACK_LENGTH,
        "packs": float(packs),
        "first_pack_seconds": first_seconds,
    }
    if saving:
        numbers |= {
            "saving_milliseconds": sum(saving) / len(saving) * 1e3,
            "saving_cpu_milliseconds": saving_cpu / len(saving) * 1e3,
            "slowest_saving_milliseconds": max(saving) * 1e3,
            **_restore(task, loader, batches),
        }
    return numbers


def _restore(task: Task, loader: Any, batches: Any) -> dict[str, float]:
    """Returns the size of the state, and the seconds until a new loader gives the next pack."""
    state = loader.save_state_rank()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    expected = next(batches)["__key__"]
    began = time.perf_counter()
    restored = open_loader(task)
    restored.restore_state_rank(state)
    found = next(iter(restored))["__key__"]
    seconds = time.perf_counter() - began
    if found != expected:
        raise AssertionError(f"The restored loader goes on with {found[:80]}, not with {expected[:80]}.")
    return {"state_bytes": float(buffer.tell()), "restored_pack_seconds": seconds}


def open_loader(task: Task) -> Any:
    """Returns the savable loader; each batch is one pack."""
    options = task.options
    library = importlib.import_module(options["library"])
    encoder = task_encoder(library, options)
    how: dict[str, Any] = {"packing_buffer_size": int(options["buffer"])}
    if options["packer"] == "planned":
        packs = library.PlannedPacks(PACK_LENGTH, window=int(options["buffer"]), real_length=length)
        how = {"global_batch_size": PACKS_PER_STEP, "packs": packs}
        measure_once(task, encoder)
    dataset = library.get_train_dataset(
        task.dataset,
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=int(options["workers"])),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=encoder,
        **how,
    )
    return library.get_savable_loader(dataset)


def measure_once(task: Task, encoder: Any) -> None:
    """Measures the dataset, unless it was measured before."""
    from energon_dali.assembly.measuring import measure_datasets

    for _ in measure_datasets(str(task.dataset), encoder, num_workers=1):
        pass


def task_encoder(library: Any, options: dict[str, Any]) -> Any:
    """Returns a task encoder that packs texts into rows of PACK_LENGTH tokens."""
    name = options["packer"]
    pack: Any = library.SequencePacker(PACK_LENGTH, length=length) if name == "sequence" else PACKERS.get(name)

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        if options.get("decoder") == "dali":
            decoder = library.DaliDecoder(image_decode_device="cpu", video_decode_device="cpu")

        @library.stateless  # type: ignore[untyped-decorator]
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            text = "".join(sample.text for sample in samples).encode()
            tokens = torch.zeros(PACK_LENGTH, dtype=torch.int64)
            tokens[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            return {
                "__key__": ",".join(sample.__key__ for sample in samples),
                "__restore_key__": (),
                "tokens": tokens,
                "samples": len(samples),
                "length": len(text),
            }

        @library.stateless  # type: ignore[untyped-decorator]
        def encode_sample(self, sample: Any) -> Any:
            return sample

        @library.stateless  # type: ignore[untyped-decorator]
        def batch(self, samples: list[Any]) -> dict[str, Any]:
            (pack,) = samples
            return {**pack, "tokens": pack["tokens"][None]}

        @library.stateless  # type: ignore[untyped-decorator]
        def encode_batch(self, batch: Any) -> Any:
            return batch

    class Selecting(Encoder):
        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return pack(samples)

    class Measuring(Encoder):
        def measure_sample(self, sample: Any) -> dict[str, int]:
            return {"text_tokens": length(sample)}

    return Measuring() if name == "planned" else Selecting()
