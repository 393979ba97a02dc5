"""Decodes blocks of images with one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from energon_dali.decode.dali.images.codecs import image_route
from energon_dali.decode.dali.images.feed import ImageBatch, feed_batch, split_block
from energon_dali.decode.dali.images.graph import ImageGraph, define_pipeline
from energon_dali.decode.dali.images.recovery import decode_suspects
from energon_dali.decode.dali.runtime.engine import DaliEngine
from energon_dali.decode.dali.runtime.library import Pipeline
from energon_dali.decode.dali.runtime.output import bring_to_device, take_values
from energon_dali.decode.dali.runtime.run import Block, Run
from energon_dali.decode.geometry import handle_geometry
from energon_dali.decode.interface import DecodeFailure, MediaHandle, Outcome, Route
from energon_dali.errors import DecodeError


class DaliImageEngine(DaliEngine[ImageGraph, ImageBatch]):
    """The engine of one image graph; a block costs about 15 us per handle in the thread that submits it."""

    media = "image"

    def submit(self, handles: Sequence[MediaHandle], *, stream: Any = None) -> Future[list[Outcome]]:
        block = Block([None] * len(handles), len(handles), stream)
        if not handles:
            block.future.set_result([])
            return block.future
        geometries: dict[int, Any] = {}
        refused: dict[int, Outcome] = {}
        for position, handle in enumerate(handles):
            try:
                geometries[position] = handle_geometry(handle)
            except DecodeError as error:
                refused[position] = DecodeFailure(error.reason, handle.format, "screen", handle.source)
        runs = []
        for positions in split_block(
            handles,
            list(geometries),
            max_images=self.options.max_batch_size,
            max_bytes=self._memory.run_bytes,
            bytes_per_pixel=self.graph.bytes_per_pixel,
        ):
            batch = ImageBatch([handles[i] for i in positions], [geometries[i] for i in positions])
            cost = sum(handle.width * handle.height for handle in batch.handles) * self.graph.bytes_per_pixel
            runs.append(Run(block, positions, batch, cost))
        if refused:  # before the engine's thread knows the block, as two threads must not count in it
            block.put(list(refused), list(refused.values()))
        self.enqueue(runs)
        return block.future

    def define(self) -> Any:
        return define_pipeline(self.graph, self.options)

    def feed(self, pipeline: Pipeline, batch: ImageBatch) -> None:
        feed_batch(pipeline, self.graph, batch)

    def take(self, outputs: Any, batch: ImageBatch, stream: Any) -> list[Any]:
        return take_values(outputs, batch.handles[0].spec, stream)

    def route_of(self, batch: ImageBatch, position: int) -> Route:
        return image_route(batch.handles[position].format, self.device)

    def rescue(
        self, run: Run[ImageBatch], run_alone: Callable[[ImageBatch], list[Outcome]], stream: Any
    ) -> list[Outcome]:
        assert run.error is not None
        return decode_suspects(
            run.batch,
            run.error,
            run_alone,
            self.suspend_pipeline,
            lambda value: bring_to_device(value, self.device, stream),
            self.device,
        )
