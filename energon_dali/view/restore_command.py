"""Shell commands that make one sample again, to be copied."""

from __future__ import annotations

import json
import shlex


def literal(text: str) -> str:
    """Returns a Python literal in double quotes, which need no escape within the single quotes of a shell."""
    return json.dumps(text, ensure_ascii=False)


def python_command(*statements: str) -> str:
    """Returns a shell command that runs statements and leaves Python open."""
    return f"python -i -c {shlex.quote('; '.join(statements))}"
