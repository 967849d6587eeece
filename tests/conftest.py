"""Settings and options of all tests."""

import os
import shutil
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

CHECKED = ["_validate", "advantages", "ratios", "kl", "aggregation", "objective", "algorithms", "training"]

settings.register_profile("seeded", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("seeded")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--typecheck",
        action="store_true",
        help="check the annotations of the core and of grpo_lib.training, shapes included, at run time; "
        'leave the bad inputs out with -m "not bad_input"',
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "bad_input: gives a function what its annotations rule out")
    if config.getoption("typecheck"):
        from jaxtyping import install_import_hook

        if "grpo_lib" in sys.modules:
            raise pytest.UsageError("--typecheck came too late: grpo_lib is already imported.")
        # As in PEP 484, an int may stand where a float is expected.
        modules = [f"grpo_lib.{name}" for name in CHECKED]
        install_import_hook(modules, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """A headless Chromium: $CHROMIUM, else one on the path. REQUIRE_BROWSER=1 makes its absence a failure, not a skip."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        (pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip)(
            "no browser, so no page was opened: formulas, scripts, dark mode, narrow screens and requests that leave the site "
            f"are not tested. Install one of {', '.join(names)}, or set CHROMIUM to the path of one."
        )
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()
