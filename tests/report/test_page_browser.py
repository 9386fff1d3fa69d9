"""The page in a real browser: no error, nothing loaded, steps by key and by hand, fits a phone, follows the dark."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

import numpy as np
import pytest
from PIL import Image

from neural_em.report.colours import palette
from neural_em.report.page import RunReport, write_page
from neural_em.report.plots import StepCurve
from neural_em.report.segmentation_page import Thumbnails
from neural_em.report.segmentation_page import write_page as write_clip_page
from tests.processes import SAFETY
from tests.report.test_segmentation_page import folder_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium binary on the path"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


class Browser:
    """Chromium, spoken to in its DevTools protocol over two pipes: JSON messages, each ended by a zero byte."""

    def __init__(self, profile):
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        # the browser reads from descriptor 3 and writes to descriptor 4
        command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", CHROMIUM, *FLAGS]
        command += [f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, pass_fds=(to_read, to_write), stdout=quiet, stderr=quiet)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.count, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.buffer:
            assert select.select([self.back], [], [], SAFETY)[0], "the browser does not answer"
            data = os.read(self.back, 1 << 16)
            assert data, "the browser has ended"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path):
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")
        self.until("Array.from(document.querySelectorAll('canvas')).every((canvas) => canvas.sprite)")

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + SAFETY
        while not self.value(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.02)

    def key(self, key, code=None):
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, " ": 32, "Tab": 9}
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": " "} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector):
        box = f"document.querySelector('{selector}').getBoundingClientRect()"
        self.value(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
        x, y = (self.value(f"{box}.{side} + {box}.{size} / 2") for side, size in (("left", "width"), ("top", "height")))
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path, width, height, scale=1, dark=False):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.value("window.drawn = 0; (function again() { window.drawn += 1; requestAnimationFrame(again); })()")
        self.until("window.drawn > 2")  # with the new size and colours
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))

    def complaints(self):
        bad = [event for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
        for event in self.events:
            if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"):
                bad.append(event)
            # warnings in the log are about this test's own reading of the canvases
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                bad.append(event)
        return bad

    def loaded(self):
        requests = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return {event["params"]["request"]["url"] for event in requests}

    def close(self):
        self.session = None
        os.write(self.to, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            self.process.wait(SAFETY)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)


@pytest.fixture
def browser(tmp_path):
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


@pytest.fixture
def page(squares, tmp_path):
    def run(name, components):
        sequences = [squares(steps=6, components=components, label=label, soft=0.0) for label in ("best", "typical")]
        rows = [{"epoch": e, "train_loss": 9 / e, "validation_ami": 1 - 1 / e} for e in range(1, 9)]
        curve = StepCurve(*np.random.default_rng(0).random((3, 6)))
        settings = {"seed": 1, "model": {"components": components}, "note": HOSTILE}
        return RunReport(name, settings, rows, {"ami": {"last": 0.9}}, {"AMI": curve}, sequences, 6)

    return write_page(tmp_path / "report.html", [run("first", 3), run(f"second {HOSTILE}", 5)])


def steps(browser):
    return browser.value("Array.from(document.querySelectorAll('.player'), (one) => Number(one.dataset.step))")


def shown(browser, label="assignment"):
    """The pixels (H,W,3) that the first player's panel shows now."""
    canvas = f"document.querySelector('canvas[aria-label=\"{label}\"]')"
    pixels = f"Array.from({canvas}.getContext('2d').getImageData(0, 0, {canvas}.width, {canvas}.height).data)"
    size = browser.value(f"[{canvas}.height, {canvas}.width]")
    return np.array(browser.value(pixels), np.uint8).reshape(*size, 4)[..., :3]


def test_the_page_opens_without_error_and_loads_nothing(browser, page):
    browser.open(page)
    assert browser.value("document.title") == "Neural EM report"  # the hostile settings did not run
    assert browser.complaints() == []
    assert {url for url in browser.loaded() if not url.startswith("data:")} == {page.as_uri()}


def test_the_player_steps_by_key_and_shows_the_right_pixels(browser, page, squares):
    browser.open(page)
    labels = np.argmax(squares(steps=6, components=3).gamma, axis=1)
    assert steps(browser) == [6, 6, 6, 6]  # what came of it
    assert np.array_equal(shown(browser), palette(3)[labels[5]])
    browser.value("document.querySelector('.player').focus()")
    browser.key("Home")
    assert np.array_equal(shown(browser), palette(3)[labels[0]])
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    assert steps(browser) == [3, 3, 3, 3]  # several runs are stepped together
    assert np.array_equal(shown(browser), palette(3)[labels[2]])
    browser.key("ArrowLeft")
    assert steps(browser)[0] == 2
    browser.key("End")
    browser.key("ArrowRight")
    assert steps(browser)[0] == 6
    assert browser.value("document.querySelector('output').textContent") == "6 / 6"
    browser.key("Home")
    assert steps(browser) == [1, 1, 1, 1]
    assert browser.complaints() == []


def test_steps_without_input_are_marked(browser, squares, rolled_out, tmp_path):
    browser.open(write_page(tmp_path / "rollout.html", [RunReport("one", sequences=[rolled_out, squares(steps=5)])]))
    browser.value("document.querySelector('.player').focus()")
    seen = []
    for _ in range(5):
        marked = browser.value("Array.from(document.querySelectorAll('.player'), (p) => p.matches('.rollout'))")
        seen.append((browser.value("document.querySelector('output').textContent"), *marked))
        browser.key("ArrowLeft")
    assert seen == [
        ("3 + 2 / 5", True, False), ("3 + 1 / 5", True, False), ("3 / 5", False, False), ("2 / 5", False, False),
        ("1 / 5", False, False),
    ]  # fmt: skip
    assert np.array_equal(shown(browser, "what happened"), rolled_out.frames_rgb()["what happened"][0])
    assert browser.complaints() == []


# in the place of the browser's clock: what is to be done again and again is done when the test says so
CLOCK = """
window.ticking = new Map();
window.setInterval = (tick) => { window.ticking.set(window.ticking.size + 1, tick); return window.ticking.size; };
window.clearInterval = (number) => { window.ticking.delete(number); };
"""
TICK = "window.ticking.forEach((tick) => tick())"


def test_space_plays_and_pauses(browser, page):
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=CLOCK)
    browser.open(page)
    browser.value("document.querySelector('.player').focus()")
    browser.key(" ", "Space")
    assert browser.value("document.querySelector('.play').getAttribute('aria-label')") == "pause"
    for expected in (1, 2, 3):  # from the beginning
        browser.value(TICK)
        assert steps(browser) == [expected] * 4
    browser.key(" ", "Space")
    browser.value(TICK)
    assert steps(browser) == [3, 3, 3, 3]
    assert browser.value("document.querySelector('.play').getAttribute('aria-label')") == "play"


def test_a_page_that_plays_begins_by_itself_unless_less_motion_is_wanted(browser, squares, tmp_path):
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=CLOCK)
    run = RunReport("one", sequences=[squares(steps=6, label="a"), squares(steps=6, label="b")])
    page = write_page(tmp_path / "plays.html", [run], plays=True)
    browser.open(page)
    browser.value(TICK)
    browser.value(TICK)
    assert steps(browser) == [2, 2]
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    browser.open(page)
    browser.value(TICK)
    assert steps(browser) == [6, 6]


def test_buttons_and_slider_work_and_players_can_be_stepped_alone(browser, page):
    browser.open(page)
    browser.click("#together")
    browser.click(".player .back")
    assert steps(browser) == [5, 6, 6, 6]
    browser.click(".player .next")
    assert steps(browser) == [6, 6, 6, 6]
    browser.click(".player input[type=range]")  # its middle
    assert steps(browser)[0] in (3, 4)
    browser.key("ArrowRight")  # once, though the slider has the focus
    assert steps(browser)[0] in (4, 5)
    assert steps(browser)[1:] == [6, 6, 6]


def test_everything_is_reached_by_the_tab_key(browser, page):
    browser.open(page)
    reached = set()
    for _ in range(60):
        browser.key("Tab")
        reached.add(browser.value("document.activeElement.className || document.activeElement.type || ''"))
    assert {"player card", "back", "play", "next", "range", "checkbox"} <= reached


LABELS = "document.querySelectorAll('.chart > svg text').length"
CUT = """Array.from(document.querySelectorAll('.chart > svg')).flatMap((chart) => {
  const box = chart.getBoundingClientRect(), texts = Array.from(chart.querySelectorAll('text'));
  const boxes = texts.map((text) => text.getBoundingClientRect());
  const over = (a, b) => a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
  return texts.filter((text, n) => boxes[n].left < box.left - 0.5 || boxes[n].right > box.right + 0.5
    || boxes[n].bottom > box.bottom + 0.5 || boxes.some((other, m) => m !== n && over(boxes[n], other)));
}).map((text) => text.textContent)"""


def test_it_fits_a_phone_and_follows_the_dark(browser, page, tmp_path):
    browser.open(page)
    desktop = browser.screenshot(tmp_path / "desktop.png", 1280, 900)
    dark = browser.screenshot(tmp_path / "dark.png", 1280, 900, dark=True)
    phone = browser.screenshot(tmp_path / "phone.png", 360, 740, scale=2)
    assert desktop.shape == dark.shape == (900, 1280, 3)
    assert desktop[0, 0].min() > 230
    assert dark[0, 0].max() < 50
    assert phone.shape == (1480, 720, 3)
    assert browser.value("document.documentElement.scrollWidth") <= 360
    assert (
        browser.value("Math.min(...Array.from(document.querySelectorAll('.controls button'), (b) => b.clientHeight))")
        >= 38
    )
    # no label of a chart is cut off at its edge or runs into another one
    assert browser.value(LABELS) > 20
    assert browser.value(CUT) == []
    # every pixel of a panel is a whole number of screen pixels wide
    ratio = browser.value(
        "(() => { const c = document.querySelector('canvas'); return parseFloat(c.style.width) * 2 / c.width; })()"
    )
    assert ratio == round(ratio) >= 2
    assert browser.complaints() == []


def test_the_page_of_a_segmentation(browser, tmp_path):
    out, clip, count = tmp_path / "out", Thumbnails(), 5
    labels = np.zeros((count, 30, 40), int)
    labels[:, :10, :10] = 1
    labels[3:, 20:, 30:] = 2
    for _ in labels:
        clip.add(np.full((30, 40, 3), 60, np.uint8))
    rows = [{"frame": t, "object": 1, "x": 5, "y": 5, "width": 9, "height": 9, "area": 81} for t in range(count)]
    write_clip_page(folder_of(out, labels, source=HOSTILE), clip, rows)
    browser.open(out / "index.html")
    assert browser.value("document.querySelector('.player .score').textContent") == "1 object"
    canvas = "document.querySelector('canvas.photo')"
    corner = f"Array.from({canvas}.getContext('2d').getImageData(220, 160, 1, 1).data).slice(0, 3)"
    colour = np.rint(0.45 * 60 + 0.55 * palette(2)[1])
    assert np.abs(np.array(browser.value(corner)) - colour).max() < 12  # the last frame has the second object
    browser.click(".player header")
    browser.key("Home")
    assert np.abs(np.array(browser.value(corner)) - 60).max() < 8
    browser.key("ArrowRight")
    assert browser.value("document.querySelector('.player').dataset.step") == "2"
    for width, dark in ((1280, False), (390, True)):
        picture = browser.screenshot(tmp_path / "page.png", width, 800, dark=dark)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert (picture[2, 2].mean() < 60) == dark
        box = browser.value(f"[{canvas}.getBoundingClientRect().width, {canvas}.getBoundingClientRect().height]")
        assert abs(box[0] / box[1] - 4 / 3) < 0.03
        assert box[0] > 300
        slider = browser.value("document.querySelector('.controls').getBoundingClientRect().bottom")
        assert slider <= 801  # always in sight
    assert browser.complaints() == []
    assert browser.value("document.title") != "broken"
    assert all(url == (out / "index.html").as_uri() or url.startswith("data:") for url in browser.loaded())
