"""Choosing, sorting, tagging and comparing samples, and the steps of a run, in Chromium. Run by `make test-browser`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.loader.dataset_folder import captioning_dataset
from tests.view.chromium import chromium, prefer_theme
from tests.view.hostile import write_hostile
from tests.view.page_server import PageServer, serving
from tests.view.test_browser import all_of, arrive, enter, go, is_complete, one, press, wait
from tests.view.test_run import saved_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
COUNT = 60


@pytest.fixture(scope="module", autouse=True)
def _tags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENERGON_DALI_TAGS", str(tmp_path_factory.mktemp("tags")))
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, _tags: None) -> Iterator[PageServer]:
    data = captioning_dataset(tmp_path_factory.mktemp("choosing") / "data", COUNT)
    with serving(data, tmp_path_factory.mktemp("scans")) as running:
        yield running


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory, downloads: Path) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        opened.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
        yield opened


@pytest.fixture
def refusals() -> None:
    """For a test in which the browser has to report that a request was refused."""


@pytest.fixture(autouse=True)
def _no_errors(window: webdriver.Chrome, request: pytest.FixtureRequest) -> Iterator[None]:
    """No script fails, and the policy of the page refuses nothing of its own."""
    window.get_log("browser")
    yield
    errors = [entry["message"] for entry in window.get_log("browser") if entry["level"] == "SEVERE"]
    pictures = ("/thumbnail", "/image", "/strip")  # status 422 for what cannot be decoded
    found = [message for message in errors if not any(way in message for way in pictures)]
    assert bool(found) == ("refusals" in request.fixturenames), found


@pytest.fixture(autouse=True)
def _nothing_is_chosen(server: PageServer) -> None:
    server.own_post("/data/0/chosen?action=only&samples=")


def buttons(window: webdriver.Chrome) -> list[Any]:
    return all_of(window, ".grid .choose")


def pressed(window: webdriver.Chrome) -> list[int]:
    found = all_of(window, '.grid .choose[aria-pressed="true"]')
    return [int(button.get_attribute("data-index")) for button in found]


def num_chosen(window: webdriver.Chrome) -> int:
    return int(one(window, "#num-chosen").text.replace(",", "") or -1)  # none while the page is on its way


def shift_click(window: webdriver.Chrome, element: Any) -> None:
    ActionChains(window).key_down(Keys.SHIFT).click(element).key_up(Keys.SHIFT).perform()


def test_a_click_chooses_and_a_click_with_shift_chooses_a_range(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=24")
    buttons(window)[3].click()
    wait(window, lambda w: num_chosen(w) == 1)
    shift_click(window, buttons(window)[7])
    wait(window, lambda w: num_chosen(w) == 5)
    assert pressed(window) == [3, 4, 5, 6, 7]
    buttons(window)[4].click()
    wait(window, lambda w: num_chosen(w) == 4)
    assert window.current_url.endswith("/data/0?size=24")  # nothing was loaded again
    go(window, f"{server.url}/data/0?size=24")
    assert pressed(window) == [3, 5, 6, 7]


def test_a_range_reaches_over_pages_and_in_the_order_of_the_list(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=10&sort=-key")
    buttons(window)[8].click()
    wait(window, lambda w: num_chosen(w) == 1)
    one(window, 'a[rel="next"]').click()
    wait(window, lambda w: "page=2" in w.current_url and len(buttons(w)) == 10 and is_complete(w))
    shift_click(window, buttons(window)[1])
    wait(window, lambda w: num_chosen(w) == 4)
    assert sorted(server.site.chosen(server.site.catalog.entries[0]).numbers.tolist()) == [48, 49, 50, 51]


def test_a_range_of_a_list_that_has_changed_is_what_the_page_shows(
    window: webdriver.Chrome, server: PageServer, refusals: None
) -> None:
    server.own_post("/data/0/tags?action=add&name=some&samples=" + ",".join(map(str, range(0, 40, 2))))
    try:
        enter(window, server, "/data/0?tag=some&size=10")
        buttons(window)[1].click()
        wait(window, lambda w: num_chosen(w) == 1)
        server.own_post("/data/0/tags?action=add&name=some&samples=1,3,5")
        shift_click(window, buttons(window)[4])
        wait(window, lambda w: num_chosen(w) == 4)
        assert server.site.chosen(server.site.catalog.entries[0]).numbers.tolist() == [2, 4, 6, 8]
        one(window, 'a[rel="next"]').click()  # the last click was in the list as it was
        wait(window, lambda w: "page=2" in w.current_url and len(buttons(w)) == 10 and is_complete(w))
        shift_click(window, buttons(window)[0])
        error = wait(window, lambda w: one(w, "#choose-error").is_displayed() and one(w, "#choose-error").text)
        assert "has changed" in error
        assert num_chosen(window) == 4
    finally:
        server.own_post("/data/0/tags?action=delete&name=some")


def test_the_keyboard_chooses(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=24")
    press(window, "j", "x")
    wait(window, lambda w: num_chosen(w) == 1)
    press(window, "j", "j", "X")
    wait(window, lambda w: num_chosen(w) == 3)
    assert pressed(window) == [0, 1, 2]
    go(window, f"{server.url}/data/0/sample/7")
    press(window, "x")
    wait(window, lambda w: one(w, ".choose.wide").get_attribute("aria-pressed") == "true")
    go(window, f"{server.url}/data/0?chosen=1")
    assert pressed(window) == [0, 1, 2, 7]


def test_a_page_and_a_whole_list_are_chosen_and_cleared(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=10&key=k00")
    one(window, '[data-choose="page"]').click()
    wait(window, lambda w: num_chosen(w) == 10)
    next(button for button in all_of(window, ".choose-actions button") if "all" in button.text).click()
    wait(window, lambda w: num_chosen(w) == COUNT and is_complete(w))
    assert "key=k00" in window.current_url
    next(button for button in all_of(window, ".choose-actions button") if button.text == "Clear").click()
    wait(window, lambda w: num_chosen(w) == 0 and is_complete(w))
    assert not one(window, "#compare").is_displayed()


def test_another_order_is_one_selection_away(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=10")
    Select(one(window, "#sort")).select_by_value("-bytes")
    wait(window, lambda w: "sort=-bytes" in w.current_url and is_complete(w))
    order = [int(card.get_attribute("data-sample")) for card in all_of(window, ".card")]
    dataset = server.site.catalog.entries[0].opened
    sizes = [dataset.sample(number).size for number in range(COUNT)]
    assert order == sorted(range(COUNT), key=lambda number: -sizes[number])[:10]
    all_of(window, ".card")[2].click()
    arrive(window, f"/data/0/sample/{order[2]}")
    press(window, "j")
    arrive(window, f"/data/0/sample/{order[3]}")
    press(window, "u")
    wait(window, lambda w: "/data/0?" in w.current_url and "sort=-bytes" in w.current_url and is_complete(w))
    Select(one(window, "#sort")).select_by_value("")
    wait(window, lambda w: w.current_url.endswith("/data/0?size=10"))


def test_what_is_chosen_is_exported_and_opened_again(
    window: webdriver.Chrome, server: PageServer, downloads: Path, tmp_path: Path
) -> None:
    enter(window, server, "/data/0?size=24")
    for number in (2, 5, 9):
        buttons(window)[number].click()
        wait(window, lambda w, number=number: number in pressed(w))
    next(link for link in all_of(window, "#choose-bar > a") if link.text == "Export").click()
    file = downloads / "data-chosen.jsonl"
    wait(window, lambda w: file.exists())
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()] == ["k0002", "k0005", "k0009"]
    server.own_post("/data/0/chosen?action=only&samples=")
    go(window, f"{server.url}/data/0")
    one(window, "#open-file").send_keys(str(file))
    arrive(window, "/data/0?chosen=1")
    assert pressed(window) == [2, 5, 9]


def test_a_file_of_other_keys_is_an_error_on_the_page(
    window: webdriver.Chrome, server: PageServer, tmp_path: Path, refusals: None
) -> None:
    enter(window, server)
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("<b>none</b>\n")
    one(window, "#open-file").send_keys(str(wrong))
    error = wait(window, lambda w: one(w, "#choose-error").is_displayed() and one(w, "#choose-error").text)
    assert "names 1 sample that data does not have: <b>none</b>. Nothing was chosen." in error
    assert num_chosen(window) == 0


def test_samples_are_tagged_filtered_and_untagged(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=24")
    for number in (1, 4):
        buttons(window)[number].click()
        wait(window, lambda w, number=number: number in pressed(w))
    one(window, ".tags-menu summary").click()
    one(window, ".tag-form input").send_keys("blurred", Keys.ENTER)
    wait(window, lambda w: all_of(w, ".tag-list li") and is_complete(w))
    assert [chip.text for chip in all_of(window, ".card-tags .chip")] == ["blurred", "blurred"]
    all_of(window, ".card-tags .chip")[0].click()
    wait(window, lambda w: "tag=blurred" in w.current_url and is_complete(w))
    assert [card.get_attribute("data-sample") for card in all_of(window, ".card")] == ["1", "4"]
    go(window, f"{server.url}/data/0/sample/1")
    one(window, '[aria-label="Take the tag blurred from this sample"]').click()
    wait(window, lambda w: "no tags" in one(w, ".sample-tags").text)
    go(window, f"{server.url}/data/0?tag=blurred")
    assert len(all_of(window, ".card")) == 1
    one(window, '[aria-label="Remove the tag blurred"]').click()
    wait(window, lambda w: "tag=" not in w.current_url and not all_of(w, ".tag-list li"))


def test_two_samples_are_compared(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=24")
    for number in (1, 2, 6):
        buttons(window)[number].click()
        wait(window, lambda w, number=number: number in pressed(w))
    one(window, "#compare").click()
    arrive(window, "/compare?a=0.1&b=0.2")
    assert [mark.text for mark in all_of(window, ".pair mark")] == ["1", "2", "1", "2"]
    images = all_of(window, ".pair img.full")
    wait(window, lambda w: all(w.execute_script("return arguments[0].naturalWidth", image) for image in images))
    Select(all_of(window, "select[name='b']")[0]).select_by_value("0.6")
    arrive(window, "/compare?a=0.1&b=0.6")
    one(window, ".pages a").click()
    arrive(window, "/compare?a=0.6&b=0.1")
    go(window, f"{server.url}/data/0/sample/3")
    one(window, "#compare-with").send_keys("9", Keys.ENTER)
    arrive(window, "/compare?a=0.3&b=9")


def test_buttons_work_without_scripts(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?size=10")
    window.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        window.get(f"{server.url}/data/0?size=10")
        buttons(window)[2].click()
        wait(window, lambda w: pressed(w) == [2])
        Select(one(window, "#sort")).select_by_value("-key")
        one(window, ".sort button").click()
        wait(window, lambda w: "sort=-key" in w.current_url and is_complete(w))
        assert one(window, "#sort").get_property("value") == "-key"
    finally:
        window.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_samples_are_chosen_and_compared_as_text(window: webdriver.Chrome, tmp_path: Path) -> None:
    with serving(write_hostile(tmp_path / "hostile"), tmp_path / "scans") as server:
        enter(window, server, "/data/0")
        one(window, '[data-choose="page"]').click()
        wait(window, lambda w: num_chosen(w) > 1)
        server.own_post("/data/0/tags?action=add&name=odd")
        for number in range(1, server.site.catalog.entries[0].opened.num_samples):
            go(window, f"{server.url}/compare?a=0.0&b=0.{number}")
        assert window.execute_script("return window.hacked") is None
        go(window, f"{server.url}/data/0?tag=odd")
        assert len(pressed(window)) > 1


def test_the_pages_fit_the_window(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server)
    server.own_post("/data/0/chosen?action=add&samples=1,2,3")
    server.own_post("/data/0/tags?action=add&name=" + "long-name-" * 6)
    try:
        for width in (1440, 600):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            for theme in ("light", "dark"):
                prefer_theme(window, theme)
                for path in ("/data/0", "/data/0/sample/1", "/compare?a=0.1&b=0.2"):
                    go(window, server.url + path)
                    assert not window.execute_script("return document.documentElement.scrollWidth > innerWidth"), path
    finally:
        metrics = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        prefer_theme(window, "light")


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_point_of_the_loss_opens_its_step(window: webdriver.Chrome, tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    options = {"run": (str(run.folder / "states"),), "loss": str(run.folder / "loss.csv")}
    with serving(run.folder / "blend.yaml", tmp_path / "scans", **options) as server:
        enter(window, server, "/run")
        points = window.find_elements(By.CSS_SELECTOR, ".chart.loss a")
        ActionChains(window).move_to_element(points[1].find_element(By.CSS_SELECTOR, "rect")).click().perform()
        arrive(window, "/run/step/1")
        assert one(window, "#loss").text == "2.75"
        assert [card.text.split()[0] for card in all_of(window, ".card .key")][:1] == run.received[1, 0, 0][:1]
        press(window, "n")
        arrive(window, "/run/step/2")
        next(link for link in all_of(window, ".ranks a") if link.text == "rank 1").click()
        wait(window, lambda w: len(all_of(w, ".step-batch")) == 2 and is_complete(w))
        press(window, "u")
        arrive(window, "/run")
        press(window, "g")
        press(window, "4", Keys.ENTER)
        arrive(window, "/run/step/4")
        first = all_of(window, ".card")[0]
        key = first.find_element(By.CSS_SELECTOR, ".key").text
        first.click()
        wait(window, lambda w: "/sample/" in w.current_url and one(w, "h1").text == key)


def test_the_back_button_shows_the_order_of_its_page(window: webdriver.Chrome, server: PageServer) -> None:
    enter(window, server, "/data/0?sort=-bytes")
    for wanted, address in (("key", "?sort=key"), ("", "/data/0")):
        Select(one(window, "#sort")).select_by_value(wanted)
        wait(window, lambda w, end=address: w.current_url.rstrip("?").endswith(end))
        window.back()
        wait(window, lambda w: w.current_url.endswith("?sort=-bytes"))
        wait(window, lambda w: one(w, "#sort").is_enabled())
        wait(window, lambda w: one(w, "#sort").get_property("value") == "-bytes" and is_complete(w))
