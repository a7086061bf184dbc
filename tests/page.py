"""The explorer page in real browsers, run by `make test-page`: Chromium through playwright, Firefox through Marionette.

The pages have the weights that training starts from: what is tested is the page, not what was learned.
"""

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from test_explorer import skills_of, write_page

import envs
from genda_mjx.runs import explore

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-page installs it")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
needs_firefox = pytest.mark.skipif(FIREFOX is None, reason="needs firefox: apt-get install firefox-esr")
READY = "document.documentElement.dataset.ready || /could not/.test(document.getElementById('loading').textContent)"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    env = envs.make("point", bank_size=64)
    return write_page(tmp_path_factory.mktemp("page") / "explore.html", env, skills_of(env, hidden=128))


@pytest.fixture(scope="module")
def ball_file(tmp_path_factory) -> Path:
    env = envs.make("fish", bank_size=64)
    return write_page(tmp_path_factory.mktemp("page") / "ball.html", env, skills_of(env, hidden=128, skill_dim=3))


@pytest.fixture(scope="module")
def browsers():
    with playwright.sync_playwright() as driver:
        yield driver


class Opened:
    """A page in Chromium that keeps what it asked for and what it said."""

    def __init__(self, driver, address: str, arguments=(), **options):
        flags = ["--no-sandbox", "--disable-gpu", *arguments]
        self.browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        self.page = self.browser.new_page(**({"viewport": {"width": 1280, "height": 820}} | options))
        self.requests, self.messages = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(address)
        self.page.wait_for_function(READY, timeout=60_000)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.close()

    def get(self, expression: str):
        return self.page.evaluate(expression)

    @property
    def z(self) -> list[float]:
        return self.get("explorer.world.z")

    @property
    def position(self) -> list[float]:
        return self.get("explorer.world.first.position")

    def drag(self, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drags between two places of an element, given in shares of its size."""
        box = self.page.locator(selector).bounding_box()
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        self.page.mouse.move(*places[1], steps=4)
        self.page.mouse.up()

    def colours(self) -> int:
        """How many different colours the drawn stage has."""
        return self.get(
            "(() => { explorer.stage.draw({}); const c = document.createElement('canvas'); c.width = c.height = 120;"
            "const p = c.getContext('2d'); p.drawImage(explorer.stage.canvas, 0, 0, 120, 120);"
            "const d = new Uint32Array(p.getImageData(0, 0, 120, 120).data.buffer); return new Set(d).size; })()"
        )


@needs_chromium
def test_loads_from_disk_alone_and_keeps_time(browsers, page_file):
    with Opened(browsers, page_file.as_uri()) as opened:
        rates = []
        for _ in range(4):  # a busy machine may need another try
            opened.page.wait_for_timeout(2500)
            rates.append(opened.get("explorer.rate"))
        print(f"ready after {opened.get('document.documentElement.dataset.ready')} ms, {max(rates):.2f} x real time")
        assert max(rates) >= 0.9
        assert opened.requests == [page_file.as_uri()]
        assert opened.messages == []
        assert opened.colours() > 20


@needs_chromium
def test_dragging_the_disc_changes_skill_and_motion(browsers, page_file):
    with Opened(browsers, page_file.as_uri()) as opened:
        ends = []
        for place, expected in (((0.5, 0.1), [0, 1]), ((0.1, 0.5), [-1, 0])):
            opened.drag("#skill canvas", (0.5, 0.4), place)
            assert opened.z == pytest.approx(expected, abs=0.05)
            opened.page.click("#reset")
            opened.page.wait_for_function("explorer.world.first.seconds > 1")
            opened.page.click("#pause")
            ends.append(opened.get("explorer.world.first.path[20]"))
            opened.page.click("#pause")
        assert max(abs(a - b) for a, b in zip(*ends, strict=True)) > 1e-3
        assert opened.messages == []


@needs_chromium
def test_reset_and_start_offset(browsers, page_file):
    with Opened(browsers, page_file.as_uri()) as opened:
        start = opened.get("explorer.world.first.path[0]")
        opened.page.wait_for_timeout(500)
        opened.page.click("#pause")
        opened.page.click("#reset")
        assert opened.position == start
        opened.page.fill("#x", "3")
        opened.page.press("#x", "Enter")
        assert opened.position == pytest.approx([start[0] + 3, start[1]])
        opened.page.wait_for_timeout(800)  # the camera follows
        opened.drag("#stage", (0.5, 0.5), (0.7, 0.6))
        assert opened.get("explorer.world.offset") != [3, 0]
        before = opened.get("explorer.stage.camera.azimuth")
        opened.drag("#stage", (0.1, 0.2), (0.2, 0.2))
        assert opened.get("explorer.stage.camera.azimuth") != before
        assert opened.messages == []


@needs_chromium
def test_keys_eight_at_once_and_links(browsers, page_file):
    with Opened(browsers, page_file.as_uri() + "#z=0.6,0.8&from=1,2&start=1") as opened:
        assert opened.z == pytest.approx([0.6, 0.8])
        assert opened.get("explorer.world.offset") == [1, 2]
        opened.page.keyboard.press("ArrowLeft")
        assert opened.z[0] < 0.58
        opened.page.keyboard.press("8")
        assert opened.get("explorer.world.bodies.length") == 8
        opened.page.wait_for_timeout(1200)
        ends = opened.get("explorer.world.bodies.map((body) => body.position)")
        assert len({tuple(round(x, 3) for x in end) for end in ends}) == 8
        assert "eight=1" in opened.page.url and "from=1,2" in opened.page.url
        again = opened.page.url
        opened.page.keyboard.press("8")
        opened.page.keyboard.press("Space")
        assert opened.get("explorer.paused")
    with Opened(browsers, again) as opened:
        assert opened.get("explorer.world.bodies.length") == 8


@needs_chromium
def test_a_tap_on_a_line_takes_its_skill(browsers, page_file):
    with Opened(browsers, page_file.as_uri()) as opened:
        opened.get("explorer.paths.lines = [[[0, 0], [1, 1]], [[0, 0], [-30, 40]]]; explorer.paths.reach = 60")
        opened.page.wait_for_timeout(300)
        x, y = opened.get("explorer.paths.at([-30, 40])")
        opened.page.click("#map", position={"x": x, "y": y})
        assert opened.z == pytest.approx(opened.get("explorer.world.episodes.skills[1]"))
        assert opened.get("explorer.world.start") == 1


@needs_chromium
def test_draws_without_webgl_and_on_a_phone(browsers, page_file):
    blocked = ["--disable-webgl", "--disable-webgl2", "--disable-3d-apis"]
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with Opened(browsers, page_file.as_uri(), blocked, **phone) as opened:
        assert opened.get("explorer.stage.scene.name") == "2D canvas"
        assert opened.colours() > 20
        assert opened.get("document.documentElement.scrollWidth") <= 390
        box = opened.page.locator("#skill canvas").bounding_box()
        opened.page.touchscreen.tap(box["x"] + 0.5 * box["width"], box["y"] + 0.9 * box["height"])
        assert opened.z == pytest.approx([0, -1], abs=0.05)
        assert opened.messages == []


@needs_chromium
def test_three_js_draws(browsers, page_file):
    with Opened(browsers, page_file.as_uri() + "#view=3d") as opened:
        assert opened.get("explorer.stage.scene.name") == "WebGL"
        assert opened.colours() > 20


@needs_chromium
def test_ball_for_skills_in_three_dimensions(browsers, ball_file):
    with Opened(browsers, ball_file.as_uri()) as opened:
        opened.drag("#skill canvas", (0.5, 0.5), (0.6, 0.4))
        assert len(opened.z) == 3 and opened.z[2] > 0.8
        opened.page.click("#skill button")
        assert opened.z[2] < -0.8
        assert opened.messages == []


@needs_chromium
def test_records_a_film(browsers, page_file, tmp_path):
    with Opened(browsers, page_file.as_uri()) as opened:
        opened.page.click("#record")
        opened.page.wait_for_timeout(1500)
        with opened.page.expect_download() as found:
            opened.page.click("#record")
        found.value.save_as(tmp_path / "film.webm")
        assert (tmp_path / "film.webm").read_bytes()[:4] == b"\x1a\x45\xdf\xa3"  # of a webm file
        assert opened.messages == []


@needs_chromium
def test_shows_itself_in_a_notebook(browsers, page_file, tmp_path):
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!doctype html><body>{explore.Page(page_file)._repr_html_()}</body>")
    flags = ["--no-sandbox", "--disable-gpu"]
    browser = browsers.chromium.launch(executable_path=CHROMIUM, args=flags)
    page, messages = browser.new_page(), []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(outer.as_uri())
    frame = page.frames[1]
    frame.wait_for_function(READY, timeout=60_000)
    frame.wait_for_function("explorer.world.first.seconds > 0.5")
    assert messages == []
    browser.close()


class Firefox:
    """A headless Firefox, spoken to through Marionette: its own remote protocol, JSON over a socket."""

    def __init__(self, profile: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (profile / "user.js").write_text(
            f'user_pref("marionette.port", {port});\n'
            + "".join(f'user_pref("{name}", false);\n' for name in ("datareporting.policy.dataSubmissionEnabled",))
        )
        command = [
            FIREFOX,
            "--headless",
            "--marionette",
            "--remote-allow-system-access",
            "--no-remote",
            "--profile",
            str(profile),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(120):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), timeout=90)
                break
            except OSError:
                time.sleep(0.5)
        self._read()
        self.number = 0
        self.call("WebDriver:NewSession")

    def call(self, name: str, **options):
        self.number += 1
        message = json.dumps([0, self.number, name, options])
        self.socket.sendall(f"{len(message)}:{message}".encode())
        _, _, error, value = self._read()
        assert error is None, error
        return value

    def run(self, script: str):
        return self.call("WebDriver:ExecuteScript", script=script, args=[])["value"]

    def _read(self):
        size = b""
        while not size.endswith(b":"):
            size += self.socket.recv(1)
        text = b""
        while len(text) < int(size[:-1]):
            text += self.socket.recv(1 << 20)
        return json.loads(text)

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)


@needs_firefox
def test_firefox(page_file, tmp_path):
    firefox = Firefox(tmp_path)
    try:
        firefox.call("WebDriver:Navigate", url=page_file.as_uri())
        for _ in range(120):
            if firefox.run("return Boolean(window.explorer)"):
                break
            time.sleep(0.5)
        rates = []
        for _ in range(4):
            time.sleep(2.5)
            rates.append(firefox.run("return window.explorer.rate") or 0)
        ready = firefox.run("return document.documentElement.dataset.ready")
        print(f"{firefox.run('return navigator.userAgent')}: ready after {ready} ms, {max(rates):.2f} x real time")
        assert max(rates) >= 0.9
        assert firefox.run("return explorer.world.first.path.length") > 50
        firefox.run("document.getElementById('many').click()")
        assert firefox.run("return explorer.world.bodies.length") == 8
        requests = firefox.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert [name for name in requests if not name.startswith("data:")] == []
        firefox.call("Marionette:SetContext", value="chrome")
        logged = firefox.run("return Services.console.getMessageArray().map((message) => message.message)")
        # Where it has no WebGL, Firefox itself says so when asked; the page then draws without it.
        assert [line for line in logged if page_file.name in line and "create WebGL context" not in line] == []
    finally:
        firefox.close()
