"""Rotary positions of text and media in time, height and width, as Qwen-VL, GLM-4V and Qwen-Omni compute them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.calls import explain_call
from energon_dali.decode.front_ends.omni_positions import AUDIO, OmniClock
from energon_dali.decode.front_ends.processor_config import is_integer, read_json_object
from energon_dali.errors import ConfigError

Int64s = NDArray[np.int64]
_TEXT, _IMAGE, _VIDEO = 0, 1, 2
_WITHOUT_TIMES = ("qwen2_vl", "qwen2_5_vl")
_WITH_TIMES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v")
"""Types of models whose text has the time of each temporal patch between the patches."""
_OMNI = ("qwen2_5_omni", "qwen3_omni_moe")
"""Types of models that also take audio."""
_OMNI_MEDIA = ("image", "video", "audio")


@explain_call
@dataclass(frozen=True, kw_only=True)
class MultimodalRope:
    """Positions for multimodal rotary embeddings (M-RoPE), equal to `get_rope_index` of the model in transformers.

    A text token has the same position three times. The tokens of an image or video start after it, and count time,
    rows and columns of merged patches. What follows starts after the largest of rows and columns.

        rope = MultimodalRope.from_config(model.config)
        position_ids, deltas = rope.positions(input_ids, image_grid_thw=batch["image_grid_thw"])

    It needs integers alone, so it runs in workers, per sample or on packs, without the model.

    Raises:
        ConfigError: A value is invalid.
    """

    image_token_id: int
    """Id of the tokens of images; of those of videos too, where `video_start_id` is given."""
    video_token_id: int
    """Id of the tokens of videos."""
    spatial_merge_size: int = 2
    """Patches per side that the model merges into one token."""
    tokens_per_second: float | None = None
    """Positions per second of a video; None counts temporal patches."""
    times_in_text: bool = False
    """Whether each temporal patch of a video is on its own, with its time in the text before or after it."""
    video_start_id: int | None = None
    """Id of the token that begins a video whose tokens are `image_token_id`; None if they are `video_token_id`."""
    video_end_id: int | None = None
    """Id of the token that ends it."""
    clock: OmniClock | None = None
    """How a model that takes audio counts time (Qwen-Omni); None for others."""

    def __post_init__(self) -> None:
        for name in ("image_token_id", "video_token_id", "video_start_id", "video_end_id"):
            value = getattr(self, name)
            may_be_none = name in ("video_start_id", "video_end_id")
            if not is_integer(value) and not (may_be_none and value is None):
                raise ConfigError(
                    f"{name}={value!r} is invalid: it must be the id of a token, a whole number. The config.json of "
                    "the whole model has it."
                )
        if not isinstance(self.spatial_merge_size, int) or self.spatial_merge_size < 1:
            raise ConfigError(
                f"spatial_merge_size={self.spatial_merge_size!r} is invalid: it must be a whole number of at least 1."
            )
        if (self.video_start_id is None) != (self.video_end_id is None):
            raise ConfigError("video_start_id and video_end_id mark videos together. Give both or none.")

    @classmethod
    def from_config(cls, config: object) -> MultimodalRope:
        """Returns the positions of a model.

        Args:
            config: The model's configuration, as an object of transformers, a mapping, or the path of its config.json
                or of the folder that has it.

        Raises:
            ConfigError: The model is not one of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4V and Qwen-Omni, or its
                configuration lacks the ids of its tokens.
        """
        values = _config_values(config)
        kind = values.get("model_type")
        if str(kind).removesuffix("_thinker") in _OMNI:
            return cls._of_omni(values.get("thinker_config") or values, str(kind).removesuffix("_thinker"))
        if kind not in (*_WITHOUT_TIMES, *_WITH_TIMES):
            covered = ", ".join((*_WITHOUT_TIMES, *_WITH_TIMES, *_OMNI))
            raise ConfigError(
                f"model_type={kind!r} has no multimodal rotary positions here. Covered are {covered}. Give the config "
                "of the whole model, not of its parts."
            )
        vision = values.get("vision_config") or {}
        is_glm = str(kind).startswith("glm")
        return cls(
            image_token_id=values.get("image_token_id"),  # type: ignore[arg-type]  # checked there
            video_token_id=values.get("video_token_id"),  # type: ignore[arg-type]
            spatial_merge_size=vision.get("spatial_merge_size", 2),
            tokens_per_second=vision.get("tokens_per_second", 4) if kind == "qwen2_5_vl" else None,
            times_in_text=kind in _WITH_TIMES,
            video_start_id=_needed(values, "video_start_token_id") if is_glm else None,
            video_end_id=_needed(values, "video_end_token_id") if is_glm else None,
        )

    @classmethod
    def _of_omni(cls, values: Mapping[str, Any], kind: str) -> MultimodalRope:
        ids = {name: values.get(f"{name}_token_id", values.get(f"{name}_token_index")) for name in _OMNI_MEDIA}
        vision = values.get("vision_config") or {}
        clock = OmniClock(
            audio_token_id=ids["audio"],
            positions_per_second=values.get("position_id_per_seconds", 25),
            is_fractional=kind.startswith("qwen3"),
        )
        return cls(
            image_token_id=ids["image"],
            video_token_id=ids["video"],
            spatial_merge_size=vision.get("spatial_merge_size", 2),
            clock=clock,
        )

    def token_types(self, input_ids: Any) -> Any:
        """Returns 0 for each token of text, and 1, 2 or 3 for those of images, videos and audio (`mm_token_type_ids`).

        Args:
            input_ids: Integers [length] or [batch, length], of numpy or torch, or a list.

        Returns:
            int64 of the same shape, of the library that was given (numpy for lists).
        """
        ids = _as_array(input_ids)
        return _like(self._types(ids), input_ids)

    def positions(
        self,
        input_ids: Any,
        *,
        image_grid_thw: Any = None,
        video_grid_thw: Any = None,
        second_per_grid_ts: Any = None,
        attention_mask: Any = None,
        cu_seqlens: Any = None,
        token_types: Any = None,
    ) -> tuple[Any, Any]:
        """Returns the positions of all tokens.

        Args:
            input_ids: Integers [length] or [batch, length], of numpy or torch, or a list; with placeholders expanded.
            image_grid_thw: Integers [images, 3], in the order of the text: frames, rows and columns of patches.
            video_grid_thw: Integers [videos, 3], likewise.
            second_per_grid_ts: Seconds of a temporal patch, [videos], for models that count seconds; None is 1.
            attention_mask: Of the shape of input_ids; tokens where it is 0 have position 0 and do not count.
            cu_seqlens: For a pack [length]: where samples start and the last one ends, [samples + 1]. Positions start
                at 0 in each.
            token_types: What `token_types` returns, if it is known.

        Returns:
            (position_ids, deltas). position_ids: int64 [3, length] or [3, batch, length]: time, height, width. deltas:
            int64 [samples] or [batch, 1]: largest position + 1 - tokens, by which generated text continues. Both are
            float32 for Qwen3-Omni, whose times have fractions.

        Raises:
            ConfigError: The grids do not fit the tokens, `cu_seqlens` does not fit the pack, or an argument has another
                shape.
        """
        ids = _as_array(input_ids)
        if ids.ndim not in (1, 2):
            raise ConfigError(f"input_ids of the shape {list(ids.shape)} is invalid: give [length] or [batch, length].")
        rows = ids[None] if ids.ndim == 1 else ids
        types = None if token_types is None else _like_ids("token_types", token_types, rows)
        kept = None if attention_mask is None else _like_ids("attention_mask", attention_mask, rows) != 0
        edges = _edges(cu_seqlens, ids)
        grids = _Grids(self, image_grid_thw, video_grid_thw, second_per_grid_ts)
        dtype = np.int64 if self.clock is None else self.clock.dtype
        positions = np.zeros((3, *rows.shape), dtype)
        deltas = []
        for row in range(len(rows)):
            for start, stop in pairwise(edges):
                mask = np.ones(stop - start, bool) if kept is None else kept[row, start:stop]
                part = rows[row, start:stop][mask]
                of_part = self._types(part) if types is None else types[row, start:stop][mask]
                found = self._positions(of_part, grids)
                positions[:, row, start:stop][:, mask] = found
                deltas.append(found.max() + dtype(1) - dtype(len(part)) if len(part) else dtype(0))
        grids.finish()
        shaped = np.array(deltas, dtype)
        if ids.ndim == 1:
            return _like(positions[:, 0], input_ids), _like(shaped, input_ids)
        return _like(positions, input_ids), _like(shaped[:, None], input_ids)

    def _types(self, ids: NDArray[Any]) -> Int64s:
        types = np.zeros(ids.shape, np.int64)
        is_image = ids == self.image_token_id
        if self.video_start_id is None:
            types[is_image] = _IMAGE
            types[ids == self.video_token_id] = _VIDEO
            if self.clock is not None:
                types[ids == self.clock.audio_token_id] = AUDIO
            return types
        started = np.cumsum(ids == self.video_start_id, axis=-1)
        ended = np.cumsum(ids == self.video_end_id, axis=-1)
        types[is_image] = np.where(started > ended, _VIDEO, _IMAGE)[is_image]
        return types

    def _positions(self, types: NDArray[Any], grids: _Grids) -> NDArray[Any]:
        """Returns [3, n] for the token types [n] of one sample."""
        if self.clock is not None:
            return self.clock.positions(types, grids.take)
        borders = np.flatnonzero(np.diff(types)) + 1
        edges = [0, *borders.tolist(), len(types)] if len(types) else [0]
        pieces: list[Int64s] = []
        position = 0
        for start, stop in pairwise(edges):
            kind = int(types[start])
            if kind == _TEXT:
                pieces.append(np.broadcast_to(np.arange(position, position + stop - start), (3, stop - start)))
                position += stop - start
                continue
            left = stop - start
            while left:
                frames, height, width, interval = grids.take(kind, left)
                pieces.append(_of_grid(position, frames, height, width, interval))
                left -= frames * height * width
                position += max(height, width)
        return np.concatenate(pieces, axis=1) if pieces else np.zeros((3, 0), np.int64)


class _Grids:
    """Hands out the merged grids of images and videos in the order of the text."""

    def __init__(self, rope: MultimodalRope, images: Any, videos: Any, seconds: Any) -> None:
        self._merge = rope.spatial_merge_size
        self._times_in_text = rope.times_in_text
        intervals = _intervals(rope.tokens_per_second, seconds) if rope.clock is None else _seconds(seconds)
        self._left: dict[int, Iterator[tuple[int, int, int, Any]]] = {
            _IMAGE: self._merged(images, None),
            _VIDEO: self._merged(videos, intervals),
        }

    def take(self, kind: int, tokens: int) -> tuple[int, int, int, Any]:
        """Returns (frames, rows, columns, interval) of the next image or video.

        Raises:
            ConfigError: There is none, or it has more tokens than there are left.
        """
        noun = {_IMAGE: "image", _VIDEO: "video"}.get(kind)
        if noun is None:
            raise ConfigError(
                f"The token type {kind} is unknown. It is 0 (text), 1 (image), 2 (video) or, for Qwen-Omni, 3 (audio)."
            )
        grid = next(self._left[kind], None)
        if grid is None:
            raise ConfigError(
                f"The text has more {noun} tokens than {noun}_grid_thw says. Give one row per {noun}, in the order of "
                "the text, and expand the text with the same front end."
            )
        needed = grid[0] * grid[1] * grid[2]
        if not 0 < needed <= tokens:
            raise ConfigError(
                f"One {noun} of {grid[0]} x {grid[1]} x {grid[2]} merged patches needs {needed} tokens, and the text "
                f"has {tokens} there. Expand the text with the same front end."
            )
        return grid

    def finish(self) -> None:
        """Checks that all grids were used.

        Raises:
            ConfigError: Some were not.
        """
        for kind, noun in ((_IMAGE, "image"), (_VIDEO, "video")):
            left = sum(1 for _ in self._left[kind])
            if left:
                raise ConfigError(
                    f"{noun}_grid_thw has {left} rows more than the text has {noun} tokens for. Give the grids of the "
                    "same samples as the text."
                )

    def _merged(self, grids: Any, intervals: Iterator[Any] | None) -> Iterator[tuple[int, int, int, Any]]:
        if grids is None:
            return
        for frames, height, width in _grid_rows(grids):
            interval = 1 if intervals is None else next(intervals, None)
            if interval is None:
                raise ConfigError("second_per_grid_ts has fewer values than video_grid_thw has rows. Give one each.")
            merged = height // self._merge, width // self._merge
            if intervals is not None and self._times_in_text:
                for _ in range(frames):
                    yield 1, *merged, 1
            else:
                yield frames, *merged, interval


def _grid_rows(grids: Any) -> list[list[int]]:
    array = _as_array(grids)
    if array.size % 3 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0)):
        raise ConfigError(
            f"A grid_thw of the shape {list(array.shape)} and type {array.dtype} is invalid. Give whole numbers of at "
            "least 0, [media, 3]: frames, rows and columns of patches of each."
        )
    rows: list[list[int]] = array.reshape(-1, 3).tolist()
    return rows


def _like_ids(name: str, values: Any, rows: NDArray[Any]) -> NDArray[Any]:
    array = _as_array(values)
    if array.size != rows.size:
        raise ConfigError(f"{name} has {array.size} values, and input_ids {rows.size}. Give one for each token.")
    return array.reshape(rows.shape)


def _needed(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise ConfigError(f"The configuration of this model has no {name}. Give the config.json of the whole model.")
    return values[name]


def _of_grid(start: int, frames: int, height: int, width: int, interval: Any) -> Int64s:
    """Returns int64[3, frames * height * width]."""
    times = (np.arange(frames) if interval == 1 else (np.arange(frames) * interval)).astype(np.int64)
    positions = np.empty((3, frames, height, width), np.int64)
    positions[0] = times[:, None, None]
    positions[1] = np.arange(height)[:, None]
    positions[2] = np.arange(width)
    return positions.reshape(3, -1) + start


def _intervals(tokens_per_second: float | None, seconds: Any) -> Iterator[Any]:
    """Yields the positions between temporal patches of each video, with the rounding of torch.

    There, a Python number times a tensor of integers is a float32, and the elements of a tensor keep their type.
    """
    if tokens_per_second is None or seconds is None:
        while True:
            yield 1 if tokens_per_second is None else tokens_per_second
    if hasattr(seconds, "dtype"):
        array = _as_array(seconds).ravel()
        for value in array:
            yield np.multiply(value, tokens_per_second, dtype=array.dtype)
        return
    for value in seconds:
        yield np.float32(tokens_per_second * float(value))


def _seconds(seconds: Any) -> Iterator[Any]:
    """Yields the seconds of a temporal patch of each video in single precision."""
    if seconds is None:
        while True:
            yield 1
    yield from _as_array(seconds).ravel().astype(np.float32)


def _edges(cu_seqlens: Any, ids: NDArray[Any]) -> list[int]:
    if cu_seqlens is None:
        return [0, ids.shape[-1]]
    edges: list[int] = _as_array(cu_seqlens).ravel().tolist()
    if ids.ndim != 1 or not edges or edges[0] != 0 or edges[-1] != len(ids) or edges != sorted(edges):
        raise ConfigError(
            f"cu_seqlens={edges} does not fit input_ids of the shape {list(ids.shape)}. It goes with one pack, "
            "ascends from 0, and ends with its length."
        )
    return edges


def _as_array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor of torch
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) in ("torch.bfloat16", "torch.float16") else values
        return np.asarray(values.numpy())
    return np.asarray(values)


def _like(array: NDArray[Any], given: Any) -> Any:
    if not hasattr(given, "detach"):
        return array
    import torch

    return torch.from_numpy(array).to(given.device)


def _config_values(config: object) -> dict[str, Any]:
    if isinstance(config, (str, Path)):
        path = Path(config)
        return read_json_object(path / "config.json" if path.is_dir() else path, "Give a model's config.json.")
    if isinstance(config, Mapping):
        return dict(config)
    to_dict = getattr(config, "to_dict", None)
    if not callable(to_dict):
        raise ConfigError(
            f"{type(config).__name__} is not a model's configuration. Give model.config, or the folder of the model."
        )
    return dict(to_dict())
