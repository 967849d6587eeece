"""The four answers in a real browser, without a kernel and without a network, by mouse and by keyboard.

The table is tried on a bare page made of its ``text/html`` and, if the site is built, on the chapter's page;
each over http and from disk.
"""

import base64
import functools
import http.server
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_lib.show.widgets import GroupAdvantagesTable
from grpo_lib.show.widgets.group_advantages import _html_table
from grpo_lib.show.widgets.static_page import static_page_html

ROOT = Path(__file__).parents[2]
CHAPTER = "objective/group-advantage.html"
PATTERNS = [list(pattern) for pattern in itertools.product((1, 0), repeat=4)]
SILENT = "no answer is better than the group, every weight is 0. This question sends no task signal."

# All that a reader sees of a table: a row of cells for each answer, its box, its bar, then the text below.
SNAPSHOT = """(root) => ({
  rows: [...root.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent.trim())),
  names: [...root.querySelectorAll("input")].map((box) => box.getAttribute("aria-label")),
  checked: [...root.querySelectorAll("input")].map((box) => box.checked),
  right: [...root.querySelectorAll("tbody tr")].map((row) => row.classList.contains("grpo-right")),
  bars: [...root.querySelectorAll(".grpo-bar")].map(
    (bar) => Number(bar.style.getPropertyValue("--grpo-advantage")).toFixed(3).replace("-0.000", "0.000")),
  below: [...root.querySelectorAll("caption, p.grpo-statistics, output, button")].map(
    (part) => part.textContent.replace(/\\s+/g, " ").trim()),
})"""


def sample_page() -> str:
    """The outputs of four cells on one page: the start twice, and two other tables."""
    tables = [
        GroupAdvantagesTable(scores) for scores in ([1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1])
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Four answers</title>'
        '<meta name="viewport" content="width=device-width"></head><body><h1>Four answers</h1>'
        + "".join(table._repr_mimebundle_()[0]["text/html"] for table in tables)
        + "</body></html>"
    )


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve a folder on 127.0.0.1 and give its address."""
    servers = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    def start(folder: Path) -> str:
        handler = functools.partial(Quiet, directory=str(folder))
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(
    scope="module", params=["sample over http", "sample from disk", "site over http", "site from disk"]
)
def url(request: pytest.FixtureRequest, serve: Callable[[Path], str], tmp_path_factory) -> str:
    """Address of a page that holds the table."""
    if request.param.startswith("sample"):
        page = tmp_path_factory.mktemp("sample") / "page.html"
        page.write_text(sample_page(), encoding="utf-8")
        name, folder = page.name, page.parent
    else:
        folder, name = ROOT / "_build/html", CHAPTER
        if not (folder / name).exists():
            pytest.skip(f"the site is not built: no {folder / name}; run make book")
    return f"{serve(folder)}/{name}" if request.param.endswith("http") else (folder / name).as_uri()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., object]]:
    """Open a page without a network; at the end nothing from outside was asked for and no script threw."""
    contexts, blocked, errors = [], [], []

    def route(route: object) -> None:
        if route.request.url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:")):
            route.continue_()
        else:
            blocked.append(route.request.url)
            route.abort()

    def start(url: str, **options: object) -> object:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.route("**/*", route)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield start
    for context in contexts:
        context.close()
    assert blocked == []
    assert errors == []


def table_of(page: object, place: int = 0) -> object:
    return page.locator(".grpo-group-advantages").nth(place)


def box(table: object, answer: int) -> object:
    return table.get_by_role("checkbox", name=f"y{answer} is right")


def press_box(table: object, answer: int) -> None:
    box(table, answer).focus()
    table.page.keyboard.press("Space")


def click_box(table: object, answer: int) -> None:
    box(table, answer).click()


def press_button(table: object) -> None:
    table.get_by_role("button", name="Back to two right").focus()
    table.page.keyboard.press("Enter")


def click_button(table: object) -> None:
    table.get_by_role("button", name="Back to two right").click()


def column(table: object, name: str) -> list[str]:
    return table.locator(f"tbody .grpo-{name}").all_inner_texts()


def walk_the_notes_path(table: object, tick: Callable, restore: Callable) -> None:
    """The path that the note describes, from the start through its changes and back, with every number."""

    def expect(
        scores: list[int], residuals: str, advantages: str, mean: str, std: str, sentence: str
    ) -> None:
        assert column(table, "score") == [str(score) for score in scores]
        assert column(table, "residual") == residuals.split()
        assert column(table, "value") == advantages.split()
        assert [box(table, answer).is_checked() for answer in (1, 2, 3, 4)] == [
            score == 1 for score in scores
        ]
        assert table.locator(".grpo-statistics").inner_text() == (
            f"Group mean {mean}, population standard deviation {std}."
        )
        assert table.get_by_role("status").inner_text() == sentence

    start = (
        [1, 1, 0, 0],
        "0.500 0.500 −0.500 −0.500",
        "1.000 1.000 −1.000 −1.000",
        "0.500",
        "0.500",
        "2 right, 2 wrong: each right answer gets weight 1.000, each wrong one −1.000.",
    )
    expect(*start)
    tick(table, 2)
    expect(
        [1, 0, 0, 0],
        "0.750 −0.250 −0.250 −0.250",
        "1.732 −0.577 −0.577 −0.577",
        "0.250",
        "0.433",
        "1 right, 3 wrong: the right answer gets weight 1.732, each wrong one −0.577.",
    )
    tick(table, 2)
    expect(*start)
    tick(table, 3)
    expect(
        [1, 1, 1, 0],
        "0.250 0.250 0.250 −0.750",
        "0.577 0.577 0.577 −1.732",
        "0.750",
        "0.433",
        "3 right, 1 wrong: each right answer gets weight 0.577, the wrong one −1.732.",
    )
    tick(table, 4)
    zeros = "0.000 0.000 0.000 0.000"
    expect([1, 1, 1, 1], zeros, zeros, "1.000", "0.000", f"All four answers are right: {SILENT}")
    for answer in (1, 2, 3, 4):
        tick(table, answer)
    expect([0, 0, 0, 0], zeros, zeros, "0.000", "0.000", f"All four answers are wrong: {SILENT}")
    restore(table)
    expect(*start)


@pytest.mark.parametrize(("tick", "restore"), [(click_box, click_button), (press_box, press_button)])
def test_the_notes_path(open_page, url, tick, restore):
    walk_the_notes_path(table_of(open_page(url)), tick, restore)


def test_tab_reaches_the_boxes_and_the_button_in_order_with_a_visible_ring(open_page, url):
    page = open_page(url)
    table = table_of(page)
    box(table, 1).focus()
    for name in ("y1 is right", "y2 is right", "y3 is right", "y4 is right", None):
        focused = page.evaluate_handle("document.activeElement")
        assert focused.get_attribute("aria-label") == name
        page.keyboard.press("Shift")  # the ring belongs to the keyboard
        assert focused.evaluate("(part) => getComputedStyle(part).outlineStyle") == "solid"
        page.keyboard.press("Tab")
    assert focused.inner_text() == "Back to two right"


def test_with_javascript_the_boxes_work_and_nothing_says_otherwise(open_page, url):
    table = table_of(open_page(url))
    assert all(box(table, answer).is_enabled() for answer in (1, 2, 3, 4))
    assert table.get_by_role("button").is_enabled()
    assert table.get_by_text("The boxes work in a browser").count() == 0


def test_a_change_keeps_the_focus_where_it_is(open_page, url):
    page = open_page(url)
    press_box(table_of(page), 2)
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "y2 is right"
    assert column(table_of(page), "value")[1] == "1.000"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 360])
def test_the_table_fits_its_card_and_the_card_fits_the_page(open_page, url, scheme, width):
    page = open_page(url, viewport={"width": width, "height": 800}, color_scheme=scheme)
    for scores in ([1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]):
        for answer, score in enumerate(scores, 1):
            box(table_of(page), answer).set_checked(bool(score))
        card = table_of(page).bounding_box()
        inner = table_of(page).locator("table").bounding_box()
        assert card["x"] >= 0
        assert card["x"] + card["width"] <= width
        assert inner["x"] + inner["width"] <= card["x"] + card["width"]
        assert table_of(page).evaluate("(card) => card.scrollWidth <= card.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(open_page, url, scheme):
    page = open_page(url, color_scheme=scheme)
    contrasts = table_of(page).evaluate("""(card) => {
      const luminance = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((part) => {
          const c = part / 255;
          return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = luminance(getComputedStyle(card).backgroundColor);
      return [...card.querySelectorAll("caption, th, td, p, output, button")].map((part) => {
        const ink = luminance(getComputedStyle(part).color);
        return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
      });
    }""")
    assert len(contrasts) > 25
    assert min(contrasts) >= 4.5


def test_tables_on_one_page_do_not_move_each_other(open_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(sample_page(), encoding="utf-8")
    page = open_page(path.as_uri())
    first, twin, other, full = (table_of(page, place) for place in range(4))
    click_box(first, 2)
    assert column(first, "score") == ["1", "0", "0", "0"]
    assert column(twin, "score") == ["1", "1", "0", "0"]
    assert column(other, "score") == ["0", "0", "0", "1"]
    click_box(twin, 4)
    assert column(twin, "score") == ["1", "1", "0", "1"]
    assert column(first, "score") == ["1", "0", "0", "0"]
    click_button(full)
    assert column(full, "score") == ["1", "1", "0", "0"]
    assert column(other, "score") == ["0", "0", "0", "1"]


def test_without_javascript_the_same_table_can_be_read(open_page, url):
    page = open_page(url, java_script_enabled=False)
    table = table_of(page)
    assert column(table, "value") == ["1.000", "1.000", "−1.000", "−1.000"]
    assert all(box(table, answer).is_disabled() for answer in (1, 2, 3, 4))
    assert table.get_by_text("The boxes work in a browser with JavaScript on").is_visible()


def test_python_and_javascript_draw_the_same_in_all_sixteen_states(browser, open_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(sample_page(), encoding="utf-8")
    page = open_page(path.as_uri())
    seen = set()
    for scores in PATTERNS:
        for answer, score in enumerate(scores, 1):
            box(table_of(page), answer).set_checked(bool(score))
        live = table_of(page).evaluate(SNAPSHOT)
        still = page.evaluate(
            f"""(html) => {{
              const root = document.createElement("div");
              root.innerHTML = html;
              return ({SNAPSHOT})(root);
            }}""",
            _html_table(scores),
        )
        assert live == still
        assert live["checked"] == live["right"] == [score == 1 for score in scores]
        seen.add(str(live))
    assert len(seen) == 16


def test_with_a_kernel_both_sides_follow_each_other(open_page, tmp_path):
    """The module as anywidget loads it, on a model that behaves like one with a kernel behind it."""
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><title>Kernel</title><main></main>", encoding="utf-8")
    page = open_page(path.as_uri())
    module = "data:text/javascript;base64," + base64.b64encode(GroupAdvantagesTable._esm.encode()).decode()
    page.evaluate(
        """async (module) => {
          const widget = (await import(module)).default;
          window.state = { rewards: [1, 1, 1, 0] };
          window.saved = [];
          window.listeners = [];
          window.change = (rewards) => { state = { rewards }; listeners.forEach((listener) => listener()); };
          const model = {
            get: (name) => state[name],
            set: (name, value) => change(value),
            save_changes: () => saved.push(state.rewards),
            on: (event, listener) => event === "change:rewards" && listeners.push(listener),
            off: (event, listener) => { listeners = listeners.filter((one) => one !== listener); },
          };
          window.cleanup = await widget.render({ model, el: document.querySelector("main") });
        }""",
        module,
    )
    table = table_of(page)
    assert column(table, "score") == ["1", "1", "1", "0"]
    click_box(table, 1)
    assert page.evaluate("saved") == [[0, 1, 1, 0]]
    page.evaluate("change([0, 0, 0, 1])")  # the kernel sets rewards
    assert column(table, "value") == ["−0.577", "−0.577", "−0.577", "1.732"]
    assert [box(table, answer).is_checked() for answer in (1, 2, 3, 4)] == [False, False, False, True]
    assert len(page.evaluate("saved")) == 1
    click_button(table)
    assert page.evaluate("saved")[1:] == [[1, 1, 0, 0]]
    page.evaluate("cleanup()")
    assert page.evaluate("listeners.length") == 0


def test_text_that_looks_like_markup_reaches_the_script_unchanged(open_page, tmp_path):
    text = "<!--<script></script></style>"
    esm = f'function render({{ model, el }}) {{ el.textContent = "{text}" + model.get("x"); }}\n'
    html = static_page_html(esm, f"p::after {{ content: '{text}'; }}", {"x": text}, "before")
    path = tmp_path / "page.html"
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><title>x</title>{html}<p>after</p>", encoding="utf-8"
    )
    page = open_page(path.as_uri())
    assert page.locator("[data-grpo-widget]").inner_text() == text + text
    assert page.locator("p").evaluate("(p) => getComputedStyle(p, '::after').content") == f'"{text}"'
