"""A headless Chromium without a network, for tests of pages; spoken to by chromedriver, in plain HTTP.

No package is needed for that: selenium would bring trio, whose plugin for hypothesis fails where warnings are errors.
"""

import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

MISSING = "needs chromium and chromedriver, which `make test-pages` installs where apt-get is there"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1000,900"
)
OPENER = build_opener(ProxyHandler({}))  # chromedriver is on this machine


class Driver:
    """A session of chromedriver."""

    def __init__(self, server: str, capabilities: dict[str, Any]) -> None:
        self.server = server
        always = {"capabilities": {"alwaysMatch": capabilities}}
        self.session = f"{server}/session/{self._ask('POST', f'{server}/session', always)['sessionId']}"

    def _ask(self, method: str, address: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(address, data, {"Content-Type": "application/json"}, method=method)
        with OPENER.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def post(self, command: str, **body: Any) -> Any:
        return self._ask("POST", f"{self.session}/{command}", body)

    def cdp(self, cmd: str, **params: Any) -> Any:
        return self.post("goog/cdp/execute", cmd=cmd, params=params)

    def quit(self) -> None:
        self._ask("DELETE", self.session)


class Browser:
    """What tests ask of a page."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver, self.downloads = driver, folder / "downloads"
        self.downloads.mkdir()
        driver.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        driver.cdp("Network.enable")
        none = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.cdp("Network.emulateNetworkConditions", offline=True, **none)

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.post("execute/sync", script=script, args=values)

    def open(self, page: Path, *, width: int = 1000, dark: bool = False) -> None:
        """Load a page and wait until it says that all its charts are drawn."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.cdp("Emulation.setEmulatedMedia", features=scheme)
        self.resize(width)
        self.driver.post("url", url=page.as_uri())
        self.until("return document.documentElement.dataset.ready !== undefined", "all charts are drawn")

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.cdp("Emulation.setDeviceMetricsOverride", **size)

    def until(self, script: str, what: str, *values: Any, seconds: float = 20) -> Any:
        end = time.monotonic() + seconds
        while not (found := self.run(script, *values)):
            if time.monotonic() > end:
                raise AssertionError(f"after {seconds:g} s it is not so that {what}; {self.errors()}")
            time.sleep(0.02)
        return found

    def errors(self) -> list[str]:
        """What the console complained of since it was last asked."""
        said = self.driver.post("se/log", type="browser")
        return [one["message"] for one in said if one["level"] in ("SEVERE", "WARNING")]

    def click(self, selector: str, index: int = 0) -> None:
        self.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, index)

    def hover(self, selector: str) -> str:
        """Move the mouse over the middle of an element; the text of the label that appears."""
        where = self.run(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]",
            selector,
        )
        for step in (-9, 0):  # plotly looks where the mouse goes
            self.driver.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=where[0] + step, y=where[1])
        found = "return [...document.querySelectorAll('.hoverlayer text')].map(t => t.textContent).join(' | ')"
        return str(self.until(found, "hovering shows values"))

    def downloaded(self, selector: str, index: int = 0) -> tuple[str, str]:
        """Click a link; the name and the text of the file that it gives."""
        for old in self.downloads.iterdir():
            old.unlink()
        self.click(selector, index)
        end = time.monotonic() + 20
        while not (done := [one for one in self.downloads.iterdir() if not one.name.endswith(".crdownload")]):
            assert time.monotonic() < end, "the click gave no file"
            time.sleep(0.02)
        return done[0].name, done[0].read_text()

    def printed(self) -> bytes:
        return base64.b64decode(self.driver.cdp("Page.printToPDF", printBackground=True)["data"])

    def press_enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for what in ("keyDown", "keyUp"):
            self.driver.cdp("Input.dispatchKeyEvent", type=what, **key)


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    binary, server = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if binary is None or server is None:
        pytest.skip(MISSING)
    flags = [*FLAGS.split(), f"--user-data-dir={folder / 'profile'}"]
    wanted = {"goog:chromeOptions": {"binary": binary, "args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
    with subprocess.Popen([server, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(
                found[1] for line in process.stdout if (found := re.search(r"successfully on port (\d+)", line))
            )
            driver = Driver(f"http://127.0.0.1:{port}", wanted)
            yield Browser(driver, folder)
            driver.quit()
        finally:
            process.terminate()
