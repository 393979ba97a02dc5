"""Headless Chromium and its driver, as Debian packages them or as they are found on the path."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> tuple[str, str]:
    """Returns the paths of the browser and of its driver.

    Raises:
        FileNotFoundError: One is not there; says what to install.
    """
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    folder = os.environ.get("CHROMEWEBDRIVER", "")  # where the images of GitHub's runners have it
    driver = shutil.which("chromedriver") or shutil.which("chromedriver", path=folder)
    if browser is None or driver is None:
        raise FileNotFoundError(
            "Chromium or its driver is not on the path. Install Debian's packages: apt install chromium chromium-driver"
        )
    return browser, driver


@contextmanager
def chromium(folder: Path, *, width: int = 1280, height: int = 900, scale: float = 1) -> Iterator[webdriver.Chrome]:
    """Starts a browser that keeps everything in a folder.

    Args:
        folder: An empty folder.
        width: Width of the window in pixels.
        height: Height of the page in pixels.
        scale: Pixels of a screenshot per pixel of the page.
    """
    browser, driver = find_chromium()
    options = Options()
    options.binary_location = browser
    for argument in (
        "--headless=new",
        "--no-sandbox",  # which root cannot have; only pages of these tests are opened
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--hide-scrollbars",
        "--autoplay-policy=no-user-gesture-required",
        f"--user-data-dir={folder}",
        f"--window-size={width},{height}",
        f"--force-device-scale-factor={scale}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    try:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield window
    finally:
        window.quit()


def prefer_theme(window: webdriver.Chrome, theme: str) -> None:
    """Makes the system of the browser light or dark."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def requested_urls(window: webdriver.Chrome) -> list[str]:
    """Returns the addresses that were requested since the last call."""
    entries: list[dict[str, str]] = window.get_log("performance")  # type: ignore[no-untyped-call]
    messages = [json.loads(entry["message"])["message"] for entry in entries]
    return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
