"""Renders conversations with a tokenizer's chat template, and finds the characters that the assistant says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from energon_dali.errors import ConfigError, DatasetError
from energon_dali.task_encoder.chat_messages import Message

TrainOn: TypeAlias = Literal["all", "last"]
Span: TypeAlias = tuple[int, int]
"""Characters [start, stop) of a text."""

_RESERVED = frozenset({"conversations", "messages", "chat_template", "return_assistant_tokens_mask"})
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template of transformers, which renders it."""

    source: str
    """The template."""
    special_tokens: Mapping[str, Any]
    """Variables of all renderings, such as bos_token."""
    end_tokens: tuple[str, ...]
    """Special tokens: white space that follows one at the end of a turn is not said by the assistant."""

    @property
    def has_markers(self) -> bool:
        """Whether `{% generation %}` marks what the assistant says."""
        return _MARKER.search(self.source) is not None

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any], **more: Any) -> tuple[str, list[Span]]:
        """Returns the text of messages, and the characters that the template marks.

        Args:
            messages: The conversation.
            variables: Of the template, such as `tools`.
            **more: Further ones.

        Raises:
            ConfigError: transformers is too old, the template is not valid Jinja, or a variable has a reserved name.
            DatasetError: The template refuses the conversation.
        """
        render_template = _renderer()
        reserved = _RESERVED.intersection(variables)
        if reserved:
            raise ConfigError(
                f"{', '.join(sorted(reserved))} cannot be a variable of a chat template. Rename it there."
            )
        given = {**self.special_tokens, **variables, **more}
        from jinja2 import TemplateError, TemplateSyntaxError

        try:
            texts, spans = render_template(
                conversations=[list(messages)],
                chat_template=self.source,
                return_assistant_tokens_mask=self.has_markers,
                **given,
            )
        except TemplateSyntaxError as error:
            raise ConfigError(f"The chat template is not valid Jinja: {error}, in line {error.lineno}.") from error
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise DatasetError(f"The chat template refuses a conversation: {error}") from error
        return texts[0], list(spans[0]) if spans else []

    def spans(
        self, messages: Sequence[Message], variables: Mapping[str, Any], train_on: TrainOn
    ) -> tuple[str, list[Span]]:
        """Returns the text of a conversation, and the characters of the assistant's turns.

        Args:
            messages: The conversation.
            variables: Of the template.
            train_on: "all" turns of the assistant, or the "last" one.

        Raises:
            ConfigError: The template has no markers, and writes a turn differently when others follow it.
            DatasetError: The template refuses the conversation, or has no markers and the assistant begins.
        """
        text, marked = self.render(messages, variables)
        turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if train_on == "last":
            turns = turns[-1:]
        if not self.has_markers:
            return text, [self._turn(messages, number, text, variables) for number in turns]
        if train_on == "last" and turns:
            start = len(self._prefix(messages[: turns[0]], text, variables)) if turns[0] else 0
            marked = [(max(first, start), stop) for first, stop in marked if stop > start]
        return text, marked

    def _turn(self, messages: Sequence[Message], number: int, text: str, variables: Mapping[str, Any]) -> Span:
        """Returns the characters of a message: after the prompt for it, up to where the next message starts."""
        start = len(self._prompt(messages, number, text, variables))
        is_all = number + 1 == len(messages) and not variables.get("add_generation_prompt")
        said = text if is_all else self._prefix(messages[: number + 1], text, variables)
        stripped = said.rstrip()
        if stripped.endswith(self.end_tokens) and len(stripped) > start:
            return start, len(stripped)
        return start, len(said)

    def _prompt(self, messages: Sequence[Message], number: int, text: str, variables: Mapping[str, Any]) -> str:
        """Returns the text before what the assistant says in a message."""
        try:
            prompt, _ = self.render(messages[:number], _prefix_variables(variables, prompt=True))
            return self._checked(prompt if text.startswith(prompt) else prompt.rstrip(), text)
        except (ConfigError, DatasetError) as error:
            if number:
                raise
            raise DatasetError(
                "A conversation begins with a turn of the assistant, and its chat template writes something else "
                "without any message. So what the assistant says cannot be found. Put a message before it, or give "
                "chat_template a version of the template with {% generation %} and {% endgeneration %}."
            ) from error

    def _prefix(self, messages: Sequence[Message], text: str, variables: Mapping[str, Any]) -> str:
        said, _ = self.render(messages, _prefix_variables(variables, prompt=False))
        return self._checked(said, text)

    def _checked(self, prefix: str, text: str) -> str:
        if text.startswith(prefix):
            return prefix
        same = next(place for place, pair in enumerate(zip(prefix, [*text, ""], strict=False)) if pair[0] != pair[1])
        raise ConfigError(
            "The chat template writes the first messages of a conversation differently when others follow: "
            f"after {text[max(0, same - 40) : same]!r}, {prefix[same:][:40]!r} becomes {text[same:][:40]!r}. What the "
            "assistant says cannot be found in such a text. Give chat_template a version of the template with "
            '{% generation %} and {% endgeneration %} around it, or train_on="last" if only the last turn matters.'
        )


def _prefix_variables(variables: Mapping[str, Any], *, prompt: bool) -> dict[str, Any]:
    """Returns the variables for rendering the first messages of a conversation, whole."""
    return {**variables, "add_generation_prompt": prompt, "continue_final_message": False}


def choose_template(processor: Any, tokenizer: Any, chat_template: str | None) -> ChatTemplate:
    """Returns the template of a processor or tokenizer.

    Args:
        processor: May have a template of its own; otherwise the tokenizer's is taken.
        tokenizer: Has the special tokens.
        chat_template: A template, or the name of one of several; None is the default.

    Raises:
        ConfigError: There is none, or none of this name.
    """
    if chat_template is not None and not isinstance(chat_template, str):
        raise ConfigError(f"chat_template={chat_template!r} is invalid. Give a Jinja template, a name of one, or None.")
    source = next((found for one in (processor, tokenizer) if (found := getattr(one, "chat_template", None))), None)
    if isinstance(source, Mapping):
        source = source.get(chat_template or "default", chat_template)
    else:
        source = chat_template or source
    if not source:
        raise ConfigError(
            f"{type(processor).__name__} has no chat template (or several, of which none is the default). Give "
            "chat_template=..., the Jinja template of the model, or the name of one of several."
        )
    if chat_template == source and "{" not in source:
        raise ConfigError(
            f"chat_template={source!r} is neither a Jinja template nor the name of one of the templates of "
            f"{type(processor).__name__}. {_describe_names(processor, tokenizer)}"
        )
    named = tokenizer.special_tokens_map
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return ChatTemplate(source, named, tuple(special))


def _describe_names(*owners: Any) -> str:
    names = [name for owner in owners if isinstance(owner.chat_template, Mapping) for name in owner.chat_template]
    return f"Their names are {', '.join(dict.fromkeys(names))}." if names else "They have no names: leave it out."


def _renderer() -> Callable[..., Any]:
    try:
        from transformers.utils.chat_template_utils import render_jinja_template
    except ImportError as error:
        raise ConfigError(
            "Chat templates are rendered by transformers, of which a version from 4.53 on is needed, with jinja2. "
            "Install them: pip install -U transformers jinja2"
        ) from error
    return render_jinja_template
