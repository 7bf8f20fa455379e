"""A headless Chromium, by its own protocol over a pipe: no driver and no package for it."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60  # seconds without a word


def installed():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `events` are what it said since the last `open`."""

    def __init__(self):
        self.number, self.events, self.rest = 0, [], b""
        out, self.to = os.pipe()
        self.back, into = os.pipe()
        self.folder = tempfile.mkdtemp()
        flags = (
            "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
        )
        # Chromium reads its third and writes its fourth file.
        command = f'exec "$@" 3<&{out} 4>&{into}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, "-", installed(), *flags.split(),
             f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(out, into), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(out)
        os.close(into)
        targets = self.ask("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        params = {"targetId": target, "flatten": True}
        self.session = self.ask("Target.attachToTarget", **params)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    session = None

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def read(self):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], PATIENCE)
            piece = os.read(self.back, 1 << 16) if ready else b""
            assert piece, "Chromium has ended"
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, url, seconds=30):
        self.events = []
        self.ask("Page.navigate", url=url)
        end = time.monotonic() + seconds
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            assert time.monotonic() < end, f"{url} does not load"
            self.read()

    def run(self, script):
        """The value of a script, a promise's when it is there."""
        params = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.ask("Runtime.evaluate", **params)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def width(self, pixels):
        size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": pixels < 500}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def complaints(self):
        """Errors of the console, of scripts, and of what could not be loaded."""
        texts = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                texts.append(params["exceptionDetails"]["text"])
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                texts.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
                texts.append(str(params["args"]))
            elif method == "Network.loadingFailed" and not params.get("canceled"):
                texts.append(params["errorText"])
        return texts

    def close(self):
        with contextlib.suppress(OSError):
            self.ask("Browser.close")
        self.process.wait(20)
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.folder, ignore_errors=True)
