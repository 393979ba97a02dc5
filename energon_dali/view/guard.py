"""Who may ask for a page: the browser that was given the token, for this page alone."""

from __future__ import annotations

import hashlib
import html
import secrets
from collections.abc import MutableMapping
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
"""Names by which a browser may ask for the page; the port may be that of a tunnel."""

PAGE_POLICY = (
    "default-src 'none'; img-src 'self'; media-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What a page may load and run: its own files, and nothing that is written into it."""
DATA_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
"""What data of a sample may load and run when it is opened on its own: nothing."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": with it, a form of this very page has the origin "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "content-security-policy": PAGE_POLICY,
    "cache-control": "no-store",
}
"""Headers of every answer that has no such header of its own."""
_TOKEN = "token"
_LONGEST_PATH = 2000
"""Letters of a path; no address of the page has as many, and Python refuses to read numbers of more than 4,300."""


class Guard:
    """An ASGI application in front of another: refuses what does not come from the user's own page.

    A request needs the token, as a cookie or, the first time, in the URL. The token in the URL is answered with the
    cookie and a page that leads to the same address without the token. A `Host` that is not loopback is refused, so
    that a name of a foreign site that resolves to this machine reaches nothing; so is a request that another site
    makes. Methods other than GET and HEAD need the page's own `Origin`.

    Args:
        application: The application.
        token: The secret.
    """

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application = application
        self._token = token.encode()
        # Cookies do not tell ports apart: two pages of one user have different names.
        self.cookie = f"energon_dali_view_{hashlib.sha256(self._token).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"A {scope['type']} connection was opened, and only HTTP is served.")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == _TOKEN]
        has_token = any(self._is_token(value) for value in given)
        refusal = self._refusal(scope, headers, has_token)
        if refusal:
            message = "This request was refused: it does not come from the page itself."
            await PlainTextResponse(message, refusal)(scope, receive, _with_headers(send))
        elif has_token and scope["method"] in ("GET", "HEAD"):
            rest = urlencode([(name, value) for name, value in query if name != _TOKEN])
            # Never an absolute address: a path that begins with two slashes would lead to another host.
            path = "/" + quote(scope["path"].lstrip("/\\"), safe="/")
            page = self._welcome(path + (f"?{rest}" if rest else ""))
            await page(scope, receive, _with_headers(send))
        elif not self._is_token(cookie_parser(headers.get(b"cookie", "")).get(self.cookie, "")):
            message = "Open the address that the command printed: it has the token that this page needs."
            await PlainTextResponse(message, HTTPStatus.FORBIDDEN)(scope, receive, _with_headers(send))
        else:
            await self._application(scope, receive, _with_headers(send))

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    @staticmethod
    def _refusal(scope: Scope, headers: MutableMapping[bytes, str], has_token: bool) -> HTTPStatus | None:
        """Returns the status with which a request is refused; None if it may go on."""
        method, host = scope["method"], headers.get(b"host", "")
        if method not in ("GET", "HEAD", "POST"):
            return HTTPStatus.METHOD_NOT_ALLOWED
        if len(scope["path"]) > _LONGEST_PATH:
            return HTTPStatus.REQUEST_URI_TOO_LONG
        if _name_of(host) not in LOOPBACK_NAMES:
            return HTTPStatus.MISDIRECTED_REQUEST
        origin = headers.get(b"origin")
        is_own = origin in (f"http://{host}", f"https://{host}")
        if (origin is not None and not is_own) or (method == "POST" and not is_own):
            return HTTPStatus.FORBIDDEN
        # A link with the token may be followed from a terminal or a notebook in the browser.
        is_followed = has_token and headers.get(b"sec-fetch-mode") == "navigate"
        if headers.get(b"sec-fetch-site", "none") not in ("same-origin", "none") and not is_followed:
            return HTTPStatus.FORBIDDEN
        return None

    def _welcome(self, target: str) -> HTMLResponse:
        """Sets the cookie. A redirection would not do: after a link of another site, it goes without the cookie."""
        cookie = f"{self.cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict"
        address = html.escape(target)
        page = (
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={address}">'
            f'<title>energon-dali view</title><link rel="icon" href="/static/icon.svg"><a href="{address}">Continue</a>'
        )
        return HTMLResponse(page, headers={"set-cookie": cookie})


def new_token() -> str:
    """Returns a secret that nobody guesses."""
    return secrets.token_urlsafe(24)


def _name_of(host: str) -> str:
    """Returns the name in a `Host` header, in lower case and without the port; "" if it cannot be understood."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower() if host and "@" not in host else ""
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
