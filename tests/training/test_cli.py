"""The command line, as a user would type it."""

import json
import subprocess
import sys

import pytest
import yaml

from grpo_lib.training import GRPOConfig, cli, load_task, small_llama

pytestmark = pytest.mark.filterwarnings("ignore:step .* (all answers|every answer)")
TINY = [
    "--max_steps",
    "2",
    "--prompts_per_step",
    "2",
    "--num_generations",
    "2",
    "--max_completion_length",
    "3",
]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """A small model and a plain task in the place of SmolLM2 and its chat; runs go to a folder of their own."""
    asked = []

    def load_model(name, device):
        asked.append(name)
        return small_llama("0123456789+=", hidden_size=32, num_layers=1)

    monkeypatch.setattr(cli, "load_model", load_model)
    monkeypatch.setattr(cli, "load_task", lambda name: load_task(name, high=3, style="plain", held_out=4))
    monkeypatch.chdir(tmp_path)
    return asked


@pytest.fixture
def own(tmp_path):
    rows = [{"prompt": f"{a}+1=", "answer": a + 1} for a in range(4)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my.py").write_text(
        "def score(completions, answer):\n    return [len(text) / 3 for text in completions]\nNUMBER = 1\n"
    )


def test_train_with_nothing_but_its_name_takes_the_defaults_that_learn(monkeypatch, small):
    seen = []
    monkeypatch.setattr(
        cli, "GRPOTrainer", lambda model, reward, config, **data: seen.append(config) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])
    assert small == ["smollm2-135m"]
    assert seen == [
        cli.finetune.settings("cpu").__class__(
            **{**vars(cli.finetune.settings("cpu")), "output_dir": "runs/addition"}
        )
    ]


def test_a_run_leaves_its_folder(tmp_path, capsys):
    assert cli.main(["train", *TINY]) == 0
    folder = tmp_path / "runs" / "addition"
    assert {"checkpoint-000002", "metrics.jsonl", "settings.yaml", "samples.yaml", "curve.png"} == {
        path.name for path in folder.iterdir()
    }
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert (settings["max_steps"], settings["num_generations"], settings["model"]) == (2, 2, "smollm2-135m")
    samples = yaml.safe_load((folder / "samples.yaml").read_text())
    assert len(samples) == 4
    assert samples[0].keys() == {"question", "completion", "reward"}
    output = capsys.readouterr().out
    assert "greedy" in output and "→" in output and "pass@8" in output


def test_the_settings_of_a_run_run_again_and_flags_win(tmp_path):
    cli.main(["train", *TINY])
    settings = str(tmp_path / "runs" / "addition" / "settings.yaml")
    assert cli.main(["train", settings, "--output_dir", "again", "--max_steps", "1"]) == 0
    assert (tmp_path / "again" / "checkpoint-000001").is_dir()
    again = yaml.safe_load((tmp_path / "again" / "settings.yaml").read_text())
    assert again["num_generations"] == 2


def test_a_number_like_1e_5_in_yaml_is_a_number(tmp_path):
    (tmp_path / "run.yaml").write_text("learning_rate: 1e-5\nbf16: false\n")
    _, config = cli._read([str(tmp_path / "run.yaml")])
    assert config.learning_rate == 1e-5


def test_resume_goes_on(tmp_path, capsys):
    cli.main(["train", *TINY])
    assert cli.main(["train", *TINY]) == 1
    assert "pass resume=True to go on, or choose another output_dir" in capsys.readouterr().err
    assert cli.main(["train", *TINY, "--max_steps", "3", "--resume"]) == 0
    assert len((tmp_path / "runs/addition/metrics.jsonl").read_text().splitlines()) == 3


def test_own_questions_and_own_reward(tmp_path, own):
    assert cli.main(["train", *TINY, "--train_file", "mine.jsonl", "--reward", "my.py:score"]) == 0
    lines = (tmp_path / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()
    assert "rewards/score/mean" in json.loads(lines[0])
    assert (
        cli.main(
            [
                "train",
                *TINY,
                "--train_file",
                "mine.jsonl",
                "--output_dir",
                "exact",
                "--eval_file",
                "mine.jsonl",
            ]
        )
        == 0
    )
    assert "rewards/exact_match/mean" in (tmp_path / "exact" / "metrics.jsonl").read_text()


def test_eval_prints_rates(capsys, small):
    assert cli.main(["eval", "some/model", "--num_samples", "2", "--max_completion_length", "3"]) == 0
    assert small == ["some/model"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["greedy", "sampled", "pass@2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--train_file", "mine.jsonl", "--task", "addition"], "choose one"),
        (["train", "--train_file", "none.jsonl"], "none.jsonl"),
        (["train", "none.yaml"], "none.yaml"),
        (["train", "bad.yaml"], r"unknown settings ['learningrate']"),
        (["train", "--num_generations", "1"], "at least 2"),
        (["train", "--train_file", "mine.jsonl", "--reward", "my.py"], "expected FILE.py:FUNCTION"),
        (["train", "--train_file", "mine.jsonl", "--reward", "my.py:NUMBER"], "has no function 'NUMBER'"),
        (["train", "--train_file", "bare.jsonl"], "have no 'answer'"),
    ],
)
def test_bad_input_is_one_line_and_status_1(tmp_path, own, capsys, arguments, message):
    (tmp_path / "bad.yaml").write_text("learningrate: 1\n")
    (tmp_path / "bare.jsonl").write_text('{"prompt": "1+1="}\n')
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    def stopped(arguments):
        raise KeyboardInterrupt("stopped after step 3 of 9. Saved in runs/x; train(resume=True) goes on.")

    monkeypatch.setattr(cli, "train", stopped)
    assert cli.main(["train"]) == 130
    assert "--resume goes on" in capsys.readouterr().err


def test_help_explains_every_setting(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    assert "longest answer in tokens" in text
    for name in vars(GRPOConfig()):
        assert f"--{name}" in text


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "grpo_lib.training"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "grpo-lib train" in done.stdout
    assert (
        subprocess.run([sys.executable, "-m", "grpo_lib.training", "fly"], capture_output=True).returncode
        == 1
    )
