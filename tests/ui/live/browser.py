"""Debian's Chromium, driven over its debugging protocol."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

from airflow_megatron.spec.documents.project import local_dir, project_root

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = shutil.which("chromium")
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


class ContextLostError(AssertionError):
    """The frame has loaded another page since its scripts were requested."""


class Page:
    """One page of the browser.

    :param socket: to the page's debugger
    """

    def __init__(self, socket: ClientConnection) -> None:
        self.errors: list[str] = []
        """What stands in the console as an error."""
        self.hosts: set[str] = set()
        """Hosts that it has asked for something."""
        self._socket, self._number = socket, 0
        self._frames: dict[int, str] = {}  # context of scripts → frame
        self._framed = False
        for domain in ("Page", "Runtime", "Network", "Log", "Inspector"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=300))
            if message.get("id") == self._number:
                if "Cannot find context" in message.get("error", {}).get("message", ""):
                    raise ContextLostError(message["error"]["message"])
                assert "error" not in message, message["error"]
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.executionContextCreated":
            context = params["context"]
            if context["auxData"].get("isDefault"):
                self._frames[context["id"]] = context["auxData"]["frameId"]
        elif method == "Runtime.executionContextDestroyed":
            self._frames.pop(params["executionContextId"], None)
        elif method == "Runtime.executionContextsCleared":
            self._frames.clear()
        elif method == "Runtime.exceptionThrown":
            detail = params["exceptionDetails"]
            self.errors.append(f"{detail['text']} {detail.get('exception', {}).get('description', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(" ".join(str(one.get("value", "")) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            address = urlsplit(params["request"]["url"])
            if address.scheme in ("http", "https", "ws", "wss"):
                self.hosts.add(address.netloc)
        elif method == "Inspector.targetCrashed":
            raise AssertionError("the process of the page crashed")

    def open(self, url: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=url)

    def in_frame(self, framed: bool) -> None:
        """Have the following commands reach the page inside the page's frame, or the page itself."""
        self._framed = framed

    def _context(self) -> dict[str, int]:
        if not self._framed:
            return {}
        top = self.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
        inner = [context for context, frame in self._frames.items() if frame != top]
        if not inner:
            raise ContextLostError("the page has no frame")
        return {"contextId": inner[-1]}

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            **self._context(),
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str, timeout: float = 120) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                if self.ask(
                    f"(() => {{ try {{ return Boolean({expression}); }} catch {{ return null; }} }})()"
                ):
                    return
            except ContextLostError:  # the frame goes to another page
                pass
            time.sleep(0.1)
        raise AssertionError(
            f"not within {timeout} s: {expression}; the page shows {str(self.ask('document.body?.innerText'))[:2000]}"
        )

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.ask(f"document.querySelector({json.dumps(selector)}).innerText"))

    def fill(self, selector: str, text: str) -> None:
        """Write into a field."""
        self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(text)};"
            " e.dispatchEvent(new Event('input', {bubbles: true}));"
            " e.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def click(self, selector: str) -> None:
        """Press a button or follow a link."""
        self.ask(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        """Press a key."""
        values = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **values, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def set_dark(self, dark: bool) -> None:
        """Let the system prefer dark or light pages."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def set_cookie(self, url: str, name: str, value: str) -> None:
        """Set a cookie, as a login does."""
        self.call("Network.setCookie", name=name, value=value, url=url, httpOnly=True)

    def violations(self) -> list[str]:
        """Return the violations that axe-core finds: rule and elements."""
        self.ask(_axe())
        found = self.ask("axe.run().then((result) => result.violations)")
        return [f"{one['id']}: {[node['html'] for node in one['nodes'][:5]]}" for one in found]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the whole page as PNG, including the part below the window."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@functools.cache
def _axe() -> str:
    """Return axe-core's script, which is fetched once."""
    spec = importlib.util.spec_from_file_location("hatch_build", project_root() / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = local_dir() / "axe"
    module.fetch_locked(Path(__file__).with_name("axe.json"), folder)
    return (folder / "axe.min.js").read_text(encoding="utf-8") + ";true"


@contextmanager
def browser_page(place: Path) -> Iterator[Page]:
    """Start Chromium with a new profile; end it afterwards.

    :param place: an empty folder
    """
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    words += [
        f"--user-data-dir={place}",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
    ]
    with subprocess.Popen(
        [*words, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as browser:
        try:
            assert browser.stderr is not None
            found = next(
                match for line in browser.stderr if (match := re.search(r"listening on ws://([^/]+)/", line))
            )
            # without requests its events wait, and it gets no keep-alive pings
            with connect(_page_socket(found[1]), max_size=None, max_queue=None, ping_interval=None) as socket:
                yield Page(socket)
        finally:
            browser.terminate()
            browser.wait(120)


def _page_socket(address: str) -> str:
    import urllib.request

    end = time.monotonic() + 120
    while time.monotonic() < end:
        with urllib.request.urlopen(f"http://{address}/json/list", timeout=60) as answer:
            for target in json.load(answer):
                if target["type"] == "page":
                    return str(target["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError("Chromium opened no page")
