"""The process that runs the user's task encoder: `python -m energon_dali.view.encoder_process`.

It answers lines of JSON on standard input with lines of JSON, and ends when its input is closed. In a process of its
own, an encoder can neither block nor end the server of the page, whatever it does.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from energon_dali.errors import EnergonDaliError
from energon_dali.view import line_process
from energon_dali.view.encoder_session import EncodedView, EncoderOptions, EncoderSession


def answer(session: EncoderSession, request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request, as plain values.

    Args:
        session: The encoder and the dataset.
        request: {"what": "batch"}, or {"what": "sample", "path": ..., "index": ..., "split_part": ...}.
    """
    try:
        if request["what"] == "batch":
            return session.batch().as_dict()
        return session.sample(request["path"], request["index"], request["split_part"]).as_dict()
    except (EnergonDaliError, OSError) as error:
        return EncodedView(error=f"{type(error).__name__}: {error}").as_dict()


def answer_lines(lines: Iterable[str], write: Callable[[str], object]) -> None:
    """Answers requests; an encoder that cannot be made is tried again with each of them.

    Args:
        lines: The options, and then requests, each a line of JSON.
        write: Takes each answer, a line of JSON.
    """
    session: EncoderSession | None = None
    options: EncoderOptions | None = None
    for line in lines:
        request = json.loads(line)
        if options is None:
            options = EncoderOptions(**request)
            continue
        try:
            session = session or EncoderSession(options)
            found = answer(session, request)
        except EnergonDaliError as error:
            cause = error.__cause__
            trace = "" if cause is None else "".join(traceback.format_exception(cause))
            found = EncodedView(error=str(error), trace=trace).as_dict()
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            trace = "".join(traceback.format_exception(error))
            found = EncodedView(error=f"{type(error).__name__}: {error}", trace=trace).as_dict()
        write(json.dumps(found) + "\n")


if __name__ == "__main__":
    line_process.answer_lines(answer_lines)
