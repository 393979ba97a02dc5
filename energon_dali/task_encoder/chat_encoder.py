"""Makes tokens of a conversation with images, videos and audio: a chat template, expanded placeholders, a loss mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from energon_dali.calls import explain_call
from energon_dali.decode.front_ends import FrontEnd, MultimodalRope, VideoFrontEnd
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.task_encoder.chat_media import Expanded, Media, expand_media
from energon_dali.task_encoder.chat_messages import Message, read_messages
from energon_dali.task_encoder.chat_template import ChatTemplate, Span, TrainOn, choose_template
from energon_dali.task_encoder.packed_sequences import IGNORED


@dataclass(slots=True, eq=False)
class EncodedChat:
    """The tokens of a conversation. `ChatEncoder` makes it."""

    input_ids: list[int]
    """Ids of all tokens, with one placeholder for each feature of a medium."""
    labels: list[int]
    """The ids that the assistant says; -100 for the others."""
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
    chat_template: str | None = None
    train_on: TrainOn = "all"
    max_length: int | None = None
    too_long: Literal["refuse", "cut"] = "refuse"
    rope: MultimodalRope | None = None
    tokenizer: Any = field(init=False, repr=False)
    template: ChatTemplate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.tokenizer = getattr(self.processor, "tokenizer", None) or self.processor
        if not getattr(self.tokenizer, "is_fast", False):
            raise ConfigError(
                f"{type(self.processor).__name__} has no fast tokenizer, which says where in the text each token is. "
                "Give a processor or a tokenizer of transformers, such as AutoTokenizer.from_pretrained(...)."
            )
        for name, good, allowed in (
            ("train_on", self.train_on in ("all", "last"), 'choose "all" or "last"'),
            ("max_length", self.max_length is None or self.max_length > 0, "give a length above 0, or None"),
            ("too_long", self.too_long in ("refuse", "cut"), 'choose "refuse" or "cut"'),
        ):
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r} is invalid: {allowed}.")
        if self.image is not None and type(self.image).expand_text is not FrontEnd.expand_text:
            raise ConfigError(
                f"{type(self.image).__name__} changes the text around its images, so the places of the assistant's "
                "turns are unknown. Expand and tokenise its texts in preencode_sample."
            )
        self.template = choose_template(self.processor, self.tokenizer, self.chat_template)

    def __call__(
        self, messages: Any, *, images: Sequence[Any] = (), videos: Sequence[Any] = (), **variables: Any
    ) -> EncodedChat:
        """Returns the tokens of a conversation.

        Args:
            messages: Messages with `role` and `content`, or turns in LLaVA's format with `from` and `value`; or a
                mapping with such a list in `messages` or `conversations`. A content is a text, or a list of blocks such
                as {"type": "text", "text": "..."}, {"type": "image"} and {"type": "video"}.
            images: Handles, layouts, or decoded images, in the order of the conversation.
            videos: Likewise.
            **variables: Of the template, such as tools or add_generation_prompt.

        Raises:
            DatasetError: The conversation is none, is too long, or has more or fewer media than were given.
            ConfigError: The template writes the assistant's turns differently when others follow, or there is no front
                end for a medium.
            DecodeError: A front end refuses a medium of this size.
        """
        conversation = read_messages(messages)
        text, spans = self.template.spans(conversation, variables, self.train_on)
        media = self._media(images, videos)
        expanded = expand_media(text, media)
        made = self._tokenized(expanded, conversation)
        starts, stops = np.asarray(made["offset_mapping"], np.int64).reshape(-1, 2).T
        mask = np.zeros(len(starts), bool)
        for first, stop in expanded.moved(spans):
            mask |= (starts < stop) & (stops > first)
        ids: list[int] = made["input_ids"]
        self._check_cut(expanded, starts, stops, mask, spans)
        labels = np.where(mask, np.asarray(ids, np.int64), IGNORED).tolist()
        positions = self._positions(ids, media) if self.rope is not None else None
        return EncodedChat(ids, labels, mask.astype(np.int64).tolist(), positions)

    def _media(self, images: Sequence[Any], videos: Sequence[Any]) -> list[Media]:
        found = []
        for noun, given, front_end in (("image", images, self.image), ("video", videos, self.video)):
            layouts = [getattr(medium, "layout", medium) for medium in given]
            if front_end is None:
                if layouts:
                    raise ConfigError(
                        f"ChatEncoder was given {noun}s, and has no front end for them. Make it with {noun}=..., the "
                        "decoder's front end."
                    )
                continue
            token = front_end.video_token if isinstance(front_end, VideoFrontEnd) else front_end.image_token
            found.append(Media(noun, token, layouts, [front_end.image_text(layout) for layout in layouts]))
        return found

    def _tokenized(self, expanded: Expanded, messages: Sequence[Message]) -> Mapping[str, Any]:
        options: dict[str, Any] = {}
        if self.too_long == "cut" and self.max_length is not None:
            options = {"truncation": True, "max_length": self.max_length}
        made: Mapping[str, Any] = self.tokenizer(
            expanded.text,
            add_special_tokens=self._adds_special_tokens(expanded.text),
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            **options,
        )
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

    def _positions(self, ids: list[int], media: Sequence[Media]) -> NDArray[Any]:
        assert self.rope is not None
        grids = {f"{one.noun}_grid_thw": [layout.grid for layout in one.layouts] for one in media if one.layouts}
        seconds = None
        per_grid: Callable[[Any], float] | None = getattr(self.video, "seconds_per_grid", None)
        if per_grid is not None and "video_grid_thw" in grids:
            seconds = [per_grid(layout) for one in media if one.noun == "video" for layout in one.layouts]
        positions, _ = self.rope.positions(np.asarray(ids), **grids, second_per_grid_ts=seconds)
        found: NDArray[Any] = positions
        return found
