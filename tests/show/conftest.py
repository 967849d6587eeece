"""A Chromium for the tests that need one. Set REQUIRE_BROWSER=1 to fail, not skip, where there is none."""

import os
import shutil
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """A headless Chromium: $CHROMIUM, else chromium or google-chrome on the path."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        complaint = f"no browser: install one of {', '.join(names)}, or set CHROMIUM to its path"
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip)(complaint)
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()
