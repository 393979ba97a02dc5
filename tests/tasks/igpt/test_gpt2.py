from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from energon_dali.errors import ConfigError
from energon_dali.tasks.vision.gpt2 import Block
from energon_dali.tasks.vision.igpt import GPT2, draw_pixels


def small(**sizes: int) -> GPT2:
    torch.manual_seed(0)
    told = {"embed_dim": 12, "num_heads": 3, "num_layers": 2, "num_positions": 20, "num_vocab": 7, "num_classes": 4}
    model = GPT2(**{**told, **sizes})
    with torch.no_grad():
        for weight in model.parameters():  # as after a training: no term is small
            weight.normal_(std=0.5)
    return model


def naive(model: GPT2, tokens: list[int]) -> torch.Tensor:
    """Returns the last hidden layer [T, dim] of one sequence, head by head and position by position."""
    state = model.state_dict()

    def linear(name: str, vector: torch.Tensor) -> torch.Tensor:
        return state[f"{name}.weight"] @ vector + state[f"{name}.bias"]

    def norm(name: str, vector: torch.Tensor) -> torch.Tensor:
        spread = ((vector - vector.mean()) ** 2).mean()
        return (vector - vector.mean()) / (spread + 1e-5).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]

    first = [state["sos"], *(state["token_embeddings.weight"][token] for token in tokens[:-1])]
    hidden = [vector + state["position_embeddings.weight"][place] for place, vector in enumerate(first)]
    for number in range(len(model.layers)):
        name = f"layers.{number}"
        qkv = [
            linear(f"{name}.attn.qkv", norm(f"{name}.ln_1", vector)).view(3, model.num_heads, -1) for vector in hidden
        ]
        for place, vector in enumerate(list(hidden)):
            heads = []
            for head in range(model.num_heads):
                scores = torch.stack([qkv[place][0, head] @ qkv[past][1, head] for past in range(place + 1)])
                shares = (scores / math.sqrt(len(qkv[0][0, 0]))).softmax(0)
                heads.append(sum(share * qkv[past][2, head] for past, share in enumerate(shares)))
            middle = vector + linear(f"{name}.attn.out", torch.cat(heads))
            wide = functional.gelu(linear(f"{name}.mlp.0", norm(f"{name}.ln_2", middle)))
            hidden[place] = middle + linear(f"{name}.mlp.2", wide)
    return torch.stack([norm("ln_f", vector) for vector in hidden])


def test_it_computes_what_attention_is_defined_as() -> None:
    model = small()
    tokens = torch.randint(0, 7, (11, 3))
    with torch.inference_mode():
        classes, logits = model(tokens, classify=True)
        for row in range(3):
            hidden = naive(model, tokens[:, row].tolist())
            torch.testing.assert_close(logits[:, row], hidden @ model.head.weight.T, rtol=1e-4, atol=1e-4)
            expected = model.clf_head.weight @ hidden.mean(0) + model.clf_head.bias
            torch.testing.assert_close(classes[row], expected, rtol=1e-4, atol=1e-4)


def test_no_pixel_is_guessed_from_itself_or_later_ones() -> None:
    model = small()
    tokens = torch.randint(0, 7, (20, 2))
    with torch.inference_mode():
        before = model(tokens)
        for place in range(20):
            other = tokens.clone()
            other[place] = (other[place] + 1) % 7
            differs = (model(other) != before).any(dim=2)
            assert not differs[: place + 1].any()
            assert differs[place + 1 :].all()


def test_the_first_guess_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    model = GPT2(num_positions=64)
    tokens = torch.randint(0, 16, (64, 8))
    classes, logits = model(tokens, classify=True)
    assert functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).item() == pytest.approx(
        math.log(16), abs=0.05
    )
    assert classes.std().item() < 0.2


def test_pixel_by_pixel_is_the_same_as_at_once() -> None:
    model = small()
    tokens = torch.randint(0, 7, (20, 2))
    with torch.inference_mode():
        cache = model.start(2)
        steps = [model.extend(tokens[place - 1] if place else None, cache) for place in range(20)]
        torch.testing.assert_close(torch.stack(steps), model(tokens), rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="no more positions"):
        model.extend(tokens[0], cache)
    with pytest.raises(ConfigError, match="give previous=None for the first pixel"):
        model.extend(tokens[0], model.start(2))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"embed_dim": 10}, "multiple of 3"), ({"num_layers": 0}, "num_layers=0"), ({"num_vocab": -1}, "num_vocab=-1")],
)
def test_sizes_that_cannot_work_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**sizes)


def test_too_many_pixels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[21, 1\] and has 20 positions\. Sequences come first.*num_positions=21"):
        small()(torch.zeros(21, 1, dtype=torch.int64))


class Plain(torch.nn.Module):
    """The same model without a cache."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.model(tokens)
        assert isinstance(logits, torch.Tensor)
        return logits


def test_drawing_depends_on_the_seed_alone_and_leaves_no_trace() -> None:
    model = small().train()
    known = torch.randint(0, 7, (8, 3))
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = draw_pixels(model, known, 20, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert model.training
    assert first.shape == (20, 3)
    assert torch.equal(first[:8], known)
    torch.manual_seed(9)
    assert torch.equal(draw_pixels(model, known, 20, seed=5), first)
    assert torch.equal(draw_pixels(Plain(model), known, 20, seed=5), first)
    assert not torch.equal(draw_pixels(model, known, 20, seed=6), first)
    assert torch.equal(draw_pixels(model, known, 8, seed=6), known)


def test_pixels_are_drawn_as_often_as_they_are_likely() -> None:
    class Weighted(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.5, 0.0, 0.25, 0.25]).log().expand(*tokens.shape, 4)

    drawn = draw_pixels(Weighted(), torch.zeros(0, 2000, dtype=torch.int64), 4, seed=1)
    shares = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
    # Four deviations of a binomial share of 8,000 draws are at most 4 * 0.5 / sqrt(8000) = 0.022.
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.0, 0.25, 0.25]), rtol=0, atol=0.022)
    cold = draw_pixels(Weighted(), torch.zeros(0, 9, dtype=torch.int64), 4, seed=1, temperature=1e-3)
    assert not cold.any()


def test_draws_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        draw_pixels(small(), torch.zeros(0, 1, dtype=torch.int64), 4, seed=0, temperature=0.0)
    with pytest.raises(ConfigError, match="8 pixels are known, of images with 4"):
        draw_pixels(small(), torch.zeros(8, 1, dtype=torch.int64), 4, seed=0)


def test_a_block_is_made_by_name_and_reads_sequences_first() -> None:
    torch.manual_seed(0)
    block = Block(embed_dim=12, num_heads=3)
    hidden = torch.randn(5, 2, 12)
    with torch.inference_mode():
        whole = block(hidden)
        assert whole.shape == (5, 2, 12)
        torch.testing.assert_close(block(hidden[:3]), whole[:3])  # the pixels after it change nothing
        torch.testing.assert_close(block(hidden[:, :1]), whole[:, :1])  # nor does the other image
    assert not torch.allclose(block(hidden[2:]), whole[2:])
    with pytest.raises(ConfigError, match=r"Block was given embed_dim=12 and num_heads=5\. The heads share the width"):
        Block(embed_dim=12, num_heads=5)
