"""The page in Chromium, driven through Playwright: `make browser`. Not part of `make test`.

CHROMIUM names the browser; default: /usr/bin/chromium. Screenshots go to the folder SCREENSHOTS, if it is set. AXE
names the file axe.min.js of the npm package axe-core; without it accessibility is not checked.
"""

import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn

from fewtags.formats.answers import read_answers
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan
from fewtags.review.app import make_app
from fewtags.review.serve import address, listen

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"there is no {CHROMIUM}; set CHROMIUM")


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Site:
    """A real server in a thread, which can be stopped and started again on its port."""

    def __init__(self, review):
        self.review, self.port = review, None
        self.start()

    def start(self):
        bound = listen(port=self.port)
        self.port = bound.getsockname()[1]
        self.url = address(bound, "127.0.0.1", self.review.token)
        self.server = uvicorn.Server(uvicorn.Config(make_app(self.review), log_level="warning", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [bound]}, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.should_exit = self.server.force_exit = True
        self.thread.join()


@pytest.fixture
def site(review):
    made = Site(review)
    yield made
    made.stop()


@pytest.fixture
def visit(chromium, site):
    """Open a page in a new browser profile; at the end, no error and no request to another host is allowed."""
    contexts, errors, hosts = [], [], set()

    def open_page(path="/photo", **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: hosts.add(re.sub(r"^\w+://([^/:]*).*", r"\1", request.url)))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda text: errors.append(text.text) if "Content Security" in text.text else None)
        page.goto(site.url)
        page.goto(f"http://127.0.0.1:{site.port}{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []
    assert hosts <= {"127.0.0.1"}


def until(page, script, timeout=20_000):
    """Wait until a script is true. Playwright's own function for it needs eval, which the page forbids."""
    end = time.monotonic() + timeout / 1000
    while not _is_true(page, script):
        assert time.monotonic() < end, (script, page.inner_text("body"))
        page.wait_for_timeout(30)


def _is_true(page, script):
    try:
        return page.evaluate(script)
    except playwright.Error as error:
        if "Execution context was destroyed" not in str(error):
            raise
        return False  # the page is being loaded again


def saved(page, count=None):
    """Wait until everything is saved, and `count` answers are shown."""
    until(page, "document.getElementById('saved').dataset.state === 'saved'")
    if count is not None:
        until(page, f"document.getElementById('count').textContent.startsWith('{count} ')")


def question(page):
    return page.inner_text("#question"), page.get_attribute("#photo", "src")


def press(page, *keys):
    """Press keys, each when the photo that it is about is there."""
    for key in keys:
        until(page, "!document.getElementById('frame').classList.contains('loading')")
        page.keyboard.press(key)


def seen(page):
    """Wait until every picture of a wall was on the screen."""
    until(page, "!document.getElementById('tally').textContent.includes('not seen')")


def states(run):
    """(image, class) -> state of all answers."""
    found = {}
    for table in read_answers(run):
        dense = table.matrix.dense()
        found |= {
            (table.images[i].as_py(), table.classes.ids[c]): int(dense[i, c])
            for i, c in zip(*dense.nonzero(), strict=True)
        }
    return found


def test_keys(visit, run):
    page = visit()
    asked = []
    for key in "ynuy":
        asked.append(question(page))
        press(page, key)
    saved(page, 4)
    assert len(set(asked)) == 4
    assert sorted(states(run).values()) == [-1, 1, 1]
    page.keyboard.press("ArrowLeft")
    assert question(page) == asked[3]
    assert "Your answer: yes" in page.inner_text("#said")
    press(page, "n")  # changes it
    saved(page)
    assert sorted(states(run).values()) == [-1, -1, 1]
    for key, expected in (("z", [-1, 1, 1]), ("Backspace", [-1, 1]), ("Control+z", [-1, 1]), ("z", [1]), ("z", [])):
        page.keyboard.press(key)
        saved(page)
        page.wait_for_timeout(100)
        assert sorted(states(run).values()) == expected, key
    assert question(page) == asked[0]
    page.keyboard.press("z")
    until(page, "document.getElementById('saved').textContent === 'nothing to undo'")


def test_skip_heatmap_zoom_and_help_by_keyboard(visit):
    page = visit()
    first = question(page)
    page.keyboard.press("f")
    assert question(page) != first
    page.keyboard.press("b")
    assert question(page) == first
    page.keyboard.press("h")
    until(page, "document.getElementById('heat').naturalWidth > 0")
    page.keyboard.press("+")
    assert "scale(1.5)" in page.get_attribute("#frame", "style")
    page.keyboard.press("0")
    assert "scale(1)" in page.get_attribute("#frame", "style")
    page.keyboard.press("?")
    assert page.is_visible("#help-dialog")
    page.keyboard.press("y")  # is for the page, not for the window above it
    page.keyboard.press("Escape")
    assert not page.is_visible("#help-dialog")
    assert page.inner_text("#count") == "0 answers"


def test_without_maps_the_heatmap_is_off(visit, site):
    """The head of a class token has no maps."""
    site.review.info = replace(site.review.info, head=HeadPlan(pool=Pool("class_token")))
    page = visit()
    until(page, "document.getElementById('photo').naturalWidth > 0")
    assert page.is_disabled("#heatmap")
    page.keyboard.press("h")
    assert not page.is_visible("#heat")
    assert question(page)


def test_a_click_is_a_point_and_a_drag_is_a_box(visit, run):
    page = visit()
    frame = page.locator("#frame").bounding_box()
    at = lambda x, y: (frame["x"] + x * frame["width"], frame["y"] + y * frame["height"])  # noqa: E731
    page.mouse.click(*at(0.25, 0.5))
    page.mouse.move(*at(0.5, 0.25))
    page.mouse.down()
    page.mouse.move(*at(0.7, 0.6))
    page.mouse.move(*at(0.75, 0.75))
    page.mouse.up()
    saved(page, 2)
    assert (page.locator("#marks .point").count(), page.locator("#marks .box").count()) == (1, 1)
    (table,) = read_answers(run)
    boxes = table.locations.boxes.tolist()
    assert len(boxes) == 2
    for found, expected in zip(boxes, [[0.25, 0.5, 0.25, 0.5], [0.5, 0.25, 0.75, 0.75]], strict=True):
        assert found == pytest.approx(expected, abs=0.005)
    page.keyboard.press("z")
    saved(page, 1)
    until(page, "document.querySelectorAll('#marks .box').length === 0")


def test_points_and_boxes_by_keyboard(visit, run):
    """The cursor starts in the middle of the evidence; arrows move it by 1 %, with Shift by 10 %."""
    page = visit()
    asked = question(page)
    said = lambda: page.inner_text("#cursor-text")  # noqa: E731
    page.keyboard.press("m")
    assert page.evaluate("document.activeElement.id") == "stage"
    assert page.get_attribute("#stage", "role") == "application"
    assert "Arrows move it" in said()
    for key in ["Shift+ArrowLeft"] * 10 + ["Shift+ArrowUp"] * 10:
        page.keyboard.press(key)
    assert said() == "0 % across, 0 % down"
    for key in ["Shift+ArrowRight"] * 2 + ["ArrowRight"] * 5 + ["Shift+ArrowDown"] * 5:
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    assert said().startswith("Point set at 25 % across, 50 % down")
    page.keyboard.press("b")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Enter")
    assert "no area yet" in said()
    page.keyboard.press("Shift+ArrowUp")
    assert page.is_visible("#cursor-box")
    page.keyboard.press("Enter")
    assert said().startswith("Box set from 25 % across, 50 % down to 35 % across, 40 % down")
    saved(page, 2)
    assert (page.locator("#marks .point").count(), page.locator("#marks .box").count()) == (1, 1)
    (table,) = read_answers(run)
    expected = [[0.25, 0.5, 0.25, 0.5], [0.25, 0.4, 0.35, 0.5]]
    for found, wanted in zip(table.locations.boxes.tolist(), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)
    page.keyboard.press("b")
    page.keyboard.press("Escape")  # no box, then no cursor; the question stays
    assert said().startswith("No box.")
    page.keyboard.press("Escape")
    assert (said(), page.is_visible("#cursor"), question(page)) == ("", False, asked)
    for _ in range(8):
        page.keyboard.press("+")
    page.keyboard.press("m")
    for _ in range(30):
        page.keyboard.press("Shift+ArrowRight")
    edges = "(id) => { const box = document.getElementById(id).getBoundingClientRect(); return [box.left, box.right]; }"
    (left, right), (start, end) = page.evaluate(edges, "stage"), page.evaluate(edges, "cursor")
    assert left < start <= end < right
    if folder := os.environ.get("SCREENSHOTS"):
        page.keyboard.press("b")
        page.keyboard.press("Shift+ArrowDown")
        page.keyboard.press("Shift+ArrowLeft")
        page.screenshot(path=Path(folder) / "cursor.png")
    page.keyboard.press("Escape")
    page.keyboard.press("f")  # the next photo has no cursor
    assert not page.is_visible("#cursor")
    assert question(page) != asked


def test_a_wall(visit, run, review):
    page = visit(f"/wall?class={review.info.class_ids[0]}")
    cells = page.locator(".cell")
    count = cells.count()
    assert count > 3
    if page.get_attribute("#invert", "aria-pressed") == "true":
        page.keyboard.press("i")
    until(page, "[...document.querySelectorAll('.cell img')].every((i) => i.naturalWidth > 0)")
    cells.nth(1).click()
    cells.nth(2).click()
    cells.nth(2).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")  # the fourth is wrong, by keyboard
    seen(page)
    tally = page.inner_text("#tally")
    assert tally == f"{count - 3} yes, 2 no, 1 unsure"
    page.keyboard.press("Enter")
    page.keyboard.press("z")  # at once, while the answers are sent
    saved(page, 0)
    until(page, f"document.querySelectorAll('.cell').length === {count}")
    assert states(run) == {}
    seen(page)
    assert page.inner_text("#tally") == tally  # as it was answered
    page.keyboard.press("Enter")
    saved(page, count)
    assert sorted(states(run).values()) == [-1, -1, *[1] * (count - 3)]


def test_a_wall_confirms_only_what_was_on_the_screen(visit, run, review):
    page = visit(f"/wall?class={review.info.class_ids[0]}", viewport={"width": 500, "height": 420})
    count = page.locator(".cell").count()
    until(page, "[...document.querySelectorAll('.cell img')].every((i) => i.naturalWidth > 0)")
    assert "not seen yet" in page.inner_text("#tally")
    assert page.inner_text("#confirm").startswith("Show the rest")
    for _ in range(count):
        if "not seen" not in page.inner_text("#tally"):
            break
        assert states(run) == {}
        page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    saved(page, count)
    assert len(states(run)) == count
    until(page, "!document.getElementById('empty').hidden")
    page.evaluate("dispatchEvent(new Event('scroll'))")  # nothing is left to be seen; an error would fail the test


@pytest.mark.parametrize("size", [(1280, 800), (1500, 1300), (900, 1400)])
def test_the_cells_of_a_wall_are_as_large_as_the_screen_allows(visit, review, size):
    """All are on the screen, and with a column less they would not be, or be larger than crops are."""
    width, height = size
    page = visit(f"/wall?class={review.info.class_ids[0]}", viewport={"width": width, "height": height})
    page.wait_for_selector(".cell")
    boxes = [cell.bounding_box() for cell in page.locator(".cell").all()]
    assert max(box["y"] + box["height"] for box in boxes) <= height
    columns = len({round(box["x"]) for box in boxes})
    larger = page.locator("#wall").bounding_box()["width"] / (columns - 1)
    fits = boxes[0]["y"] + -(-len(boxes) // (columns - 1)) * larger <= height
    assert columns == 3 or len(boxes) < columns or larger > 266 or not fits


def test_walls_of_one_class_after_the_other(visit, run, review):
    """Enter goes on to the next class; what is taken back comes with its own class."""
    page = visit("/")
    page.click("#start-walls")
    page.wait_for_selector(".cell")
    name, count = page.inner_text("h1 strong"), page.locator(".cell").count()
    seen(page)
    page.keyboard.press("Enter")
    saved(page, count)
    until(page, f"document.querySelector('h1 strong').textContent !== '{name}'")
    other = page.inner_text("h1 strong")
    page.keyboard.press("f")
    until(page, f"document.querySelector('h1 strong').textContent !== '{other}'")
    page.keyboard.press("z")
    until(page, f"document.querySelector('h1 strong').textContent === '{name}'")
    saved(page, 0)
    assert page.locator(".cell").count() == count
    assert page.title().startswith(f"{name} · ")


HELD = """for (const repeat of [false, true, true]) {
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "%s", repeat, bubbles: true}));
}"""


def test_keys_that_are_held_down_answer_once(visit, run, review):
    page = visit()
    press(page)
    page.evaluate(HELD % "y")
    page.wait_for_timeout(200)
    saved(page, 1)
    page.goto(page.url.split("/photo")[0] + f"/wall?class={review.info.class_ids[0]}")
    seen(page)
    count = page.locator(".cell").count()
    page.evaluate(HELD % "i")
    page.evaluate("document.activeElement.blur()")
    page.evaluate(HELD % "Enter")
    saved(page, 1 + count)


def test_a_photo_that_is_not_there_yet_is_not_answered(visit, run, review):
    """The photo before does not stay below the next question, and a key does not answer what nobody has seen."""
    page = visit()
    press(page, "f")
    held, free = [], []
    page.route("**/picture/*", lambda route: route.continue_() if free else held.append(route))
    page.reload(wait_until="domcontentloaded")
    until(page, "document.getElementById('question').textContent !== ''")
    assert not page.is_visible("#frame")
    page.keyboard.press("y")
    assert page.inner_text("#count") == "0 answers"
    free.append(True)
    for route in held:
        route.continue_()
    press(page, "n")
    saved(page, 1)
    assert [*states(run).values()] == [-1]


def test_escape_closes_the_window_of_classes_at_once(visit):
    page = visit()
    page.keyboard.press("t")
    page.keyboard.type("x")
    page.keyboard.press("Escape")
    assert not page.is_visible("#class-dialog")


def test_a_wall_that_is_taken_back_on_the_page_of_photos_is_named(visit, review):
    page = visit(f"/wall?class={review.info.class_ids[0]}")
    count = page.locator(".cell").count()
    seen(page)
    page.keyboard.press("Enter")
    saved(page, count)
    page.goto(page.url.split("/wall")[0] + "/photo")
    press(page, "z")
    until(page, f"document.getElementById('saved').textContent.startsWith('took back {count} answers about ')")


def test_an_inverted_wall(visit, run, review):
    page = visit(f"/wall?class={review.info.class_ids[0]}")
    count = page.locator(".cell").count()
    if page.get_attribute("#invert", "aria-pressed") == "false":
        page.keyboard.press("i")
    page.locator(".cell").nth(0).click()
    seen(page)
    assert page.evaluate("getComputedStyle(document.querySelector('.cell[data-answer=no] img')).opacity") == "1"
    page.keyboard.press("Enter")
    saved(page, count)
    assert sorted(states(run).values()) == [*[-1] * (count - 1), 1]


def test_suspicious_labels_by_keyboard(visit, run, review):
    page = visit("/")
    page.click("#check-labels")
    page.wait_for_selector("#question strong")
    assert re.match(r"Your files say: (\w+)\. No overrules this label\.", page.inner_text("#label"))
    press(page, *"nyu")
    saved(page, 3)
    assert sorted(states(run).values()) == [-1, 1]
    assert review.label_counts() | {"open": 0} == {"open": 0, "checked": 2, "wrong": 1}  # unsure checks nothing
    page.keyboard.press("b")
    page.keyboard.press("z")
    saved(page, 2)
    page.goto(page.url.split("/labels")[0] + "/")
    assert "2 checked, 1 of them wrong" in page.inner_text("main")


def test_two_browsers_at_once(visit, run):
    ann, bob = visit(), visit()
    asked = set()
    for _ in range(6):
        for page in (ann, bob):
            asked.add(question(page))
            press(page, "y")
    saved(ann), saved(bob)
    assert len(asked) == 12
    assert len(states(run)) == 12


def test_disagreement_is_shown_to_both(visit, run):
    ann = visit()
    press(ann, "y")
    saved(ann, 1)
    bob = visit("/answers")
    bob.click(".rows a")
    bob.wait_for_selector("#photo")
    assert "Others: reviewer 1: yes" in bob.inner_text("#said")
    press(bob, "n")
    saved(bob, 1)
    assert states(run) == {}
    bob.goto(bob.url.split("/photo")[0] + "/answers")
    assert "People disagree about 1" in bob.inner_text("main")


def test_reload_in_the_middle(visit):
    page = visit()
    press(page, *"yn")
    saved(page, 2)
    before = question(page)
    page.reload()
    assert question(page) == before
    assert page.inner_text("#count") == "2 answers"
    page.keyboard.press("b")
    assert "Your answer: no" in page.inner_text("#said")


def test_answers_wait_for_a_server_that_is_away(visit, run, site):
    page = visit()
    press(page, "y")
    saved(page, 1)
    page.wait_for_load_state("networkidle")  # the next photos are there
    site.stop()
    press(page, *"yn")
    until(page, "document.getElementById('saved').dataset.state === 'lost'")
    assert "not saved yet" in page.inner_text("#saved")
    assert len(states(run)) == 1
    site.start()
    saved(page, 3)
    assert sorted(states(run).values()) == [-1, 1, 1]


def test_another_class_and_a_note(visit, run, review):
    page = visit()
    hostile = "<img src=x onerror=alert(1)>"
    page.keyboard.press("t")
    page.keyboard.type(hostile)
    page.wait_for_selector("#class-list .new")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('question').textContent.includes('<img')")
    saved(page, 1)
    assert page.locator("#question img").count() == 0
    assert [class_ for _, class_ in states(run)] == [hostile]
    page.keyboard.press("c")
    page.keyboard.type("<b>too dark</b>")
    page.keyboard.press("Control+Enter")
    until(page, "document.getElementById('note-shown').textContent === 'Note: <b>too dark</b>'")
    saved(page)
    page.goto(page.url.split("/photo")[0] + "/")
    assert hostile in page.inner_text("#classes")
    assert page.locator("#classes img").count() == 0


def test_search_of_a_thousand_classes(visit, review):
    for n in range(1000):
        review.store.add_class("ann", f"species {n:03}")
    page = visit("/")
    page.keyboard.press("/")
    page.keyboard.type("species 123")
    assert page.locator("#classes li:visible").count() == 1
    page.keyboard.type("x")
    assert page.is_visible("#nothing")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_nothing_is_cut_off(visit, review, scheme, device):
    options = {"color_scheme": scheme, **(PHONE if device == "phone" else {})}
    one_class = review.info.class_ids[0]
    for name, path in (
        ("home", "/"),
        ("photo", "/photo"),
        ("labels", "/labels"),
        ("wall", f"/wall?class={one_class}"),
        ("walls", "/wall"),
        ("answers", "/answers"),
    ):
        page = visit(path, **options)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, device)
        if name in ("photo", "labels"):
            for id in ("yes", "no", "unsure"):
                box = page.locator(f"#{id}").bounding_box()
                assert box["y"] + box["height"] <= page.viewport_size["height"]
                assert min(box["width"], box["height"]) >= 44
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}-{device}-{scheme}.png")


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
STATES = {  # path, then keys or a script
    "home": ("/", []),
    "photo": ("/photo", []),
    "labels": ("/labels", []),
    "wall": ("/wall?class={}", []),
    "answers": ("/answers", []),
    "empty": ("/wall?class=new", []),
    "answered": ("/photo", ["y", "b", "h"]),
    "cursor": ("/photo", ["m", "b", "Shift+ArrowDown", "Shift+ArrowRight"]),
    "keys": ("/photo", ["?"]),
    "note": ("/photo", ["c"]),
    "class": ("/photo", ["t", "x"]),
    "whole photo": ("/wall?class={}", ["o"]),
    "not saved": ("/photo", "showSaved('lost', 'not saved yet: no reply, 2 waiting')"),
    "stop here": ("/", "byId('stop').hidden = false"),
    "new training": ("/", "showTraining({state: 'failed', run: 'first-2', lines: ['error: x']})"),
}
FAILURES = """async () => {
  const found = await axe.run();
  const text = (rule, node) => `${rule.id}: ${node.target} ${node.failureSummary}`;
  const shown = (rules) => rules.flatMap((rule) => rule.nodes.map((node) => text(rule, node)));
  return [shown(found.violations), shown(found.incomplete)];
}"""


@pytest.mark.skipif("AXE" not in os.environ, reason="AXE=.../axe.min.js, of the npm package axe-core")
@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_accessibility(visit, review, scheme, device):
    review.store.add_class("ann", "new")
    options = {"color_scheme": scheme, **(PHONE if device == "phone" else {})}
    wrong, undecided = [], set()
    page = visit("/", **options)
    home = page.url
    for name, (path, then) in STATES.items():
        page.goto(home.rstrip("/") + path.format(review.info.class_ids[0]))
        page.wait_for_timeout(300)
        if isinstance(then, str):
            page.evaluate(then)
        else:
            for key in then:
                page.keyboard.press(key)
        page.evaluate(Path(os.environ["AXE"]).read_text("utf-8") + ";0")
        failures, unsure = page.evaluate(FAILURES)
        wrong += [f"{name}: {text}" for text in failures]
        undecided |= {text.split("\n")[0] for text in unsure}
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"axe-{name}-{device}-{scheme}.png")
    print("\n".join(["not decided by axe-core:", *sorted(undecided)]))
    assert wrong == []


def test_a_finger_draws_after_mark(visit, run):
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.tap("#frame")
    page.wait_for_timeout(200)
    assert states(run) == {}
    page.tap("#mark")
    page.tap("#frame")
    saved(page, 1)
    (table,) = read_answers(run)
    assert len(table.locations) == 1


def test_retrain_and_go_on_with_the_new_model(visit, review, run):
    page = visit()
    press(page, *"yn")
    saved(page, 2)
    page.goto(page.url.split("/photo")[0] + "/")
    page.click("#retrain")
    until(page, "document.getElementById('training').textContent.includes('first-2 trains')")
    until(page, "document.getElementById('doing').textContent.includes('questions by first-2')", timeout=280_000)
    assert (run.parent / "first-2" / "model.safetensors").exists()
    assert (run / "model.safetensors").exists()
    assert "first-2 is ready" in page.inner_text("#training")
    assert time.time() > review.retraining.training.began
