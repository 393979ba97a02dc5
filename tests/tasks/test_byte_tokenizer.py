from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.tasks.tokenizers import ByteTokenizer, TextCodec

TOKENIZER = ByteTokenizer()


@given(text=st.text())
def test_text_comes_back(text: str) -> None:
    for special in (False, True):
        tokens = TOKENIZER.encode(text, special)
        assert TOKENIZER.decode(tokens) == TOKENIZER.decode(torch.tensor(tokens, dtype=torch.int64)) == text
        assert all(0 <= token < len(TOKENIZER) for token in tokens)
        assert len(tokens) == len(text.encode()) + 2 * special
    codec = TextCodec(TOKENIZER)
    assert codec.decode(codec.encode(text)) == text


@given(tokens=st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_any_tokens_are_some_text(tokens: list[int]) -> None:
    assert TOKENIZER.decode(tokens) == bytes(token for token in tokens if token < 256).decode(errors="replace")


@given(texts=st.lists(st.text(), min_size=1), max_length=st.none() | st.integers(1, 5))
def test_batches_are_padded_and_cut(texts: list[str], max_length: int | None) -> None:
    cut = {"truncation": True, "max_length": max_length} if max_length else {}
    made = TOKENIZER(texts, padding=True, return_tensors="pt", **cut)  # type: ignore[arg-type]
    expected = [TOKENIZER.encode(text)[:max_length] for text in texts]
    assert [ids[mask.bool()].tolist() for ids, mask in zip(*made.values(), strict=True)] == expected
    assert (made["input_ids"][made["attention_mask"] == 0] == TOKENIZER.pad_token_id).all()
    assert TOKENIZER(texts[0])["input_ids"] == TOKENIZER.encode(texts[0])
    assert TOKENIZER.batch_decode(TOKENIZER(texts)["input_ids"]) == texts


def test_special_tokens_can_be_shown() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a"), skip_special_tokens=False) == "<bos>a<eos>"


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="Token 259 cannot be decoded: ByteTokenizer has 0 to 258"):
        TOKENIZER.decode([259])
    with pytest.raises(ConfigError, match="3 to 4 tokens do not form a tensor: give padding=True"):
        TOKENIZER(["a", "bc"], return_tensors="pt")
    with pytest.raises(ConfigError, match="give a number of tokens from 1 on"):
        TOKENIZER("a", truncation=True)


def test_a_tokenizer_without_some_special_tokens_borrows_them() -> None:
    def like(**tokens: int | None) -> TextCodec:
        names = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id"))
        return TextCodec(SimpleNamespace(encode=TOKENIZER.encode, decode=TOKENIZER.decode, **{**names, **tokens}))

    like_gpt2, like_bert = like(eos_token_id=7), like(cls_token_id=1, sep_token_id=2, pad_token_id=0)
    assert (like_gpt2.begin, like_gpt2.end, like_gpt2.padding) == (7, 7, 7)
    assert (like_bert.begin, like_bert.end, like_bert.padding) == (1, 2, 0)
    assert like_bert.encode("abc", max_tokens=2) == [1, 97, 98, 2]
    assert like_gpt2.decode([7, 97, 98, 7, 99]) == "ab"
    with pytest.raises(ConfigError, match="neither eos_token nor sep_token"):
        like(pad_token_id=0)
