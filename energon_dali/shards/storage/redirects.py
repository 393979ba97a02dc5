"""Redirects of object stores: a request with credentials goes to no other host.

obstore follows redirects, and has no option against it. To another host it still sends headers such as
x-amz-security-token, and the address of the first request, which may contain a signature. So all hosts but those of the
store get a proxy that cannot be reached, and a redirect to them fails before anything is sent.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

_NOWHERE = "127.0.0.1:0"
"""No program can listen on port 0, and connecting to it fails at once."""


def stay_on(client: dict[str, Any], urls: Iterable[str]) -> dict[str, Any]:
    """Returns options of obstore's client with which it does not follow redirects to other hosts.

    Ports and schemes of one host are treated alike, except that obstore never goes from https to http. If a proxy of
    the environment is used, redirects stay with it, because obstore has only one proxy.

    Args:
        client: The other options.
        urls: What the client may connect to: the store, and the servers of its credentials.
    """
    parts = [urlsplit(url) for url in urls]
    if any(_has_proxy(part.scheme, part.netloc.rpartition("@")[2]) for part in parts):
        return client
    hosts = dict.fromkeys(part.hostname for part in parts if part.hostname)
    return {**client, "proxy_url": f"http://{_NOWHERE}", "proxy_excludes": ",".join(hosts)}


def was_redirected(text: str) -> bool:
    """Returns whether an error of obstore is about a redirect that `stay_on` stopped.

    Args:
        text: Its message with the dump of structures.
    """
    return f" {_NOWHERE}," in text


def _has_proxy(scheme: str, netloc: str) -> bool:
    proxies = urllib.request.getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not urllib.request.proxy_bypass(netloc)
