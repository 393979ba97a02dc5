"""Counts the tokens of an encoded sample, of its text and of its images, before anything is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, Protocol

import numpy as np

from energon_dali.cache import Lazy
from energon_dali.decode import MediaHandle
from energon_dali.decode.audio_front_ends import AudioFrontEnd, AudioLayout
from energon_dali.decode.front_ends import ImageLayout, VisionInput
from energon_dali.decode.front_ends.processor_family import ProcessorFamily
from energon_dali.errors import ConfigError, DatasetError

TOKEN_FIELDS = ("tokens", "input_ids", "length")
"""Fields of an encoded sample that say how long its text is, in the order in which they are looked for."""
_ID_FIELDS = TOKEN_FIELDS[:2]
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), np.ndarray, np.int32, np.int64})
"""Types of values in which there are neither media nor fields."""


class _Media(Protocol):
    """A handle with a front end, or what it was decoded to."""

    @property
    def layout(self) -> ImageLayout | AudioLayout: ...


def count_tokens(sample: Any) -> int:
    """Returns the length of an encoded sample in tokens: text, and media if the decoder has a front end.

    The text is the first of the fields (or keys) tokens, input_ids and length: the last dimension of a tensor or array,
    the length of a list, a whole number. A sample without them may hold tokens and input_ids deeper inside, which are
    added. Media count wherever they are: handles, which know their tokens from the header, and decoded ones. A text
    whose placeholders were expanded contains the tokens of its media already: nothing is added. If it has one
    placeholder for each, that is replaced; without placeholders, their tokens are added to it, with the markers around
    them. Words that a family writes between the frames of a video count as the tokenizers of the published models split
    them. `length` counts all of the sample.

    Args:
        sample: A dataclass, a dict, or any object with such fields.

    Raises:
        ConfigError: There is no such field, or its value has no length; or the front end has no
            `image_token_id` (or `audio_token_id`), without which it is unknown whether the text is expanded.
        DatasetError: The number of placeholders in the text is that of another sample.
        DecodeError: The front end refuses an image of this size.
    """
    media: list[_Media] = []
    texts: list[Any] = []
    length = None
    seen = {id(sample)}
    for name in TOKEN_FIELDS:
        value = _field(sample, name)
        if value is not None:
            length = _length_of(value, name, sample, media)
            if name == "length":
                return length
            texts.append(value)
            if _is_ids(value):
                seen.add(id(value))
            break
    nested = length is None
    _look_inside(_values(sample), media, texts if nested else None, seen)
    if nested:
        if not texts:
            raise ConfigError(
                f'Counting tokens (blend_by="tokens") needs one of the fields {", ".join(TOKEN_FIELDS)} in an encoded '
                f"sample, and {type(sample).__name__} has none. Let the encode hook set one, or give a function."
            )
        length = sum(_length_of(text, "tokens", sample, None) for text in texts)
    assert length is not None
    return length + _media_tokens(media, texts) if media else length


def find_media(sample: Any) -> list[_Media]:
    """Returns the media of a sample that have a front end, wherever they are: handles, and decoded ones.

    Args:
        sample: A dataclass, a dict, or any object with fields.
    """
    media: list[_Media] = []
    _look_inside(_values(sample), media, None, {id(sample)})
    return media


def count_patches(media: Sequence[_Media]) -> tuple[int, int, int]:
    """Returns (features in the text, patches that the vision encoder sees, sum of their squares over what attends).

    The positions of an audio encoder count as patches.

    Args:
        media: From `find_media`.

    Raises:
        DecodeError: The front end refuses an image of this size.
    """
    features = patches = squares = 0
    for one in media:
        front_end, layout = _front_end(one), one.layout
        features += layout.num_features if getattr(front_end, "in_text", True) else 0
        for count, size in front_end.attention_groups(layout):
            patches += count * size
            squares += count * size * size
    return features, patches, squares


def _length_of(value: Any, name: str, sample: Any, media: list[_Media] | None) -> int:
    """Returns the tokens of a field; media between its pieces of text are noted."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        return int(shape[-1])
    if isinstance(value, (list, tuple)):
        if media is not None and not _is_ids(value) and any(map(_is_media, value)):  # interleaved: [ids, image, ids]
            return sum(_length_of(piece, name, sample, None) for piece in value if not _is_media(piece))
        return len(value)
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'Counting tokens (blend_by="tokens") found {name}={value!r} in {type(sample).__name__}, which is not a '
            "length. Give a whole number, a list or a tensor there, or a function that counts."
        ) from error


def _is_ids(value: Any) -> bool:
    """Whether a text is one list or array of ids. Looks at the first entry: pieces of text and media hold no ids."""
    return hasattr(value, "shape") or not isinstance(value, (list, tuple)) or not value or type(value[0]) in _PLAIN


def _is_plain(values: Sequence[Any]) -> bool:
    return _PLAIN.issuperset(map(type, values))


def _is_media(value: Any) -> bool:
    if isinstance(value, MediaHandle):
        return getattr(value.spec, "front_end", None) is not None
    # What a front end makes of a video has another class, and the same properties.
    return isinstance(value, VisionInput) or isinstance(getattr(value, "front_end", None), ProcessorFamily)


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _values(holder: Any) -> Sequence[Any]:
    if isinstance(holder, dict):
        return list(holder.values())
    if is_dataclass(holder):
        names = {**holder.__dataclass_fields__, **getattr(holder, "__dict__", {})}
        return [getattr(holder, name, None) for name in names]
    return list(getattr(holder, "__dict__", {}).values())


def _look_inside(values: Sequence[Any], media: list[_Media], texts: list[Any] | None, seen: set[int]) -> None:
    """Notes the media in values, each once, and token ids in fields of theirs if `texts` is given."""
    for value in values:
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Lazy):
            if not _may_hold_media(value):
                continue
            value = value.get()
            if id(value) in seen:
                continue
            seen.add(id(value))
        if _is_media(value):
            media.append(value)
        elif isinstance(value, (list, tuple)):
            if not _is_plain(value):
                _look_inside(value, media, texts, seen)
        elif isinstance(value, dict) or (is_dataclass(value) and not isinstance(value, (type, MediaHandle))):
            if texts is not None:
                texts += [ids for name in _ID_FIELDS if _are_ids(ids := _field(value, name))][:1]
            _look_inside(_values(value), media, texts, seen)


def _are_ids(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return bool(shape) if shape is not None else isinstance(value, (list, tuple))


def _may_hold_media(reference: Lazy[Any]) -> bool:
    """Whether a file of a store can be media with a front end; nothing else is fetched to be counted."""
    decoder = getattr(reference.ds, "decoder", None)
    if reference.ds is None or getattr(getattr(decoder, "spec", None), "front_end", None) is not None:
        return True
    if getattr(decoder, "audio_spec", None) is not None:
        return True
    return getattr(getattr(decoder, "av_decode", None), "front_end", None) is not None


def _media_tokens(media: list[_Media], texts: list[Any]) -> int:
    """Returns the tokens that media add to those of the text."""
    media = [one for one in media if getattr(_front_end(one), "in_text", True)]
    features = kept = added = images = 0
    unknown: str | None = None
    ids: set[int] = set()
    for one in media:
        front_end, layout = _front_end(one), one.layout
        ids |= _placeholder_ids(front_end)
        features += layout.num_features
        if not isinstance(front_end, AudioFrontEnd):
            added += front_end.number_tokens(images)
            images += 1
            if front_end.placeholder_id is not None:
                kept += front_end.kept_placeholders(layout)
            elif front_end.separate_placeholder:
                unknown = front_end.image_token
        added += front_end.text_tokens(layout)
    found = sum(_count_ids(text, ids) for text in texts)
    if found == features + kept:
        return 0
    if found == len(media):
        return added - found
    if found == 0:
        if unknown is not None:
            raise ConfigError(
                f"The text may contain {unknown!r} for each image, and the front end has no id for it. Give "
                "FrontEnd.from_processor(processor, placeholder_id=...), or expand the text first."
            )
        return added
    raise DatasetError(
        f"The text has {found} placeholder tokens for {len(media)} images or videos with {features + kept} tokens in "
        f"all (recordings included). It must have {features + kept} (expanded), {len(media)} (one for each), or none."
    )


def _placeholder_ids(front_end: Any) -> set[int]:
    """Returns the ids of the tokens that stand for media, or their features, in a text.

    Raises:
        ConfigError: The front end does not know them.
    """
    if isinstance(front_end, AudioFrontEnd):
        token, give = front_end.audio_token, "AudioFrontEnd.from_processor(processor, audio_token_id=...)"
        own = {front_end.audio_token_id}
    else:
        token, give = front_end.image_token, "FrontEnd.from_processor(processor, image_token_id=...)"
        # The features of a video are image tokens in some families, and the placeholder is a video token.
        own = {front_end.image_token_id, getattr(front_end, "video_token_id", None)}
    if own == {None}:
        raise ConfigError(
            "This sample has token ids and media, and the front end has no id of its placeholder "
            f"{token!r}: the text may contain the tokens of the media, or not. Give {give}, the whole length as the "
            "field `length`, or a function that counts."
        )
    return {number for number in own | {getattr(front_end, "placeholder_id", None)} if number is not None}


def _front_end(one: Any) -> Any:
    front_end = (one.spec if isinstance(one, MediaHandle) else one).front_end
    return front_end


def _count_ids(text: Any, ids: set[Any]) -> int:
    if isinstance(text, (list, tuple)):
        if _is_plain(text):
            return sum(token in ids for token in text)
        return sum(_count_ids(piece, ids) for piece in text if not _is_media(piece))
    if hasattr(text, "shape"):
        return int(np.isin(np.asarray(text), list(ids)).sum())
    return int(text in ids)
