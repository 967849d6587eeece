"""What the project says about itself: the wheel, the versions, the README."""

import contextlib
import io
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import grpo_lib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_the_package_and_the_claims(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "grpo_lib").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == sources | {"grpo_lib/proof/claims.yml"}
    assert wheel.read("grpo_lib/proof/claims.yml") == (ROOT / "book/claims.yml").read_bytes()


def test_a_plain_install_brings_torch_numpy_and_jaxtyping() -> None:
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == {"torch", "numpy", "jaxtyping"}


@pytest.mark.parametrize(
    ("requirements", "version"),
    [
        (PROJECT["dependencies"], "torch==2.11.0"),
        (PROJECT["dependencies"], "torch==2.13.0"),
        (PROJECT["optional-dependencies"]["train"], "transformers==5.17.0"),
        (PROJECT["optional-dependencies"]["train"], "transformers==5.24.0"),
    ],
)
def test_the_ranges_include_the_versions_promised(requirements: list[str], version: str) -> None:
    name, _, number = version.partition("==")
    (requirement,) = [r for r in map(Requirement, requirements) if r.name == name]
    assert number in requirement.specifier


def test_every_pin_lies_in_the_range_of_the_package() -> None:
    pins = {}
    for name in ("requirements-book.txt", "requirements.txt"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if line and not line.startswith(("#", "-")):
                pin = Requirement(line.partition("#")[0])
                (exact,) = pin.specifier
                assert exact.operator == "==", line
                pins[pin.name.lower()] = exact.version
    ranges = [
        *PROJECT["dependencies"],
        *(r for name, extra in PROJECT["optional-dependencies"].items() if name != "gym" for r in extra),
    ]
    for requirement in map(Requirement, ranges):
        assert pins[requirement.name.lower()] in requirement.specifier, requirement


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE).group(1)
    assert PROJECT["version"] == grpo_lib.__version__ == citation["version"] == latest


README = (ROOT / "README.md").read_text(encoding="utf-8")
CORE, TRAINING = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readme_prints_what_it_says() -> None:
    (expected,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert len(CORE.splitlines()) <= 11
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(CORE, "README.md", "exec"), {})
    assert printed.getvalue() == expected


@pytest.mark.filterwarnings("ignore:step 1. all answers")
def test_the_readme_trains_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    assert len(TRAINING.splitlines()) <= 10
    (steps,) = re.findall(r"max_steps=(\d+)", TRAINING)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(TRAINING.replace(f"max_steps={steps}", "max_steps=1"), "README.md", "exec"), names)
    trained = AutoModelForCausalLM.from_pretrained("trained").state_dict()
    assert all(value.equal(trained[name]) for name, value in names["model"].state_dict().items())  # type: ignore[attr-defined]


def test_the_readme_trains_as_the_stored_run_did() -> None:
    from grpo_lib.training import GRPOConfig
    from grpo_lib.training.finetune import settings

    (call,) = re.findall(r"GRPOConfig\(.*?\)", TRAINING)
    assert eval(call, {"GRPOConfig": GRPOConfig}) == settings("cpu")
