"""Makes tokens of a conversation with images, videos and audio: a chat template, expanded placeholders, a loss mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from energon_dali.calls import explain_call
from energon_dali.decode.audio_front_ends import AudioFrontEnd, AudioLayout
from energon_dali.decode.front_ends import FrontEnd, MultimodalRope, VideoFrontEnd
from energon_dali.decode.front_ends.audio_in_video import AudioInVideo, audio_in_video_of
from energon_dali.decode.front_ends.layout import ImageLayout, VideoLayout
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.task_encoder.chat_media import Expanded, Media, expand_media
from energon_dali.task_encoder.chat_messages import Message, media_kinds, read_messages
from energon_dali.task_encoder.chat_template import ChatTemplate, Span, TrainOn, choose_template
from energon_dali.task_encoder.packed_sequences import IGNORED


@dataclass(slots=True, eq=False)
class EncodedChat:
    """The tokens of a conversation. `ChatEncoder` makes it."""

    input_ids: list[int]
    """Ids of all tokens, with one placeholder for each feature of a medium."""
    labels: list[int]
    """The ids that the assistant says; -100 for the others, and for media that it shows: nobody predicts these."""
    assistant_mask: list[int]
    """1 for the tokens that the assistant says, 0 for the others."""
    position_ids: NDArray[Any] | None
    """Positions in time, height and width [3, tokens] of `ChatEncoder(rope=...)`; None without it."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __repr__(self) -> str:
        return f"EncodedChat({len(self.input_ids)} tokens, {sum(self.assistant_mask)} of the assistant)"


@explain_call
@dataclass(eq=False)
class ChatEncoder:
    """Makes tokens of conversations, as `apply_chat_template` of a Hugging Face processor does, before decoding.

    transformers renders the chat template and the tokenizer cuts the text; front ends write the tokens of media in
    their places from layouts alone. Call it in `preencode_sample`, where media are handles:

        encoder = ChatEncoder(processor, image=front_end)
        chat = encoder(sample.messages, images=sample.images)

    Input ids and mask equal those of `processor.apply_chat_template(messages, tokenize=True, return_dict=True,
    return_assistant_tokens_mask=True)`. That mask is all zeros for a template without `{% generation %}`, as most
    published ones are. Here the assistant's turns are then found by rendering the conversation up to each of them.

    Args:
        processor: A processor of transformers that has a tokenizer, or a tokenizer. It must be a fast one.
        image: Front end of the images, the decoder's; None if there are none.
        video: Front end of the videos.
        audio: Front end of the audio.
        chat_template: A Jinja template, or the name of one of the processor's; None is the processor's own.
        train_on: Which turns of the assistant get labels: "all", or the "last" one.
        max_length: Most tokens of a conversation; None is unlimited.
        too_long: What happens to a longer one: "refuse" raises DatasetError, which drops the sample; "cut" keeps the
            first tokens, and refuses it if that cuts a medium or leaves nothing that the assistant says.
        rope: Computes `position_ids`.

    Raises:
        ConfigError: There is no fast tokenizer or no template, or an argument is invalid.
    """

    processor: Any
    _: KW_ONLY
    image: FrontEnd | None = None
    video: VideoFrontEnd | None = None
    audio: AudioFrontEnd | None = None
    chat_template: str | None = None
    train_on: TrainOn = "all"
    max_length: int | None = None
    too_long: Literal["refuse", "cut"] = "refuse"
    rope: MultimodalRope | None = None
    tokenizer: Any = field(init=False, repr=False)
    template: ChatTemplate = field(init=False, repr=False)
    interleaving: AudioInVideo | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.tokenizer = getattr(self.processor, "tokenizer", None) or self.processor
        if not getattr(self.tokenizer, "is_fast", False):
            raise ConfigError(
                f"{type(self.processor).__name__} has no fast tokenizer, which says where in the text each token is. "
                "Give a processor or a tokenizer of transformers, such as AutoTokenizer.from_pretrained(...)."
            )
        length = self.max_length
        for name, good, allowed in (
            (
                "image",
                _is_none_or(self.image, FrontEnd) and not isinstance(self.image, VideoFrontEnd),
                "give the FrontEnd of the decoder's images, or None",
            ),
            ("video", _is_none_or(self.video, VideoFrontEnd), "give the VideoFrontEnd of the decoder, or None"),
            ("audio", _is_none_or(self.audio, AudioFrontEnd), "give the AudioFrontEnd of the decoder, or None"),
            ("rope", _is_none_or(self.rope, MultimodalRope), "give a MultimodalRope, or None"),
            ("train_on", self.train_on in ("all", "last"), 'choose "all" or "last"'),
            (
                "max_length",
                length is None or (type(length) is int and length > 0),
                "give a whole number above 0, or None",
            ),
            ("too_long", self.too_long in ("refuse", "cut"), 'choose "refuse" or "cut"'),
        ):
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r} is invalid: {allowed}.")
        if self.too_long == "cut" and getattr(self.tokenizer, "truncation_side", "right") != "right":
            raise ConfigError(
                'The tokenizer cuts the first tokens (truncation_side="left"), and too_long="cut" keeps them. Set '
                'tokenizer.truncation_side = "right", or use too_long="refuse".'
            )
        if self.image is not None and type(self.image).expand_text is not FrontEnd.expand_text:
            raise ConfigError(
                f"{type(self.image).__name__} changes the text around its images, so the places of the assistant's "
                "turns are unknown. Expand and tokenise its texts in preencode_sample."
            )
        self.template = choose_template(self.processor, self.tokenizer, self.chat_template)
        self.interleaving = audio_in_video_of(self.processor)

    def __call__(
        self,
        messages: Any,
        *,
        images: Sequence[Any] = (),
        videos: Sequence[Any] = (),
        audio: Sequence[Any] = (),
        audio_of_videos: Sequence[Any] | None = None,
        seconds_per_grid: Sequence[float] | None = None,
        **variables: Any,
    ) -> EncodedChat:
        """Returns the tokens of a conversation.

        Args:
            messages: Messages with `role` and `content`, or turns in LLaVA's format with `from` and `value`; or a
                mapping with such a list in `messages` or `conversations`. A content is a text, or a list of blocks such
                as {"type": "text", "text": "..."}, {"type": "image"}, {"type": "video"} and {"type": "audio"}.
            images: Handles, layouts, or decoded images, in the order of the conversation.
            videos: Likewise.
            audio: Likewise, without that of videos.
            audio_of_videos: The audio of each video, or None where there is none, for models that take both together
                (Qwen-Omni): its tokens are written between those of the video. None ignores the audio of all.
            seconds_per_grid: Seconds of a temporal patch of each video; None takes what the processor takes.
            **variables: Of the template, such as tools or add_generation_prompt.

        Raises:
            DatasetError: The conversation is none, is too long, has more or fewer media than were given, or one that
                there is no front end for.
            ConfigError: The template writes the assistant's turns differently when others follow, there is no front
                end for what was given, or it is not a medium.
            DecodeError: A front end refuses a medium of this size.
        """
        conversation = read_messages(messages)
        text, spans = self.template.spans(conversation, variables, self.train_on)
        self._check_kinds(conversation, text)
        seconds = self._seconds(videos, seconds_per_grid)
        media = self._media(images, videos, audio)
        if audio_of_videos is not None:
            media = [self._with_audio(one, audio_of_videos, seconds) if one.noun == "video" else one for one in media]
        expanded = expand_media(text, media)
        made = self._tokenized(expanded, conversation)
        starts, stops = np.asarray(made["offset_mapping"], np.int64).reshape(-1, 2).T
        mask = _tokens_in(expanded.moved(spans), starts, stops)
        ids: list[int] = made["input_ids"]
        self._check_cut(expanded, starts, stops, mask, spans)
        learned = mask & ~_tokens_in(expanded.media, starts, stops)
        labels = np.where(learned, np.asarray(ids, np.int64), IGNORED).tolist()
        positions = self._positions(ids, media, seconds) if self.rope is not None else None
        return EncodedChat(ids, labels, mask.astype(np.int64).tolist(), positions)

    def _check_kinds(self, messages: Sequence[Message], text: str) -> None:
        """Checks that there is a front end for each kind of media in a conversation."""
        blocks = media_kinds(messages)
        for kind in ("image", "video", "audio"):
            if getattr(self, kind) is None:
                token = getattr(self.processor, f"{kind}_token", None)
                is_written = isinstance(token, str) and token in text and token not in self._tokens()
                if kind in blocks or is_written:
                    raise DatasetError(
                        f"A conversation has {kind} parts{f' ({token!r})' if is_written else ''}, and ChatEncoder no "
                        f"front end for them. Make it with {kind}=..., the front end of the decoder, or leave such "
                        "conversations out."
                    )

    def _tokens(self) -> set[str]:
        """Returns the placeholders of the front ends."""
        found = {self.image.image_token} if self.image is not None else set()
        found |= {self.video.video_token} if self.video is not None else set()
        return found | ({self.audio.audio_token} if self.audio is not None else set())

    def _media(self, images: Sequence[Any], videos: Sequence[Any], audio: Sequence[Any]) -> list[Media]:
        found = []
        for noun, given, front_end in (("image", images, self.image), ("video", videos, self.video)):
            layouts = _layouts(noun, given, front_end)
            if front_end is not None:
                token = front_end.video_token if isinstance(front_end, VideoFrontEnd) else front_end.image_token
                found.append(Media(noun, token, layouts, [front_end.image_text(layout) for layout in layouts]))
        layouts = _layouts("audio", audio, self.audio)
        if self.audio is not None:
            texts = [self.audio.audio_text(layout) for layout in layouts]
            found.append(Media("audio", self.audio.audio_token, layouts, texts))
        return found

    def _with_audio(self, videos: Media, audio: Sequence[Any], seconds: Sequence[float] | None) -> Media:
        """Returns videos with the tokens of their audio between their own."""
        if self.interleaving is None or self.audio is None or seconds is None:
            raise ConfigError(
                f"{type(self.processor).__name__} does not take videos together with their audio, or ChatEncoder has "
                "no audio=... and no video=... with temporal patches. Leave audio_of_videos out."
            )
        if len(audio) != len(videos.layouts):
            raise DatasetError(
                f"A conversation has {len(videos.layouts)} videos, and audio_of_videos {len(audio)} entries. Give one "
                "for each video, None where there is no audio."
            )
        if len(seconds) != len(videos.layouts):
            raise DatasetError(
                f"A conversation has {len(videos.layouts)} videos, and seconds_per_grid {len(seconds)} values. Give "
                "one for each video, or None."
            )
        texts = list(videos.texts)
        for number, heard in enumerate(audio):
            if heard is not None:
                tokens = _layout("audio", heard).num_features
                texts[number] = self.interleaving.text(
                    videos.token, videos.layouts[number], seconds[number], self.audio.audio_token, tokens
                )
        return Media(videos.noun, videos.token, videos.layouts, texts)

    def _seconds(self, videos: Sequence[Any], given: Sequence[float] | None) -> Sequence[float] | None:
        """Returns the seconds of a temporal patch of each video, as the processor takes them; None if it does not."""
        if given is not None or self.video is None:
            return given
        if self.interleaving is not None:
            rate = self.video.fps or self.interleaving.frames_per_second
            return [getattr(self.video, "temporal_patch_size", 1) / rate] * len(videos)
        per_grid: Callable[[Any], float] | None = getattr(self.video, "seconds_per_grid", None)
        return None if per_grid is None else [per_grid(getattr(video, "layout", video)) for video in videos]

    def _tokenized(self, expanded: Expanded, messages: Sequence[Message]) -> Mapping[str, Any]:
        options: dict[str, Any] = {}
        if self.too_long == "cut" and self.max_length is not None:
            options = {"truncation": True, "max_length": self.max_length}
        try:
            made: Mapping[str, Any] = self.tokenizer(
                expanded.text,
                add_special_tokens=self._adds_special_tokens(expanded.text),
                return_offsets_mapping=True,
                return_attention_mask=False,
                return_token_type_ids=False,
                **options,
            )
        except TypeError as error:
            _check_unicode(expanded.text)
            raise error
        length = len(made["input_ids"])
        if self.max_length is not None and length > self.max_length:
            raise DatasetError(
                f"A conversation of {len(messages)} messages has {length} tokens, and max_length is {self.max_length}. "
                'Make it shorter in preencode_sample, or give too_long="cut".'
            )
        return made

    def _adds_special_tokens(self, text: str) -> bool:
        """Whether the tokenizer adds its own tokens, such as <s>: as processors do unless the template wrote it."""
        if self.tokenizer is self.processor:
            return False
        begin = self.tokenizer.bos_token
        if begin is not None and text.startswith(begin):
            return False
        defaults = getattr(getattr(self.processor, "valid_processor_kwargs", None), "_defaults", {})
        of_text = {**getattr(self.processor, "text_kwargs", {}), **defaults.get("text_kwargs", {})}
        return bool(of_text.get("add_special_tokens", True))

    def _check_cut(
        self, expanded: Expanded, starts: NDArray[Any], stops: NDArray[Any], mask: NDArray[Any], spans: Sequence[Span]
    ) -> None:
        if self.too_long != "cut" or self.max_length is None or len(starts) < self.max_length:
            return
        first, last = int(starts.min(initial=0)), int(stops.max(initial=0))
        if last == len(expanded.text):  # nothing was cut
            return
        if any(start < first or stop > last for start, stop in expanded.media):
            raise DatasetError(
                f"A conversation has more than {self.max_length} tokens, and cutting it would leave a part of a "
                "medium. Give fewer or smaller media, or a larger max_length."
            )
        if spans and not mask.any():
            raise DatasetError(
                f"A conversation has more than {self.max_length} tokens, and the assistant says nothing before that. "
                "Give a larger max_length."
            )

    def _positions(self, ids: list[int], media: Sequence[Media], seconds: Sequence[float] | None) -> NDArray[Any]:
        assert self.rope is not None
        grids = {
            f"{one.noun}_grid_thw": [layout.grid for layout in one.layouts]
            for one in media
            if one.layouts and one.noun != "audio"
        }
        positions, _ = self.rope.positions(np.asarray(ids), **grids, second_per_grid_ts=seconds or None)
        found: NDArray[Any] = positions
        return found


def _layouts(noun: str, media: Sequence[Any] | None, front_end: object) -> list[Any]:
    if media is None:
        return []
    if not isinstance(media, Sequence) or isinstance(media, (str, bytes)):
        raise ConfigError(
            f"ChatEncoder was given one {type(media).__name__} for its {noun} parts. Give a list, in the order of the "
            "conversation."
        )
    if media and front_end is None:
        raise ConfigError(
            f"ChatEncoder was given {noun} parts, and has no front end for them. Make it with {noun}=..., the front "
            "end of the decoder."
        )
    return [_layout(noun, medium) for medium in media]


def _layout(noun: str, medium: Any) -> Any:
    layout = getattr(medium, "layout", medium)
    if not isinstance(layout, _LAYOUTS[noun]):
        raise ConfigError(
            f"ChatEncoder was given {noun} parts of the type {type(medium).__name__}. Give handles, layouts, or what "
            f"was decoded, of a decoder with the {noun} front end of ChatEncoder."
        )
    return layout


_LAYOUTS: dict[str, type] = {"image": ImageLayout, "video": VideoLayout, "audio": AudioLayout}


def _tokens_in(spans: Sequence[Span], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which tokens, given by their characters, are partly in one of the spans."""
    found = np.zeros(len(starts), bool)
    for first, stop in spans:
        found |= (starts < stop) & (stops > first)
    return found


def _is_none_or(value: object, kind: type) -> bool:
    return value is None or isinstance(value, kind)


def _check_unicode(text: str) -> None:
    """Checks that a text can be written as UTF-8, as tokenizers need it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"A conversation has half of a surrogate pair, {text[error.start]!r}, which is not a character. Write the "
            "text again, or replace it in preencode_sample."
        ) from error
