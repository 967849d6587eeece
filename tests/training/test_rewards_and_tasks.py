"""Reading answers, and questions with answers."""

import json
from fractions import Fraction

import pytest

from grpo_lib.training import (
    exact_match,
    integer_format,
    last_number,
    load_rows,
    load_task,
    number_match,
    random_reward,
)
from grpo_lib.training.tasks import columns


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 1,000", 1000),
        ("The total is 72 clips, altogether.", 72),
        ("The answer is 72.", 72),
        ("profit is $70,000.00 overall", 70000),
        (r"\boxed{8,000}", 8000),
        (r"\boxed{$9{,}500}", 9500),
        ("#### -3", -3),
        ("\N{MINUS SIGN}3", -3),
        ("1/2", Fraction(1, 2)),
        ("- 1/2", Fraction(-1, 2)),
        ("3.50", Fraction(7, 2)),
        ("50%", Fraction(1, 2)),
        ("3 + 4 = 7", 7),
        ("nan", None),
        ("inf", None),
        ("", None),
        (",", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("1/0", None),
    ],
)
def test_the_last_number_is_read_exactly_and_nothing_is_evaluated(text, number):
    assert last_number(text) == number


def test_strict_and_lenient_readings_tell_format_from_skill():
    texts, answers = ["7", " 7\n", "It is 7.", "8", "seven"], ["7"] * 5
    assert exact_match(texts, answers) == [1, 1, 0, 0, 0]
    assert number_match(texts, answers) == [1, 1, 1, 0, 0]
    assert integer_format(texts) == [1, 1, 0, 1, 0]


def test_an_answer_that_is_no_number_is_an_error_and_never_right():
    with pytest.raises(ValueError, match="'seven' of a question is no number"):
        number_match(["7"], ["seven"])


def test_random_reward_does_not_read_and_is_seeded():
    first, again = random_reward(0.5, seed=1), random_reward(0.5, seed=1)
    values = first(["x"] * 400)
    assert values == again(["7"] * 400)
    assert 0.4 < sum(values) / 400 < 0.6
    with pytest.raises(ValueError, match="between 0 and 1"):
        random_reward(1.5)


@pytest.mark.parametrize("style", ["chat", "plain"])
def test_held_out_sums_share_no_unordered_pair_with_training(style):
    task = load_task("addition", style=style)

    def pair(row):
        text = row["prompt"] if style == "plain" else row["prompt"][-1]["content"]
        a, b = (int(x) for x in text.rstrip(" =").split("+"))
        assert str(a + b) == row["answer"]
        return tuple(sorted((a, b)))

    train, held = {pair(row) for row in task.train}, [pair(row) for row in task.eval]
    assert len(held) == len(set(held)) == 48
    assert not train & set(held)
    if style == "chat":  # the solved examples in the chat are no questions of either part
        shown = {m["content"] for m in task.train[0]["prompt"][:-1] if m["role"] == "user"}
        asked = {row["prompt"][-1]["content"] for row in task.train + task.eval}
        assert len(shown) == 2 and not shown & asked


def test_the_split_is_seeded():
    assert load_task("addition", seed=1) == load_task("addition", seed=1)
    assert load_task("addition", seed=1).eval != load_task("addition", seed=2).eval


def test_columns_repeat_for_the_answers_of_a_question():
    rows = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}]
    assert columns(rows, 2) == {"prompts": ["a", "a", "b", "b"], "answer": [1, 1, 2, 2]}


def test_own_questions_from_a_list_or_a_file(tmp_path):
    rows = [
        {"prompt": "1+1=", "answer": "2"},
        {"prompt": [{"role": "user", "content": "2+2="}], "answer": "4"},
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    assert load_rows(rows) == load_rows(file) == load_rows(str(file)) == rows


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no questions"),
        ([{"answer": "2"}], "row 0 has no prompt"),
        ([{"prompt": ""}], "row 0 has no prompt"),
        ([{"prompt": "a", "answer": "2"}, {"prompt": "b"}], "row 1 has the keys"),
    ],
)
def test_bad_questions_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        load_rows(rows)


@pytest.mark.bad_input
def test_a_line_that_is_not_json_is_named(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": \n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        load_rows(file)


@pytest.mark.bad_input
def test_unknown_tasks_are_refused():
    with pytest.raises(ValueError, match=r"'subtraction' is unknown.*addition"):
        load_task("subtraction")
    with pytest.raises(ValueError, match="held_out must lie between 1 and 5"):
        load_task("addition", high=2, held_out=6)
