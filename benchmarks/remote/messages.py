"""Requests and responses of the S3 server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote_to_bytes
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request."""

    method: str
    path: str
    """Path without the query, decoded."""
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    """Names are in lower case."""
    body: bytes

    @property
    def access_key(self) -> str:
        """The access key that signed it; empty if it is not signed."""
        for name in ("X-Amz-Credential", "AWSAccessKeyId"):  # presigned URLs, of signature versions 4 and 2
            if name in self.query:
                return self.query[name].split("/")[0]
        _, _, rest = self.headers.get(b"authorization", b"").decode("latin-1").partition("Credential=")
        return rest.split("/")[0]


class OpenFile:
    """A file that is open for as long as somebody refers to it, so that a response in flight keeps its bytes.

    Args:
        path: Its path.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of an open file."""

    file: OpenFile
    offset: int
    size: int


@dataclass(slots=True)
class Response:
    """An HTTP response."""

    kind: str
    """What the counters call the request."""
    status: int = 200
    headers: bytes = b""
    """Lines, each with its end."""
    body: bytes | FileRange = b""
    length: int | None = None
    """Content-Length, if it is not that of the body: a response to HEAD."""
    suffix: str = field(default="")
    """Suffix of the object whose bytes are sent."""

    def head(self) -> bytes:
        """Returns status line and headers."""
        length = self.length
        if length is None:
            length = self.body.size if isinstance(self.body, FileRange) else len(self.body)
        return b"%b%bContent-Length: %d\r\n\r\n" % (STATUS_LINES[self.status], self.headers, length)


class RequestError(Exception):
    """A request that is answered with an error of S3.

    Args:
        status: Of HTTP.
        code: Of S3, such as "NoSuchKey".
        message: For the reader.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def response(self, kind: str, *, has_body: bool = True) -> Response:
        """Returns the error as XML; without a body, as HEAD wants it, only its status."""
        text = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{self.code}</Code><Message>{escape(str(self))}'
            f"</Message><RequestId>0</RequestId></Error>"
        ).encode()
        return Response(kind, self.status, b"Content-Type: application/xml\r\n", text if has_body else b"")


STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in HTTPStatus
    if status.value >= 200
}


def parse_head(head: bytes) -> tuple[str, bytes, dict[bytes, bytes]]:
    """Returns method, target and headers of a request without its body.

    Raises:
        RequestError: It is not a request.
    """
    first, *lines = head.split(b"\r\n")
    try:
        method, target, _ = first.split(b" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return method.decode("ascii"), target, headers
    except ValueError as error:
        raise RequestError(400, "BadRequest", "This is not a request of HTTP/1.1.") from error


def parse_target(target: bytes) -> tuple[str, dict[str, str]]:
    """Returns path and query of a request's target, decoded."""
    path, _, query = target.partition(b"?")
    if b"%" in path:
        path = unquote_to_bytes(path)
    pairs = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {}
    return path.decode("utf-8", "surrogateescape"), pairs


def decode_chunks(body: bytes | bytearray, position: int = 0) -> tuple[bytes, int] | None:
    """Returns the content of a body in chunks (HTTP's, or those of S3 with signatures and a trailer), and its end.

    Args:
        body: The body, or what has arrived of it.
        position: Where it begins.

    Returns:
        None if the end has not arrived.

    Raises:
        RequestError: A chunk is malformed.
    """
    parts: list[bytes] = []
    while (end := body.find(b"\r\n", position)) >= 0:
        try:
            size = int(body[position:end].split(b";")[0], 16)
        except ValueError as error:
            raise RequestError(400, "InvalidRequest", "The body is not made of chunks.") from error
        position = end + 2
        if size == 0:  # a trailer may follow, and then an empty line
            stop = position if body[position : position + 2] == b"\r\n" else body.find(b"\r\n\r\n", position) + 2
            return (b"".join(parts), stop + 2) if stop >= position else None
        parts.append(bytes(body[position : position + size]))
        position += size + 2
    return None
