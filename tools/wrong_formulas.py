"""Wrong formulas, one at a time in a copy of the library, and the checks of the book that catch each of them.

python tools/wrong_formulas.py      runs them all and writes book/wrong_formulas.yml, which the ledger page shows (make wrong-formulas)
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "grpo_lib"
BOOK = ROOT / "book"
RESULT = BOOK / "wrong_formulas.yml"


@dataclass(frozen=True)
class Wrong:
    """A wrong formula: in a file of grpo_lib, right becomes wrong, and a check of the chapter must fail."""

    file: str
    right: str
    wrong: str
    chapter: str


WRONG = {
    "sample for population std": Wrong(
        "advantages.py",
        'degrees = count if std == "population" else count - 1',
        "degrees = count - 1",
        "objective/group-advantage",
    ),
    "own score left in the leave-one-out mean": Wrong(
        "advantages.py",
        "residual = residual * count / (count - 1).clamp(min=1)",
        "residual = residual",
        "objective/group-advantage",
    ),
    "ratio inverted": Wrong(
        "ratios.py",
        "masked_log_ratio(per_token_logps, old_per_token_logps.detach(), mask",
        "masked_log_ratio(old_per_token_logps.detach(), per_token_logps, mask",
        "objective/ratio-and-clipping",
    ),
    "max for min": Wrong(
        "ratios.py",
        "return torch.minimum(free * advantages, clipped * advantages)",
        "return torch.maximum(free * advantages, clipped * advantages)",
        "objective/ratio-and-clipping",
    ),
    "clip without min": Wrong(
        "ratios.py",
        "return torch.minimum(free * advantages, clipped * advantages)",
        "return clipped * advantages",
        "objective/ratio-and-clipping",
    ),
    "k3 reversed": Wrong(
        "kl.py",
        "log_x = _ref_log_ratio(logps, ref_logps).clamp(max=LOG_RATIO_CAP)",
        "log_x = (-_ref_log_ratio(logps, ref_logps)).clamp(max=LOG_RATIO_CAP)",
        "objective/reference-kl",
    ),
    "k1 with the other sign": Wrong(
        "kl.py",
        "return 0 - _ref_log_ratio(logps, ref_logps)",
        "return _ref_log_ratio(logps, ref_logps)",
        "objective/reference-kl",
    ),
    "β added": Wrong(
        "objective.py",
        "terms = terms - objective.beta * penalty",
        "terms = terms + objective.beta * penalty",
        "objective/full-objective",
    ),
    "token mean for answer mean": Wrong(
        "aggregation.py",
        'if mode == "token-mean":',
        'if mode in ("token-mean", "seq-mean-token-mean"):',
        "objective/full-objective",
    ),
    "end token masked out": Wrong(
        "training/rollout.py",
        "return ~ended_before, ",
        "return ~ended_before & ~is_end, ",
        "objective/full-objective",
    ),
    "leave-one-out divided by K": Wrong(
        "advantages.py",
        "residual = residual * count / (count - 1).clamp(min=1)",
        "residual = residual * (count + 1) / count",
        "estimator/leave-one-out",
    ),
    "no root in the difficulty weight": Wrong(
        "advantages.py",
        "weight = (chance * (s * (K - s)).sqrt()).sum(dim=-1) / K",
        "weight = (chance * (s * (K - s))).sum(dim=-1) / K",
        "estimator/std-weights",
    ),
    "length left out of the answer mean": Wrong(
        "aggregation.py",
        "total = total / lengths.clamp(min=1)",
        "total = total / lengths.max().clamp(min=1)",
        "estimator/length-weights",
    ),
    "k3 with the gradient of k2": Wrong(
        "kl.py",
        "return (torch.expm1(log_x) - log_x).clamp(min=0)",
        "return (torch.expm1(log_x) - log_x).detach() + log_x**2 / 2 - (log_x**2 / 2).detach()",
        "estimator/kl-value-and-gradient",
    ),
    "λ left out of the advantage recursion": Wrong(
        "advantages.py",
        "residual[:, t] + gamma * lam * running",
        "residual[:, t] + gamma * running",
        "relatives/ppo",
    ),
}


def library_copy(folder: Path, change: Wrong | None = None) -> Path:
    """A copy of grpo_lib in the folder, with the change made, which must be possible in exactly one place."""
    shutil.copytree(LIBRARY, folder / "grpo_lib", ignore=shutil.ignore_patterns("__pycache__"))
    if change is not None:
        path = folder / "grpo_lib" / change.file
        source = path.read_text(encoding="utf-8")
        places = source.count(change.right)
        if places != 1:
            raise ValueError(
                f"{change.file} has {places} places with {change.right!r}, expected 1: update WRONG."
            )
        path.write_text(source.replace(change.right, change.wrong), encoding="utf-8")
    return folder


def run_cells(notebook: Path, folder: Path) -> dict[str, object]:
    """What tools/run_cells.py reports of a notebook that is run with the library in the folder."""
    settings = {"PYTHONPATH": str(folder), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "run_cells.py"), str(notebook)],
        env={**os.environ, **settings, "PYTHONUTF8": "1", "TQDM_DISABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def failing_checks(wrong: Wrong) -> list[str]:
    """The ids of the checks of its chapter that fail, in the order of the page."""
    with tempfile.TemporaryDirectory() as folder:
        found = run_cells(BOOK / f"{wrong.chapter}.ipynb", library_copy(Path(folder), wrong))
    return list(dict.fromkeys(found["failed"]))


def main() -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checks = list(pool.map(failing_checks, WRONG.values()))
    table = [
        {"wrong": name, "chapter": wrong.chapter, "checks": found}
        for (name, wrong), found in zip(WRONG.items(), checks, strict=True)
    ]
    head = "# Wrong formulas and the checks that catch them. Written by: make wrong-formulas\n\n"
    RESULT.write_text(
        head + yaml.safe_dump(table, allow_unicode=True, sort_keys=False, width=120), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
