"""The pages in Chromium: what is shown, played, pressed and refused. Run by `make test-browser`."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.ui import WebDriverWait

from tests.av.corpus import video_file
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards
from tests.view.chromium import chromium, prefer_theme, requested_urls
from tests.view.hostile import KEYS, write_hostile
from tests.view.page_server import TOKEN, PageServer, serving

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
COUNT = 120


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 samples; 3 is cut off, 4 is a video."""
    samples = {f"k{number:04d}": captioning_sample(number) for number in range(COUNT)}
    samples["k0003"]["webp"] = samples["k0003"]["webp"][:150]
    samples["k0004"] = {"mp4": video_file("h264-b-mp4"), "txt": b"a film"}
    return prepare(
        write_shards(tmp_path_factory.mktemp("browser") / "data", samples),
        {"image": "jpg,png,webp,mp4", "caption": "txt"},
    )


@pytest.fixture(scope="module")
def server(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with serving(dataset, tmp_path_factory.mktemp("scans")) as running:
        yield running


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def refusals() -> None:
    """For a test in which the browser has to report that it was refused."""


@pytest.fixture(autouse=True)
def _no_errors(window: webdriver.Chrome, request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is logged as an error: no script fails, and the policy of the page refuses nothing of its own."""
    window.get_log("browser")
    requested_urls(window)
    yield
    errors = [entry["message"] for entry in window.get_log("browser") if entry["level"] == "SEVERE"]
    pictures = ("/thumbnail", "/image", "/strip")  # status 422 for what cannot be decoded
    found = [message for message in errors if not any(way in message for way in pictures)]
    assert bool(found) == ("refusals" in request.fixturenames), found


def wait(window: webdriver.Chrome, condition: Callable[[webdriver.Chrome], Any]) -> Any:
    # A page that refreshes itself replaces its elements.
    stale = [NoSuchElementException, StaleElementReferenceException]
    return WebDriverWait(window, 60, poll_frequency=0.05, ignored_exceptions=stale).until(condition)


def go(window: webdriver.Chrome, address: str) -> None:
    """Opens an address. The driver alone may return before the page is there, if the server takes its time."""
    window.get(address)
    is_there = "return document.URL == arguments[0] && document.readyState == 'complete'"
    wait(window, lambda w: w.execute_script(is_there, address))


def enter(window: webdriver.Chrome, server: PageServer, path: str = "/data/0") -> None:
    """Opens a page by the address that the command prints, and waits until the token has left it."""
    mark = "&" if "?" in path else "?"
    window.get(f"{server.url}{path}{mark}token={TOKEN}")
    is_there = "return document.readyState == 'complete' && document.getElementById('main') != null"
    wait(window, lambda w: TOKEN not in w.current_url and w.execute_script(is_there))


def press(window: webdriver.Chrome, *keys: str) -> None:
    """Presses keys; what has the focus gets them."""
    for key in keys:
        ActionChains(window).send_keys(key).perform()


def is_complete(window: webdriver.Chrome) -> bool:
    """Returns whether the whole page is there; its address changes before."""
    return bool(window.execute_script("return document.readyState == 'complete'"))


def arrive(window: webdriver.Chrome, end: str) -> None:
    """Waits for an address with this path and query; the query of a sample does not matter."""

    def is_there(w: webdriver.Chrome) -> bool:
        path = w.current_url.partition("//")[2].partition("/")[2]
        is_path = end.lstrip("/") == (path.partition("?")[0] if "sample" in end else path)
        return is_path and is_complete(w)

    wait(window, is_there)


def all_of(window: webdriver.Chrome, selector: str) -> list[WebElement]:
    return window.find_elements(By.CSS_SELECTOR, selector)


def one(window: webdriver.Chrome, selector: str) -> WebElement:
    return window.find_element(By.CSS_SELECTOR, selector)


@pytest.mark.usefixtures("refusals")
def test_the_address_with_the_token_opens_the_page_and_no_other_does(
    window: webdriver.Chrome, server: PageServer
) -> None:
    window.delete_all_cookies()
    go(window, f"{server.url}/data/0")
    assert "Open the address that the command printed" in window.page_source
    enter(window, server, "/")
    arrive(window, "/data/0")
    assert len(all_of(window, ".card")) == 48
    go(window, f"{server.url}/data/0?page=2")
    assert one(window, "[name=page]").get_attribute("value") == "2"
    assert window.execute_script("return document.cookie") == ""  # no script reads it


def test_thumbnails_load_when_they_come_into_view(window: webdriver.Chrome, server: PageServer) -> None:
    window.execute_cdp_cmd("Network.clearBrowserCache", {})
    enter(window, server, "/data/0?size=96")
    wait(window, lambda w: w.execute_script("return [...document.images].slice(0, 3).every(i => i.naturalWidth > 0)"))
    asked = {url for url in requested_urls(window) if "thumbnail" in url}
    assert 3 < len(asked) < 96
    window.execute_script("scrollTo(0, document.body.scrollHeight)")
    wait(window, lambda w: w.execute_script("return [...document.images].at(-1).naturalWidth > 0"))


def test_the_keyboard_reaches_everything(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    press(window, "n")
    arrive(window, "/data/0?page=2")
    press(window, "p")
    arrive(window, "/data/0")
    press(window, "j", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "sample/2?" in str(window.switch_to.active_element.get_attribute("href"))
    per_row = window.execute_script(
        "const c = [...document.querySelectorAll('.card')]; return c.filter(e => e.offsetTop == c[0].offsetTop).length"
    )
    press(window, Keys.ARROW_DOWN)
    assert f"sample/{2 + per_row}?" in str(window.switch_to.active_element.get_attribute("href"))
    press(window, Keys.ARROW_UP, Keys.ENTER)
    arrive(window, "/data/0/sample/2")
    press(window, "j")
    arrive(window, "/data/0/sample/3")
    press(window, Keys.ARROW_LEFT)
    arrive(window, "/data/0/sample/2")
    press(window, "u")
    arrive(window, "/data/0")
    press(window, "/")
    assert window.switch_to.active_element.get_attribute("name") == "text"
    press(window, "njt?", Keys.ESCAPE)  # letters in a field are no commands
    assert one(window, "[name=text]").get_attribute("value") in ("njt?", "")
    press(window, "?")
    wait(window, lambda w: one(w, "#shortcuts").is_displayed())
    press(window, Keys.ESCAPE)
    wait(window, lambda w: not one(w, "#shortcuts").is_displayed())
    press(window, "g")
    press(window, "k0100", Keys.ENTER)
    arrive(window, "/data/0/sample/100")
    press(window, Keys.TAB)
    assert window.switch_to.active_element.text == "Skip to the content"


def test_light_and_dark_follow_the_system_and_the_choice(window: webdriver.Chrome, server: PageServer) -> None:
    def brightness() -> float:
        colour = window.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour[4:-1].split(","))) / 3

    enter(window, server)
    window.execute_script("localStorage.clear()")
    for theme, is_light in (("light", True), ("dark", False)):
        prefer_theme(window, theme)
        assert (brightness() > 128) == is_light
    press(window, "t")
    assert brightness() > 128
    window.refresh()
    assert brightness() > 128
    one(window, "#theme").click()
    assert brightness() < 128
    window.execute_script("localStorage.clear()")
    prefer_theme(window, "light")


def test_conditions_leave_a_short_address(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    one(window, "[name=key]#goto")
    one(window, "#filters [name=key]").send_keys("k001")
    one(window, "#filters .buttons button").click()
    wait(window, lambda w: "key=k001" in w.current_url and is_complete(w))
    assert window.current_url.partition("?")[2] in ("key=k001", "key=k001&size=48")
    assert len(all_of(window, ".card")) == 10
    assert one(window, ".chip").text == "key: k001"


def test_videos_play_and_seek(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0/sample/4")
    video = "document.querySelector('video')"
    wait(window, lambda w: w.execute_script(f"return {video}.readyState > 0"))
    duration = window.execute_script(f"return {video}.duration")
    assert duration > 0
    window.execute_script(f"{video}.muted = true; {video}.currentTime = {duration / 2}; {video}.play()")
    wait(window, lambda w: w.execute_script(f"return {video}.currentTime > {duration / 2}"))
    assert window.execute_script(f"return {video}.error") is None
    wait(window, lambda w: w.execute_script("return document.querySelector('.strip').naturalWidth > 0"))
    wait(window, lambda w: w.execute_script("return document.body.dataset.facts == 'shown'"))
    assert "h264" in one(window, ".part h2").text


def test_the_command_is_copied(window: webdriver.Chrome, server: PageServer) -> None:
    grant = {"origin": server.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    window.execute_cdp_cmd("Browser.grantPermissions", grant)
    enter(window, server, "/data/0/sample/7")
    press(window, "c")
    wait(window, lambda w: one(w, "#copy").text == "Copied")
    copied = window.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == one(window, "#command").text
    assert 'restore_sample(("Webdataset", 7, 0))' in copied


def test_a_scan_finds_failures_and_draws_statistics(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?fails=1")
    assert "among the 0.0 % that were scanned" in one(window, ".summary").text
    one(window, "#scan-start").click()
    arrive(window, "/data/0?fails=1")
    wait(window, lambda w: one(w, "#scan-text").text == "scanned")
    go(window, f"{server.url}/data/0?fails=1")
    assert [card.text for card in all_of(window, ".card .key")] == ["k0003"]
    one(window, ".card").click()
    wait(window, lambda w: one(w, "#failure").is_displayed())
    assert "A loader skips this sample" in one(window, "#failure").text
    go(window, f"{server.url}/data/0/statistics")
    assert len(all_of(window, "svg.chart .bar")) > 20, one(window, "main").text
    go(window, f"{server.url}/data/0/failures")
    assert one(window, "table a").text == "k0003"


def test_nothing_but_the_page_itself_is_requested(window: webdriver.Chrome, server: PageServer) -> None:
    for path in ("/data/0", "/data/0/sample/0", "/data/0/sample/4", "/data/0/statistics", "/data/0/failures"):
        enter(window, server, path)
    asked = requested_urls(window)
    assert len(asked) > 20
    own = (f"{server.url}/", "data:image/svg+xml")  # the second are the icons of the browser's own player
    assert [url for url in asked if not url.startswith(own)] == []


@pytest.mark.usefixtures("refusals")
def test_hostile_data_is_shown_and_not_run(window: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(write_hostile(tmp_path / "hostile"), tmp_path / "scans") as server:
        enter(window, server)
        server.site.scan.start()
        assert server.site.scan.wait(60)
        samples = [f"/data/0/sample/{number}" for number in range(len(KEYS))]
        for path in ("/data/0", "/data/0/statistics", "/data/0/failures", "/data/0?text=script", *samples):
            go(window, server.url + path)
            if "sample" in path:
                wait(window, lambda w: w.execute_script("return document.body.dataset.facts == 'shown'"))
            assert window.title != "run"
            assert all_of(window, "main :is(script, iframe, u, b, i)") == []
        shown = [pre.text for pre in all_of(window, "pre")]
        assert any("<script>document.title='run'</script>" in text for text in shown)
        for part in range(9):  # opened on their own, where the browser would run them
            go(window, "about:blank")
            window.get(f"{server.url}/data/0/sample/0/part/{part}")  # most are stored as files, and lead nowhere
            assert window.title != "run"
            assert all_of(window, "script") == []


def test_ctrl_c_ends_the_command_and_its_scan(window: webdriver.Chrome, dataset: Path, tmp_path: Path) -> None:
    script = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1)\n"
    script += "from energon_dali.cli.main import main; main()"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script, "view", str(dataset)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        window.get(process.stdout.readline().strip())
        wait(window, lambda w: one(w, "#scan-start").is_displayed())
        one(window, "#scan-start").click()
        children = psutil.Process(process.pid).children
        wait(window, lambda w: children())
        scanning = children()
        window.get("about:blank")  # a page that follows the scan would report that the server is gone
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)  # its threads say on standard error where they are
            time.sleep(1)
            process.kill()
            raise
        assert psutil.wait_procs(scanning, 10)[1] == []


ENCODER = """
import torch
from energon_dali import CenterCrop, DefaultTaskEncoder, Sample, SampleDecoder, edataclass, stateless

class Words:
    known = ["<pad>", "<b>bold</b>"]
    def encode(self, text):
        self.known += [word for word in text.split() if word not in self.known]
        return [1] + [self.known.index(word) for word in text.split()]
    def decode(self, ids):
        return " ".join(self.known[number] for number in ids)

@edataclass
class Encoded(Sample):
    image: torch.Tensor
    input_ids: torch.Tensor

@edataclass
class Pack(Sample):
    images: list
    input_ids: torch.Tensor
    cu_seqlens: torch.Tensor

class Packed(DefaultTaskEncoder):
    decoder = SampleDecoder(operations=(CenterCrop(40),))
    tokenizer = Words()

    @stateless
    def encode_sample(self, sample):
        return Encoded.derive_from(
            sample, image=sample.image, input_ids=torch.tensor(self.tokenizer.encode(sample.caption))
        )

    def select_samples_to_pack(self, samples):
        return [samples[first : first + 3] for first in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples):
        lengths = torch.tensor([0] + [len(sample.input_ids) for sample in samples])
        return Pack.derive_from(
            samples[0],
            images=[sample.image for sample in samples],
            input_ids=torch.cat([sample.input_ids for sample in samples]),
            cu_seqlens=lengths.cumsum(0),
        )
"""


def test_the_encoder_shows_crops_tokens_and_packs(
    window: webdriver.Chrome, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "encoder_of_the_test.py").write_text(ENCODER)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {"encoder": "encoder_of_the_test:Packed", "batch_size": 1, "packing_buffer_size": 6}
    with serving(dataset, tmp_path / "scans", **options) as server:
        enter(window, server, "/data/0/sample/7")
        one(window, "main p a").click()
        arrive(window, "/data/0/sample/7/encoded")
        assert all_of(window, ".error") == [], one(window, "main").text
        assert one(window, ".pictures img").get_attribute("naturalWidth") == "40"
        words = [token.text for token in all_of(window, ".token b")]
        assert words == ["<b>bold</b>", "picture", "number", "7"]
        go(window, f"{server.url}/encoder")
        assert len(all_of(window, ".pictures img")) == 3
        assert len(all_of(window, "svg.strip rect")) == 3
        button = one(window, ".summary button")  # loads the encoder again
        button.click()
        wait(window, staleness_of(button))
        wait(window, lambda w: len(all_of(w, ".pictures img")) == 3)


@pytest.mark.usefixtures("refusals")
def test_another_site_gets_nothing(window: webdriver.Chrome, server: PageServer) -> None:
    """A page of another origin, in the browser that has the cookie, tries what it can."""
    attack = f"""<!doctype html><title>evil</title><body><script>
    const target = "{server.url}";
    const results = {{}};
    const image = new Image();
    image.onload = () => results.image = "loaded"; image.onerror = () => results.image = "refused";
    image.src = target + "/data/0/sample/0/part/0/thumbnail";
    const script = document.createElement("script");
    script.onload = () => results.script = "loaded"; script.onerror = () => results.script = "refused";
    script.src = target + "/static/view.js"; document.body.append(script);
    fetch(target + "/scan", {{credentials: "include"}}).then(
        a => results.fetch = "read", e => results.fetch = "refused");
    fetch(target + "/scan/start", {{method: "POST", credentials: "include", mode: "no-cors"}}).then(
        a => results.post = a.type, e => results.post = "refused");
    const frame = document.createElement("iframe");
    frame.onload = () => {{ try {{ results.frame = frame.contentDocument ? "read" : "refused"; }}
        catch {{ results.frame = "refused"; }} }};
    frame.src = target + "/data/0"; document.body.append(frame);
    window.results = results;
    </script>"""

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(attack.encode())

        def log_message(self, *_: Any) -> None: ...

    server.site.scan.cancel()
    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    thread = threading.Thread(target=evil.serve_forever)
    thread.start()
    try:
        enter(window, server)
        for host in ("127.0.0.1", "localhost"):  # the same site with another port, and another site
            go(window, f"http://{host}:{evil.server_port}/evil")
            wait(window, lambda w: len(w.execute_script("return results")) == 5)
            found = window.execute_script("return results")
            ways = ("image", "script", "fetch", "frame")
            assert {way: found[way] for way in ways} == dict.fromkeys(ways, "refused")
            assert not server.site.scan.progress().running
            frame = one(window, "iframe")
            window.switch_to.frame(frame)
            assert all_of(window, ".card") == []
            window.switch_to.default_content()
    finally:
        evil.shutdown()
        thread.join()
        evil.server_close()
