"""A headless Chromium spoken to over its debugging pipe (Chrome DevTools Protocol): no driver, no port, no library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Headless without a sandbox (tests run as root in containers) and without the connections a desktop browser makes by itself.
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe"]


def program() -> str | None:
    """The browser, where there is one."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Page:
    """One tab. Collects everything that the page logs, throws or fails to load."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer, self._number, self._session = write, read, b"", 0, ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._read, 1 << 16)
            if not more:
                raise RuntimeError("the browser went away")
            self._buffer += more
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        name, params = message.get("method", ""), message.get("params", {})
        self._events.append(name)
        if name in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled", "Network.loadingFailed"):
            self.problems.append(f"{name}: {json.dumps(params)[:500]}")
        if name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message

    def open(self, file: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file at a screen size and wait until it has loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._events.clear()
        self.call("Page.navigate", url=file.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression (the page's own policy does not apply to the debugger)."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        import base64

        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])


@contextmanager
def open_browser(profile: Path) -> Iterator[Page]:
    """A browser with an empty profile; ended, by its own process, on leaving."""
    browser = program()
    assert browser is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def place() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
        inward, outward = os.dup(to_read), os.dup(from_write)
        os.dup2(inward, 3)
        os.dup2(outward, 4)

    process = subprocess.Popen(
        [browser, *_FLAGS, f"--user-data-dir={profile}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=place, close_fds=False
    )
    os.close(to_read)
    os.close(from_write)
    try:
        page = Page(to_write, from_read)
        yield page
    finally:
        process.kill()
        process.wait()
        os.close(to_write)
        os.close(from_read)
