"""Nothing is lost: a run that stops, is killed or fills the disk goes on from its last checkpoint."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lib.training import GRPOConfig, GRPOTrainer, small_llama

pytestmark = pytest.mark.filterwarnings(
    "ignore:step .* every answer was cut off"
)  # a fresh model rarely stops

QUESTIONS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]
ROOT = Path(__file__).parents[2]


def digits(completions, **columns):
    return [sum(map(text.count, "02468")) / 4 for text in completions]


def trainer(folder=None, reward=digits, rows=QUESTIONS, **settings) -> GRPOTrainer:
    model, tokenizer = small_llama("0123456789+=", hidden_size=32, num_layers=1)
    settings = {
        "prompts_per_step": 3,
        "num_generations": 4,
        "max_completion_length": 4,
        "max_steps": 4,
        "learning_rate": 1e-3,
        "output_dir": None if folder is None else str(folder),
    } | settings
    return GRPOTrainer(model, reward, GRPOConfig(**settings), train_dataset=rows, processing_class=tokenizer)


def run(folder=None, *, resume=False, **settings) -> GRPOTrainer:
    t = trainer(folder, **settings)
    t.train(progress=False, resume=resume)
    return t


def same(a: GRPOTrainer, b: GRPOTrainer) -> None:
    """Weights, optimizer and metrics are equal to the last bit; only times differ."""
    for (name, x), y in zip(a.model.named_parameters(), b.model.parameters(), strict=True):
        assert torch.equal(x, y), name
    for x, y in zip(
        a.optimizer.state_dict()["state"].values(), b.optimizer.state_dict()["state"].values(), strict=True
    ):
        assert all(torch.equal(x[key], y[key]) for key in x)
    assert timeless(a.log_history) == timeless(b.log_history)


def timeless(history):
    return [{k: v for k, v in row.items() if k != "step_time"} for row in history]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": 0.1, "num_iterations": 2},
        {"lr_scheduler_type": "cosine", "warmup_steps": 1},
        {"micro_batch_size": 4, "algorithm": "dapo"},
    ],
    ids=["plain", "reference and two updates", "schedule", "micro-batches"],
)
def test_two_steps_and_two_more_are_four_steps(tmp_path, settings):
    whole = run(tmp_path / "whole", **settings)
    part = trainer(tmp_path / "parts", save_steps=2, **settings)
    for _ in range(2):
        part.step()
    part.save_checkpoint()
    same(run(tmp_path / "parts", resume=True, **settings), whole)


def test_a_checkpoint_loads_in_plain_transformers(tmp_path):
    t = run(tmp_path)
    folder = tmp_path / "checkpoint-000004"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for name, value in t.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert AutoTokenizer.from_pretrained(folder)("1+2=").input_ids == t.tokenizer("1+2=").input_ids


def test_the_last_checkpoints_are_kept(tmp_path):
    run(tmp_path, max_steps=7, save_steps=2)
    assert names(tmp_path) == ["checkpoint-000006", "checkpoint-000007", "metrics.jsonl"]
    run(tmp_path, max_steps=12, save_steps=2, save_total_limit=3, resume=True)
    assert names(tmp_path) == [f"checkpoint-{n:06}" for n in (8, 10, 12)] + ["metrics.jsonl"]


def test_a_run_can_be_made_longer(tmp_path):
    run(tmp_path, max_steps=2)
    same(run(tmp_path, max_steps=4, resume=True), run())


def test_resuming_a_finished_run_does_nothing(tmp_path):
    first = run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint-*/*")}
    same(run(tmp_path, resume=True), first)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint-*/*")} == before


def test_resume_without_a_checkpoint_starts_from_the_beginning(tmp_path):
    same(run(tmp_path / "new", resume=True), run())


def test_metrics_are_one_line_a_step_and_never_twice(tmp_path):
    run(tmp_path, max_steps=2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(
            '{"step": 3, "reward": 0.25}\n'
        )  # a step after the checkpoint, before the process was killed
    t = run(tmp_path, resume=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == t.log_history


def test_metrics_without_a_value_are_null(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(tmp_path, reward=lambda completions, **columns: [None] * len(completions), max_steps=1)
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["reward"] is None


def test_a_half_written_checkpoint_is_not_taken_for_one(tmp_path):
    run(tmp_path, max_steps=2)
    stale = tmp_path / ".partial-3"
    stale.mkdir()
    (stale / "model.safetensors").write_bytes(b"half")
    same(run(tmp_path, resume=True), run())
    assert not stale.exists()


def test_an_error_while_writing_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    t = run(tmp_path, max_steps=2)
    monkeypatch.setattr(t.tokenizer, "save_pretrained", lambda folder: 1 / 0)
    t.step()
    with pytest.raises(ZeroDivisionError):
        t.save_checkpoint()
    assert names(tmp_path) == ["checkpoint-000002", "metrics.jsonl"]


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(tmp_path):
    calls = []

    def interrupted(completions, **columns):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return digits(completions)

    interrupted.__name__ = "digits"
    handler = signal.getsignal(signal.SIGINT)
    t = trainer(tmp_path, interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"after step 2 of 4.*train\(resume=True\) goes on"):
        t.train(progress=False)
    assert signal.getsignal(signal.SIGINT) is handler
    assert names(tmp_path) == ["checkpoint-000002", "metrics.jsonl"]
    same(run(tmp_path, resume=True), run())


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def interrupted(completions, **columns):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the step went on")

    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, interrupted).train(progress=False)
    assert names(tmp_path) == ["metrics.jsonl"]


@pytest.mark.bad_input
def test_what_does_not_fit_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(ValueError, match=r"holds checkpoint-000004 of an earlier run: pass resume=True"):
        run(tmp_path)
    with pytest.raises(ValueError, match=r"other settings: learning_rate=0.001 \(now 0.01\)"):
        run(tmp_path, resume=True, learning_rate=0.01)
    with pytest.raises(ValueError, match=r"reward functions \['digits'\], now \['len'\]"):
        run(tmp_path, resume=True, reward=len)
    with pytest.raises(ValueError, match="other questions"):
        run(tmp_path, resume=True, rows=QUESTIONS[1:])
    with pytest.raises(ValueError, match="needs output_dir"):
        run(resume=True)
    with pytest.raises(ValueError, match="needs output_dir"):
        GRPOConfig(save_steps=1)
    with pytest.raises(ValueError, match="no output_dir"):
        trainer().save_checkpoint()
    for wrong in ({"save_steps": 0, "output_dir": "x"}, {"save_total_limit": 0}, {"warmup_steps": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            GRPOConfig(**wrong)


# ------------------------------------------------------------------------------------------------ in another process

SCRIPT = """
import sys
sys.path[:0] = {path!r}
from test_checkpoint import run, trainer, weights_of
{body}
"""


def weights_of(t: GRPOTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in t.model.parameters()])


def start(body: str) -> subprocess.Popen:
    code = SCRIPT.format(path=[str(ROOT), str(Path(__file__).parent)], body=textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


KILLS = int(os.environ.get("KILLS", "3"))


def test_killed_at_any_moment_it_resumes_and_ends_as_if_nothing_had_happened(tmp_path):
    moments = random.Random(0)
    body = f"run({str(tmp_path)!r}, max_steps=40, save_steps=1, resume=True)"
    for _ in range(KILLS):
        process = start(body)
        while not (tmp_path / "metrics.jsonl").is_file() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = start(body)
    _, errors = done.communicate()
    assert done.returncode == 0, errors
    assert not [name for name in names(tmp_path) if name.startswith(".partial")]
    finished = run(tmp_path, max_steps=40, save_steps=1, resume=True)
    same(finished, run(max_steps=40))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 40


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of the file size")
def test_a_full_disk_keeps_the_last_checkpoint_and_the_run_goes_on(tmp_path):
    process = start(f"""
        import resource, warnings
        t = trainer({str(tmp_path)!r}, max_steps=3, save_steps=1)
        t.step(); t.save_checkpoint()
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                t.train(progress=False)
            except OSError as error:
                print("at the end:", error)
        print("on the way:", *[w.message for w in caught])
        print("steps:", len(t.log_history))
        """)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "steps: 3" in output
    assert "no checkpoint was taken at step 2, the run goes on" in output
    assert "at the end: the checkpoint could not be written" in output or "at the end: [Errno 27]" in output
    assert names(tmp_path) == ["checkpoint-000001", "metrics.jsonl"]
    same(run(tmp_path, max_steps=3, resume=True), run(max_steps=3))
