"""A real browser for tests: Chromium without a screen, driven over its pipe (no other package).

Tests that need a browser are skipped, and say so, if there is none. ``make browser`` installs
Debian's package if that can be done without asking anybody (apt-get, as root).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.processes import TIMEOUT

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLAYWRIGHT = ("chrome", "headless_shell", "chrome-headless-shell")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--force-color-profile=srgb",
)
# The browser reads commands from 3 and writes answers to 4: put the pipes there and become it.
PIPE_SETUP = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(x), fcntl.F_DUPFD, 10) for x in sys.argv[1:3]]
for wanted, end in zip((3, 4), ends):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """A Chromium that starts: one on the path, or Playwright's."""
    playwright_dir = (
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    )
    on_path = [program for name in NAMES if (program := shutil.which(name))]
    playwright_builds = [
        str(x) for name in PLAYWRIGHT for x in Path(playwright_dir).glob(f"chromium*/*/{name}")
    ]
    return next(filter(_can_start, on_path + playwright_builds), None)


def _can_start(program: str) -> bool:
    """Ubuntu has a program of that name that only says where to get the browser."""
    try:
        completed = subprocess.run(
            [program, "--version"], capture_output=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return completed.returncode == 0


def install(wait: float = 300.0) -> str:
    """Install chromium by apt-get if it is missing; one line that says what was done."""
    if program := find():
        return f"browser tests use {program}"
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        reason = "apt-get is not here" if apt is None else "apt-get needs root"
        return f"no chromium, and {reason}: browser tests are skipped"
    print("Installing chromium for the browser tests", flush=True)
    package = ["-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=60", "chromium"]
    deadline = time.monotonic() + wait
    # the list of packages may be missing or too old for what the mirror has: then fetch it
    for arguments in (["install", *package], ["update"], ["install", *package]):
        failed = _run_apt([apt, "-q", *arguments], deadline - time.monotonic())
        if find():
            return f"browser tests use {find()}"
        if failed == "time":
            break
    return "chromium could not be installed by apt-get: browser tests are skipped"


def _run_apt(command: list[str], seconds: float) -> str | None:
    """Run without a terminal to ask at; ``"time"`` if it took too long."""
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=max(seconds, 1.0),
            check=False,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    except subprocess.TimeoutExpired:
        return "time"
    except OSError as error:
        return error.strerror
    return None


class Chromium:
    """One browser with one page; remembers what the page logged and asked the network for."""

    def __init__(self, program: str, folder: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PIPE_SETUP, str(to_browser), str(from_browser), *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._count = b"", 0
        self._session: str | None = None
        self.log_entries: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            response = self._read()
            if response.get("id") == self._count:
                if "error" in response:
                    raise RuntimeError(f"{method}: {response['error']['message']}")
                return response["result"]

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], TIMEOUT)[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._in, 1 << 16)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._buffer += piece
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(raw)
        self._record_event(message.get("method"), message.get("params", {}))
        return message

    def _record_event(self, method: str | None, parameters: Any) -> None:
        if method == "Runtime.consoleAPICalled":
            self.log_entries += [str(x.get("value", x)) for x in parameters["args"]]
        elif method == "Runtime.exceptionThrown":
            self.log_entries.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.log_entries.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, file: Path, ready: str = "true") -> None:
        """Load a file and wait until an expression is true in it."""
        self.log_entries.clear()
        self.requests.clear()
        self.send("Page.navigate", url=file.as_uri())
        deadline = time.monotonic() + TIMEOUT
        while not self.evaluate(f"document.readyState === 'complete' && ({ready})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{file.name} does not get ready: {self.log_entries}")
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        response = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in response:
            raise RuntimeError(response["exceptionDetails"]["exception"]["description"])
        return response["result"].get("value")

    def press(self, *keys: str) -> None:
        for key in keys:
            for event_type in ("keyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=event_type, key=key, code=key)

    def move_mouse(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def set_screen(self, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def save_screenshot(self, file: Path) -> None:
        """The whole page as PNG."""
        response = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(response["data"]))

    def save_pdf(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.printToPDF")["data"]))

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)


if __name__ == "__main__":
    print(install(*map(float, sys.argv[1:])))  # seconds, if given
