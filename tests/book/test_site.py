"""The built site (make site) as a reader gets it: links and figures, then every page in a browser without a network."""

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page, Route

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build/html"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [f"{TOC['root']}.html"] + [
    f"{chapter['file']}.html" for part in TOC["parts"] for chapter in part["chapters"]
]
GENERATED = {"genindex.html", "search.html"}

pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").exists(),
    reason="the site is not built, its pages are not tested: run make site",
)


@functools.cache
def parsed(page: str) -> BeautifulSoup:
    return BeautifulSoup((SITE / page).read_text(encoding="utf-8"), "html.parser")


# Without a browser


def test_the_site_has_the_pages_of_the_table_of_contents_and_no_others() -> None:
    built = {path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")}
    assert {page for page in built if not page.startswith("_")} == {*PAGES, *GENERATED}


@pytest.mark.parametrize("page", [*PAGES, *sorted(GENERATED)])
def test_every_internal_link_and_anchor_leads_somewhere(page: str) -> None:
    broken = []
    for tag in parsed(page).find_all(["a", "img", "link", "script"]):
        target = tag.get("href") or tag.get("src")
        if not target or urlsplit(target).scheme:
            continue
        parts = urlsplit(urljoin(page, target))
        path = unquote(parts.path)
        if not (SITE / path).is_file():
            broken.append(target)
        elif parts.fragment and path.endswith(".html"):
            anchor = unquote(parts.fragment)
            if not parsed(path).find(attrs={"id": anchor}) and not parsed(path).find(attrs={"name": anchor}):
                broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_has_an_alternative_text_that_is_no_path(page: str) -> None:
    for image in parsed(page).find_all("img"):
        alt = image.get("alt", "")
        assert alt.strip(), f"no alt text: {image}"
        assert not re.search(r"\.(png|jpe?g|svg|gif|webp)$|/", alt), f"a path as alt text: {image}"


@pytest.mark.parametrize("page", PAGES)
def test_no_markup_is_left_raw(page: str) -> None:
    article = BeautifulSoup(str(parsed(page).find("article")), "html.parser")
    for tag in article.find_all(["code", "pre", "script", "style"]):
        tag.decompose()
    for tag in article.find_all(class_="math"):
        tag.decompose()
    raw = re.findall(r"\{[a-z:]+\}`|\$\$|\\\(|\\\[|:::|^\s*#{2,} ", article.get_text(), re.MULTILINE)
    assert not raw


# In a browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site, served on 127.0.0.1."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Visit:
    """A page, all that went wrong on it, and each request that would have left the site."""

    page: Page
    errors: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)


def visit(browser: Browser, base: str, page: str, color_scheme: str, javascript: bool = True) -> Visit:
    """Open a page with the network off but for the site itself, and wait until its formulas are set."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme=color_scheme, java_script_enabled=javascript
    )
    result = Visit(context.new_page())

    def only_the_site(route: Route) -> None:
        if route.request.url.startswith((base, "data:", "blob:")):
            route.continue_()
        else:
            result.blocked.append(route.request.url)
            route.abort()

    context.route("**/*", only_the_site)
    result.page.on("pageerror", lambda error: result.errors.append(f"page error: {error}"))
    result.page.on(
        "console",
        lambda message: (
            result.errors.append(f"console {message.type}: {message.text} ({message.location['url']})")
            if message.type in ("error", "warning")
            else None
        ),
    )
    result.page.on("requestfailed", lambda request: result.errors.append(f"request failed: {request.url}"))
    result.page.on(
        "response",
        lambda response: (
            result.errors.append(f"status {response.status}: {response.url}")
            if response.status >= 400
            else None
        ),
    )
    result.page.goto(base + page, wait_until="load")
    if javascript:
        result.page.evaluate("() => window.MathJax?.startup?.promise")
    return result


def unset_formulas(page: Page) -> list[str]:
    """Formulas that MathJax left as source, could not read, or set with an unknown command in red."""
    return page.evaluate(
        """() => [
          ...[...document.querySelectorAll(".math")].filter((e) => !e.querySelector("mjx-container")),
          ...document.querySelectorAll("mjx-merror, [data-mjx-error], mjx-mtext[style*='color: red']"),
        ].map((e) => (e.closest("mjx-container") ?? e).textContent)"""
    )


def luminance(page: Page, property_: str, element: str) -> float:
    """Relative luminance (0 black, 1 white) of a colour of the first such element."""
    color = page.evaluate(f"() => getComputedStyle(document.querySelector({element!r})).{property_}")
    channels = [int(x) / 255 for x in re.findall(r"\d+", color)[:3]]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("page", [*PAGES, *sorted(GENERATED)])
def test_a_page_reads_well_without_a_network(
    browser: Browser, address: str, page: str, color_scheme: str
) -> None:
    opened = visit(browser, address, page, color_scheme)
    try:
        assert not opened.blocked
        assert not opened.errors
        assert not unset_formulas(opened.page)
        assert opened.page.evaluate("document.documentElement.dataset.theme") == color_scheme
        background = luminance(opened.page, "backgroundColor", "body")
        ink = luminance(opened.page, "color", "article, .bd-article, .bd-search-container")
        assert (background > ink) == (color_scheme == "light")
        assert (max(background, ink) + 0.05) / (min(background, ink) + 0.05) >= 7
        for width in (1280, 768, 390):
            opened.page.set_viewport_size({"width": width, "height": 900})
            too_wide = opened.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert too_wide <= 0, f"scrolls sideways by {too_wide} px at a width of {width} px"
        opened.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        images = opened.page.evaluate(
            "() => [...document.images].filter((i) => !i.naturalWidth).map((i) => i.src)"
        )
        assert not images
        assert not opened.blocked
        assert not opened.errors
    finally:
        opened.page.context.close()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_from_disk(browser: Browser, page: str) -> None:
    opened = visit(browser, f"{SITE.as_uri()}/", page, "light")
    try:
        assert not opened.blocked
        # The theme preloads its icon font in a way that browsers refuse on disk; its style sheet then loads it all the same.
        assert not [error for error in opened.errors if "/webfonts/" not in error]
        assert opened.page.evaluate("async () => (await document.fonts.load('900 1em FontAwesome')).length")
        assert not unset_formulas(opened.page)
    finally:
        opened.page.context.close()


def test_the_search_finds_a_page(browser: Browser, address: str) -> None:
    opened = visit(browser, address, "search.html?q=advantage", "light")
    try:
        opened.page.wait_for_selector("#search-results li a")
        assert not opened.blocked
        assert not opened.errors
    finally:
        opened.page.context.close()


def test_the_checks_see_what_they_look_for(browser: Browser, tmp_path: Path) -> None:
    """A page with an error, a request outside and a broken formula is reported as such."""
    (tmp_path / "bad.html").write_text(
        "<!doctype html><html><body><div class='math'>\\(x</div><div class='math'><mjx-container><mjx-merror>bad"
        "</mjx-merror></mjx-container></div><img src='https://example.org/x.png'><script>undefined_name()</script>"
        "<script>console.error('no')</script></body></html>",
        encoding="utf-8",
    )
    opened = visit(browser, f"{tmp_path.as_uri()}/", "bad.html", "light")
    try:
        assert opened.blocked == ["https://example.org/x.png"]
        assert any("undefined_name" in error for error in opened.errors)
        assert any(error.startswith("console error: no") for error in opened.errors)
        assert unset_formulas(opened.page) == ["\\(x", "bad"]
    finally:
        opened.page.context.close()
