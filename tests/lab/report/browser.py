"""A real browser for the report's tests: chromium without a window, driven over its DevTools pipe, network cut off."""

import base64
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = shlex.split(
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --hide-scrollbars --remote-debugging-pipe "
    "'--host-resolver-rules=MAP * ~NOTFOUND'"
)
# chromium reads commands on descriptor 3 and answers on 4
LAUNCH = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"


class Browser:
    """One page. Everything the page asks for or complains about is kept in `requests` and `complaints`."""

    def __init__(self, profile: Path) -> None:
        commands, self._say = os.pipe()
        self._hear, answers = os.pipe()
        hear, say = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers))
        options = [*FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(hear), str(say), str(CHROMIUM), *options],
            pass_fds=(hear, say),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, answers, hear, say):
            os.close(end)
        self._rest, self._number, self._session, self._loaded = b"", 0, "", False
        self.requests: list[str] = []
        self.complaints: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._say)
        os.close(self._hear)

    def open(self, path: Path, width: int, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; where it throws, so does this."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """The mouse, in the window's coordinates."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press, move by way of the middle, let go; each when the page has drawn what came before."""
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        moves = [("mouseMoved", middle, 1), ("mouseMoved", end, 1)]
        for kind, (x, y), buttons in (("mousePressed", start, 1), *moves, ("mouseReleased", end, 0)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)
            self.evaluate("new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))")

    def settle(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + 60
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters} | session
        os.write(self._say, json.dumps(message).encode() + b"\0")
        answer: dict[str, Any] = {}
        while answer.get("id") != self._number:
            answer = self._next()
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._rest:
            part = os.read(self._hear, 1 << 20)
            if not part:
                raise RuntimeError("chromium ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message = dict(json.loads(text))
        method, about = message.get("method", ""), message.get("params", {})
        self._loaded |= method == "Page.loadEventFired"
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method in ("Network.loadingFailed", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(f"{method}: {about}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{about['entry']['level']}: {about['entry']['text']}")
        return message
