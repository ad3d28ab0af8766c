"""A real browser for the report's tests: chromium without a window, driven over its DevTools pipe, network cut off."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]
# chromium reads commands on descriptor 3 and answers on 4
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One page. Everything the page asks for or complains about is kept in `requests` and `complaints`."""

    def __init__(self, profile: Path) -> None:
        commands, self._say = os.pipe()
        self._hear, answers = os.pipe()
        hear, say = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers))
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCH, str(hear), str(say)),
                *(str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(hear, say),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, answers, hear, say):
            os.close(end)
        self._rest, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._events: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._say)
        os.close(self._hear)

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + 30
        while "Page.loadEventFired" not in self._events and time.monotonic() < until:
            self._note(self._next())

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._say, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._hear, 1 << 20)
            if not part:
                raise RuntimeError("chromium ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, about = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method in ("Network.loadingFailed", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(f"{method}: {about}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{about['entry']['level']}: {about['entry']['text']}")
