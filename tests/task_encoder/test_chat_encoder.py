"""Conversations become the tokens and the mask of the processors' own `apply_chat_template`."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import ChatEncoder, ConfigError, DatasetError, FrontEnd, MultimodalRope, pack_sequences
from tests.task_encoder.chat_cases import (
    CASES,
    ChatCase,
    chat_template,
    chat_tokenizer,
    conversation,
    layouts_of,
    recording,
)


@lru_cache
def made_case(name: str) -> ChatCase:
    return CASES[name]()


def of_processor(case: ChatCase, template: str, messages: Any, **given: Any) -> dict[str, Any]:
    """Returns input_ids and assistant_masks of the processor."""
    made = case.processor.apply_chat_template(
        messages,
        chat_template=template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        return_tensors=None,
        **given,
    )
    return {name: list(made[name][0]) for name in ("input_ids", "assistant_masks")}


def compare(name: str, seed: int) -> int:
    """Compares a random conversation with what the processor makes of it; returns its number of media."""
    case, draw = made_case(name), random.Random(f"{name} {seed}")
    template = chat_template(case, draw, marked=True)
    messages = conversation(case, draw)
    variables: dict[str, Any] = {}
    if draw.random() < 0.2:
        variables["add_generation_prompt"] = True
    if draw.random() < 0.2:
        variables["tools"] = [{"type": "function", "function": {"name": "look"}}]
    media = layouts_of(case, messages)
    more: dict[str, Any] = {}
    if case.audio is not None and "videos" in media and draw.random() < 0.5:
        heard = [recording(draw) for _ in media["videos"]]
        case.processor.heard = heard
        media["audio_of_videos"] = [case.audio.layout(len(samples)) for samples in heard]
        more = {"load_audio_from_video": True, "processor_kwargs": {"fps": 2.0}}
    expected = of_processor(case, template, messages, **variables, **more)
    encoder = ChatEncoder(case.processor, **case.front_ends(), chat_template=template)
    chat = encoder(messages, **media, **variables)
    assert chat.input_ids == expected["input_ids"]
    assert chat.assistant_mask == expected["assistant_masks"]
    for number, said, label in zip(chat.input_ids, chat.assistant_mask, chat.labels, strict=True):
        assert label in ((number, -100) if said else (-100,))
    return sum(map(len, media.values()))


def test_media_of_the_assistant_have_no_labels() -> None:
    case = CASES["Qwen2-VL"]()
    template = chat_template(case, random.Random(3), marked=True)
    encoder = ChatEncoder(case.processor, image=case.image, chat_template=template)
    answer = [{"type": "text", "text": "Here it is: "}, {"type": "image"}, {"type": "text", "text": " Good?"}]
    messages = [{"role": "user", "content": "Show it."}, {"role": "assistant", "content": answer}]
    chat = encoder(messages, images=[case.image.layout(40, 40)])
    learned = str(encoder.tokenizer.decode([number for number in chat.labels if number != -100]))
    assert case.image.image_token not in learned
    assert "Here it is" in learned
    assert "Good?" in learned
    unlearned = [number for number, label in zip(chat.input_ids, chat.labels, strict=True) if label == -100]
    assert case.image.image_token in str(encoder.tokenizer.decode(unlearned))


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_mask_equal_those_of_the_processor(name: str) -> None:
    assert sum(compare(name, seed) for seed in range(6)) > 5


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_mask_equal_those_of_the_processor_for_many_conversations(name: str) -> None:
    assert sum(compare(name, seed) for seed in range(6, 120)) > 100


@pytest.mark.parametrize("name", ["Qwen2.5-VL", "Gemma 3", "InternVL"])
def test_a_template_without_markers_gives_the_mask_of_one_with_them(name: str) -> None:
    case = made_case(name)
    for seed in range(6):
        messages = conversation(case, random.Random(seed))
        plain = chat_template(case, random.Random(seed), marked=False)
        encoder = ChatEncoder(case.processor, **case.front_ends(), chat_template=plain)
        found = encoder(messages, **layouts_of(case, messages))
        own = of_processor(case, plain, messages)
        assert found.input_ids == own["input_ids"]
        assert not any(own["assistant_masks"])  # transformers masks nothing
        assert sum(found.assistant_mask) > 0
        text, spans = encoder.template.spans(messages, {}, "all")
        whole = chat_template(case, random.Random(seed), marked=True, whole=True)
        same, marked = ChatEncoder(case.processor, chat_template=whole).template.spans(messages, {}, "all")
        assert same == text
        for (start, stop), (first, last) in zip(spans, marked, strict=True):
            assert start == first
            assert stop in (last, first + len(text[first:last].rstrip()))


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}"
)
MESSAGES = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": " No. "},
]


def said(encoder: ChatEncoder, messages: Any, **given: Any) -> str:
    chat = encoder(messages, **given)
    return str(encoder.tokenizer.decode([number for number in chat.labels if number != -100]))


@pytest.mark.parametrize("template", [TEMPLATE, MARKED], ids=["plain", "marked"])
def test_the_assistant_says_its_words_and_the_end_of_its_turn(template: str) -> None:
    tokenizer = chat_tokenizer(merges=False)
    tokenizer.chat_template = template
    assert said(ChatEncoder(tokenizer), MESSAGES) == "Yes.<|im_end|> No. <|im_end|>"
    assert said(ChatEncoder(tokenizer, train_on="last"), MESSAGES) == " No. <|im_end|>"
    assert said(ChatEncoder(tokenizer), MESSAGES[:1]) == ""
    assert said(ChatEncoder(tokenizer), MESSAGES[:1], add_generation_prompt=True) == ""
    assert said(ChatEncoder(tokenizer, train_on="last"), MESSAGES[1:2]) == "Yes.<|im_end|>"
    own = tokenizer.apply_chat_template(MESSAGES, return_dict=True, return_assistant_tokens_mask=template == MARKED)
    chat = ChatEncoder(tokenizer)(MESSAGES)
    assert chat.input_ids == own["input_ids"]
    assert template != MARKED or chat.assistant_mask == own["assistant_masks"]


def test_a_prompt_that_ends_with_other_white_space_is_found() -> None:
    template = TEMPLATE.replace("{{ message.role }}\n", "{{ message.role }} ")  # as LLaVA-OneVision's
    assert (
        said(ChatEncoder(chat_tokenizer(merges=False), chat_template=template), MESSAGES)
        == " Yes.<|im_end|>  No. <|im_end|>"
    )


def test_turns_of_llava_become_messages() -> None:
    case = made_case("LLaVA-OneVision")
    turns = {
        "id": 3,
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is this? <video>"},
            {"from": "gpt", "value": "A cat."},
        ],
    }
    image, video = {"type": "image", "image": None}, {"type": "video", "video": None}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "What is this?"}, video]},
        {"role": "assistant", "content": "A cat."},
    ]
    template = chat_template(case, random.Random(1), marked=True)
    encoder = ChatEncoder(case.processor, **case.front_ends(), chat_template=template)
    assert case.image is not None
    assert case.video is not None
    media: dict[str, Any] = {"images": [case.image.layout(40, 30)], "videos": [case.video.layout(40, 30, 20, 8.0)]}
    assert encoder(turns, **media).input_ids == encoder(messages, **media).input_ids
    assert encoder({"messages": messages}, **media).labels == encoder(messages, **media).labels


def test_a_long_conversation_is_refused_or_cut() -> None:
    case = made_case("Qwen2-VL")
    assert case.image is not None
    template = chat_template(case, random.Random(2), marked=True)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "the cat and the fox jumps over"},
        {"role": "user", "content": [{"type": "image"}]},
        {"role": "assistant", "content": "dog"},
    ]
    images = [case.image.layout(120, 90)]

    def encoder(**given: Any) -> ChatEncoder:
        return ChatEncoder(case.processor, image=case.image, chat_template=template, **given)

    whole = encoder()(messages, images=images)
    assert len(encoder(max_length=len(whole))(messages, images=images)) == len(whole)
    with pytest.raises(DatasetError, match=f"has {len(whole)} tokens, and max_length is {len(whole) - 1}"):
        encoder(max_length=len(whole) - 1)(messages, images=images)
    first = whole.input_ids.index(case.processor.image_token_id)
    cut = encoder(max_length=len(whole) - 2, too_long="cut")(messages, images=images)
    assert cut.input_ids == whole.input_ids[:-2]
    assert cut.labels == whole.labels[:-2]
    for length in (first, first + 3):
        with pytest.raises(DatasetError, match="would leave a part of a medium"):
            encoder(max_length=length, too_long="cut")(messages, images=images)
    with pytest.raises(DatasetError, match="the assistant says nothing before that"):
        encoder(max_length=3, too_long="cut")(messages[:2])


def test_mistakes_say_what_to_do() -> None:
    case = made_case("Qwen2-VL")
    assert case.image is not None
    template = chat_template(case, random.Random(3), marked=True)
    encoder = ChatEncoder(case.processor, image=case.image, chat_template=template)
    layout = case.image.layout(40, 40)
    with pytest.raises(DatasetError, match=r"has 0 '<\|image_pad\|>' after its chat template, and 1 image parts"):
        encoder(MESSAGES, images=[layout])
    with pytest.raises(DatasetError, match=r"has 1 '<\|image_pad\|>'.*and 0 image parts"):
        encoder([{"role": "user", "content": "Look: <|image_pad|>"}])
    with pytest.raises(ConfigError, match="was given video parts, and has no front end for them"):
        encoder(MESSAGES, videos=[layout])
    with pytest.raises(ConfigError, match=r"one ImageLayout for its image parts\. Give a list, in the order"):
        encoder(MESSAGES, images=layout)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"image parts of the type Tensor\. Give handles, layouts, or what"):
        encoder(MESSAGES, images=[torch.zeros(3, 40, 40)])
    with pytest.raises(DatasetError, match=r"The content of a message is 3\. It must be a text, or a list of blocks"):
        encoder([{"role": "user", "content": 3}])
    for name, kind in {
        "image": "FrontEnd",
        "video": "VideoFrontEnd",
        "audio": "AudioFrontEnd",
        "rope": "MultimodalRope",
    }.items():
        with pytest.raises(ConfigError, match=rf"{name}=3 is invalid: give (the|a) {kind}"):
            ChatEncoder(case.processor, chat_template=template, **{name: 3})
    with pytest.raises(ConfigError, match="has no chat template"):
        ChatEncoder(chat_tokenizer(merges=False))
    with pytest.raises(ConfigError, match="has no fast tokenizer"):
        ChatEncoder(object())
    with pytest.raises(ConfigError, match="train_on='first' is invalid"):
        ChatEncoder(case.processor, chat_template=template, train_on="first")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="changes the text around its images"):
        ChatEncoder(
            case.processor,
            image=FrontEnd.from_processor({"image_processor_type": "Idefics2ImageProcessor"}),
            chat_template=template,
        )
    for wrong, message in (
        ([], "It must be a list of at least one message"),
        ("text", "It must be a list"),
        ({"text": []}, "must hold the list of its messages"),
        ([{"from": "narrator", "value": "a"}], "is from 'narrator'"),
        ([{"from": "human"}], "It must have a role and a content"),
    ):
        with pytest.raises(DatasetError, match=message):
            encoder(wrong)
    with pytest.raises(DatasetError, match="refuses a conversation: only users"):
        ChatEncoder(case.processor, chat_template="{{ raise_exception('only users') }}")(MESSAGES)


def test_a_template_that_rewrites_earlier_turns_needs_markers() -> None:
    template = (
        "{% for message in messages %}{{ message.role }}: {% if loop.last %}<think>{{ message.thought }}</think>"
        "{% endif %}{{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = chat_tokenizer(merges=False)
    with pytest.raises(ConfigError, match=r"writes the first messages of a conversation differently.*endgeneration"):
        ChatEncoder(tokenizer, chat_template=template)(MESSAGES)
    thoughts = [*MESSAGES[:3], {**MESSAGES[3], "thought": "Hm."}]
    plain = template.replace("{% if loop.last %}", "{% if loop.last and message.thought %}")
    encoder = ChatEncoder(tokenizer, chat_template=plain, train_on="last")
    assert said(encoder, thoughts) == "<think>Hm.</think> No. \n"


def test_positions_are_those_of_the_text() -> None:
    case = made_case("Qwen2.5-VL")
    draw = random.Random(5)
    messages = conversation(case, draw)
    template = chat_template(case, draw, marked=True)
    rope = MultimodalRope(
        image_token_id=case.processor.image_token_id,
        video_token_id=case.processor.video_token_id,
        tokens_per_second=2,
    )
    encoder = ChatEncoder(case.processor, **case.front_ends(), chat_template=template, rope=rope)
    media = layouts_of(case, messages)
    assert media.keys() == {"images", "videos"}
    chat = encoder(messages, **media)
    seconds = [case.video.seconds_per_grid(layout) for layout in media["videos"]]  # type: ignore[union-attr]
    positions, _ = rope.positions(
        chat.input_ids,
        image_grid_thw=[layout.grid for layout in media["images"]],
        video_grid_thw=[layout.grid for layout in media["videos"]],
        second_per_grid_ts=seconds,
    )
    assert chat.position_ids is not None
    assert np.array_equal(chat.position_ids, positions)
    pack = pack_sequences([chat, chat], position_ids=lambda one: one.position_ids)
    assert pack.position_ids.shape == (4, 1, 2 * len(chat))


def test_the_default_template_of_qwen2_audio_needs_no_markers() -> None:
    case = made_case("Qwen2-Audio")
    assert case.audio is not None
    encoder = ChatEncoder(case.processor, **case.front_ends())
    messages = [
        {"role": "user", "content": [{"type": "audio", "audio": np.zeros(8000, np.float32)}]},
        {"role": "assistant", "content": "A bell."},
        {"role": "user", "content": [{"type": "text", "text": "And this? "}, {"type": "audio"}]},
        {"role": "assistant", "content": "A dog."},
    ]
    layouts = [case.audio.layout(count) for count in (8000, 16000)]
    assert said(encoder, messages, audio=layouts) == "A bell.<|im_end|>A dog.<|im_end|>"
    messages[2]["content"][1]["audio"] = np.zeros(16000, np.float32)  # type: ignore[index]
    own = case.processor.apply_chat_template(messages, tokenize=True, return_dict=True)
    assert encoder(messages, audio=layouts).input_ids == list(own["input_ids"][0])


USER: dict[str, Any] = {"role": "user", "content": "Look: <|image_pad|>"}


@lru_cache
def encoder_of_images(**given: Any) -> ChatEncoder:
    case = made_case("Qwen2-VL")
    template = chat_template(case, random.Random(3), marked=True)
    return ChatEncoder(case.processor, image=case.image, **{"chat_template": template, **given})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": None, "content": "a"}, "It must have a role"),
        ({"role": "user", "content": 5}, "is 5. It must be a text, or a list of blocks"),
        ({"role": "user", "content": ["a"]}, "block of a message is 'a'. It must be a mapping"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "The text of a block.*is missing"),
        ({"role": "user", "content": "\ud800"}, "half of a surrogate pair"),
        ({"role": "user", "content": [{"type": "video"}]}, r"has video parts.*no front end for them.*video=\.\.\."),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "has audio parts, and"),
        ({"role": "user", "content": "a <|video_pad|>"}, r"has video parts \('<\|video_pad\|>'\)"),
    ],
)
def test_what_a_template_would_lose_or_misread_fails_its_sample(message: dict[str, Any], words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        encoder_of_images()([message])


def test_what_a_tool_returns_is_not_checked() -> None:
    template = "{% for message in messages %}{{ message.content | string }}{% endfor %}"
    assert encoder_of_images(chat_template=template)([{"role": "tool", "content": {"found": [3]}}]).input_ids


def test_media_without_a_layout_are_refused() -> None:
    encoder = encoder_of_images()
    assert encoder.image is not None
    cases: list[tuple[Any, str]] = [
        (encoder.image.layout(40, 40), r"one ImageLayout for its image parts\. Give a list"),
        ([np.zeros(3)], r"image parts of the type ndarray.*front end of ChatEncoder"),
        ([None], "of the type NoneType"),
    ]
    for images, words in cases:
        with pytest.raises(ConfigError, match=words):
            encoder([USER], images=images)


def test_a_tensor_is_not_taken_for_a_medium() -> None:
    """The attribute `layout` of tensors is something else."""
    torch = pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="of the type Tensor"):
        encoder_of_images()([USER], images=[torch.zeros(3)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_length": "5"}, "max_length='5' is invalid: give a whole number"),
        ({"max_length": 5.5}, "max_length=5.5"),
        ({"max_length": True}, "max_length=True"),
        ({"video": "x"}, "video='x' is invalid: give the VideoFrontEnd"),
        ({"rope": "x"}, "rope='x' is invalid"),
        ({"chat_template": "tool_use"}, "'tool_use' is neither a Jinja template nor the name.*no names"),
        ({"chat_template": 5}, "chat_template=5"),
    ],
)
def test_wrong_arguments_of_an_encoder_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ChatEncoder(made_case("Qwen2-VL").processor, **{"chat_template": TEMPLATE, **given})


def test_a_template_that_is_not_jinja_is_an_error_of_the_program() -> None:
    with pytest.raises(ConfigError, match=r"not valid Jinja.*in line 1"):
        encoder_of_images(chat_template="{% for x %}")(MESSAGES)
    with pytest.raises(ConfigError, match="conversations cannot be a variable"):
        encoder_of_images()(MESSAGES, conversations=3)
    with pytest.raises(DatasetError, match="can only concatenate"):
        encoder_of_images(chat_template="{{ messages[0].content + 3 }}")(MESSAGES)


def test_a_tokenizer_that_keeps_the_last_tokens_cannot_cut() -> None:
    tokenizer = chat_tokenizer(merges=False)
    tokenizer.truncation_side = "left"
    with pytest.raises(ConfigError, match='truncation_side="left"'):
        ChatEncoder(tokenizer, chat_template=TEMPLATE, max_length=5, too_long="cut")


def test_a_prompt_for_another_turn_is_not_said() -> None:
    encoder = ChatEncoder(chat_tokenizer(merges=False), chat_template=TEMPLATE)
    assert said(encoder, MESSAGES, add_generation_prompt=True) == "Yes.<|im_end|> No. <|im_end|>"
    assert said(encoder, MESSAGES[:2], continue_final_message=True) == "Yes."
    assert said(encoder, MESSAGES, continue_final_message=True).startswith("Yes.<|im_end|> No.")


@pytest.mark.parametrize(
    "before", ["{% if messages[0].role %}{% endif %}", "{% if messages %}<|im_start|>You help.<|im_end|>{% endif %}"]
)
def test_a_conversation_that_the_assistant_begins_may_need_markers(before: str) -> None:
    tokenizer = chat_tokenizer(merges=False)
    with pytest.raises(DatasetError, match=r"begins with a turn of the assistant.*Put a message before it"):
        ChatEncoder(tokenizer, chat_template=before + TEMPLATE)(MESSAGES[1:])
    assert said(ChatEncoder(tokenizer, chat_template=TEMPLATE), MESSAGES[1:2]) == "Yes.<|im_end|>"


def test_a_conversation_that_just_fits_is_not_cut() -> None:
    encoder = ChatEncoder(
        chat_tokenizer(merges=False),
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
        max_length=3,
        too_long="cut",
    )
    silent = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": ""}]
    assert len(encoder(silent)) == 3
    with pytest.raises(DatasetError, match="has more than 3 tokens"):
        encoder([{"role": "user", "content": "abcd"}, {"role": "assistant", "content": "e"}])
