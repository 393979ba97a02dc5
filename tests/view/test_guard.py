"""Nobody but the user's own page gets an answer, and what a dataset holds is shown and never run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from energon_dali.view.content import content_type, file_name
from energon_dali.view.guard import DATA_POLICY, PAGE_POLICY
from energon_dali.view.viewed_sample import ViewedPart, ViewedSample
from tests.view.hostile import KEYS, PARTS, write_hostile
from tests.view.page_server import TOKEN, PageServer, serving

SCRIPTS = {"/static/theme.js", "/static/view.js", "/static/media.js", "/static/facets.js", "/static/choose.js"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    folder = tmp_path_factory.mktemp("hostile")
    with serving(write_hostile(folder / "da<ta>"), folder / "scans") as running:
        yield running


def test_only_the_token_opens_the_page(server: PageServer) -> None:
    assert server.ask("/data/0", cookie=False).status == 403
    assert server.ask("/data/0", headers={"Cookie": "energon_dali_view=1"}, cookie=False).status == 403
    assert server.ask("/data/0?token=wrong", cookie=False).status == 403
    assert server.ask("/data/0?token=%F0%9F%8E%A7", cookie=False).status == 403
    assert server.ask("/static/view.js", cookie=False).status == 403
    welcome = server.ask(f"/data/0?page=2&token={TOKEN}", cookie=False)
    assert welcome.status == 200
    cookie = welcome.headers["set-cookie"]
    assert cookie.startswith(f"{server.cookie};")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert 'content="0;url=/data/0?page=2"' in welcome.text  # the token leaves the address bar
    assert TOKEN not in welcome.text


def test_the_way_after_the_token_stays_on_this_site(server: PageServer) -> None:
    for path in ("//evil.example/x", "/\\evil.example", "/%22%3E%3Cscript%3E", "//evil.example/%2e%2e"):
        page = server.ask(f"{path}?token={TOKEN}", cookie=False)
        target = re.search(r'url=([^"]*)"', page.text)
        assert page.status == 200
        assert target is not None
        assert re.match(r"/[^/\\]", target[1])
        assert "<script" not in page.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "", "192.168.0.1"]
)
def test_a_foreign_name_of_this_machine_is_refused(server: PageServer, host: str) -> None:
    assert server.ask("/data/0", headers={"Host": host}).status in (400, 421)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:8080", "[::1]:9000", "LOCALHOST"])
def test_loopback_names_reach_the_page_also_through_a_tunnel(server: PageServer, host: str) -> None:
    assert server.ask("/data/0", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_requests_of_other_sites_are_refused(server: PageServer, headers: dict[str, str]) -> None:
    for path in ("/data/0", "/data/0/sample/0/part/0", "/scan", "/static/view.js"):
        assert server.ask(path, headers=headers).status == 403
    assert server.ask("/scan/start", "POST", headers).status == 403


def test_a_link_with_the_token_may_be_followed_from_anywhere(server: PageServer) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert server.ask(f"/?token={TOKEN}", headers=headers, cookie=False).status == 200
    framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert server.ask(f"/?token={TOKEN}", headers=framed, cookie=False).status == 403


def test_what_changes_something_needs_the_pages_own_origin(server: PageServer) -> None:
    assert server.ask("/scan/start", "POST").status == 403
    assert server.ask("/scan/start", "GET").status == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert server.ask("/data/0", method, {"Origin": server.url}).status == 405
    answer = server.own_post("/scan/cancel?back=/data/0")
    assert (answer.status, answer.headers["location"]) == (303, "/data/0")
    for back in (
        "//evil.example",
        "https://evil.example",
        "/%5Cevil.example",
        "/x%0d%0aSet-Cookie:a=b",
        "javascript:1",
    ):
        assert server.own_post(f"/scan/cancel?back={back}").headers["location"] == "/"


def pages(server: PageServer) -> list[str]:
    samples = [f"/data/0/sample/{number}" for number in range(len(KEYS))]
    query = "?key=%3Cscript%3E&text=%22%3E%3Cscript%3E&shard=%27%22%3E&min_width=%3Cb%3E&split=%3Cu%3E"
    plain = ["/", "/data/0", "/data/0/statistics", "/data/0/failures", "/data/0/sample/99", "/no<where>"]
    chosen = [f"/compare?a=0.{number}&b=0.0" for number in range(len(KEYS))]
    odd = ["/data/0?sort=%3Cb%3E&tag=%22%3E%3Cscript%3E&chosen=1", "/data/0?sort=-key", "/compare?a=%3Cb%3E", "/run"]
    return [*plain, f"/data/0{query}", *samples, f"/data/0/sample/0{query}", *chosen, *odd]


class _Elements(HTMLParser):
    """Collects what a browser would see as elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_nothing_of_the_data_becomes_an_element_or_a_script(server: PageServer) -> None:
    for path in pages(server):
        answer = server.ask(path.replace("<", "%3C").replace(">", "%3E"))
        if answer.status in (303, 307):
            continue
        assert answer.headers["content-security-policy"] == PAGE_POLICY, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        elements = _Elements()
        elements.feed(answer.text)
        names = {name for name, _ in elements.found}
        assert not names & {"i", "u", "b", "iframe", "object", "embed", "base", "textarea"}, path
        for name, attributes in elements.found:
            wrong = [key for key in attributes if key.startswith("on") or key == "style"]
            assert not wrong, (path, name, wrong)
            if name == "script":
                assert attributes["src"] in SCRIPTS, path
            for key in ("href", "src", "action", "formaction"):
                assert key not in attributes or re.match(r"/(?!/)|#main$", str(attributes[key])), (path, attributes)


def test_hostile_contents_are_shown_as_text(server: PageServer) -> None:
    page = server.ask("/data/0/sample/3").text
    assert "{{ 7 * 7 }}{% raw %}" in page
    assert "&lt;/textarea&gt;{{ 7 * 7 }}" in page
    assert "&lt;script&gt;document.title=&#39;run&#39;&lt;/script&gt;" in page
    assert "&lt;svg xmlns=&#34;http://www.w3.org/2000/svg&#34;" in page


def test_parts_are_sent_as_what_no_browser_runs(server: PageServer) -> None:
    for number, (name, content) in enumerate(PARTS.items()):
        answer = server.ask(f"/data/0/sample/0/part/{number}")
        assert answer.content == content
        assert answer.headers["content-security-policy"] == DATA_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in ("text/plain", "application/octet-stream", "video/mp4"), name
        if kind != "video/mp4":
            assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        for way in ("thumbnail", "image", "strip", "waveform"):
            picture = server.ask(f"/data/0/sample/0/part/{number}/{way}")
            assert (picture.status, b"run" in picture.content) == (422, False), (name, way)
            assert picture.headers["content-security-policy"] == DATA_POLICY


def test_no_name_of_a_part_chooses_a_type_that_runs() -> None:
    for suffix in (
        "html",
        "htm",
        "svg",
        "xhtml",
        "xml",
        "js",
        "mjs",
        "css",
        "pdf",
        "swf",
        "jpg",
        "mht",
        "wasm",
        "HTML",
    ):
        kind = content_type(ViewedPart(0, f"a.{suffix}", 0, 1))
        assert kind.partition(";")[0] in ("text/plain", "application/octet-stream"), suffix


@pytest.mark.parametrize(
    ("key", "name"),
    [("../../etc/passwd", "txt"), ("a\r\nSet-Cookie: b=c", "txt"), ('a"; filename="b', "x"), ("", ""), ("ä/ö", "ü")],
)
def test_names_of_downloads_are_plain(key: str, name: str) -> None:
    sample = ViewedSample(0, key, "s.tar", 0, 0, ())
    assert re.fullmatch(r"[\w%~-][\w.%~-]*", file_name(sample, ViewedPart(0, name, 0, 1)))


@pytest.mark.parametrize(
    "path",
    [
        "/static/../site.py",
        "/static/..%2fsite.py",
        "/static/%2e%2e/site.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/data/0/sample/0/part/..%2f..%2fetc%2fpasswd",
        "/data/0/sample/../../../etc/passwd",
        "/data/0/sample/-1",
        "/data/0/sample/99999999999999999999999",
        "/data/1",
        "/data/-1",
        "/data/0/sample/0/part/99",
        "/..%2f..%2fetc%2fpasswd",
    ],
)
def test_addresses_lead_nowhere_else(server: PageServer, path: str) -> None:
    answer = server.ask(path)
    assert answer.status == 404
    assert "root:" not in answer.text
    assert "import" not in answer.text
