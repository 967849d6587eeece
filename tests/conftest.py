"""Settings and options of all tests."""

import sys

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
