"""The SymPy statements say what the book says, and agree with numbers and with the library."""

import random
from fractions import Fraction

import pytest
import sympy
import torch

import grpo_lib
from grpo_lib.proof import check
from grpo_lib.proof import symbolic as sy


@pytest.mark.parametrize("size", [1, 2, 5])
def test_group_mse_at_numbers_is_the_mean_of_squares(size):
    rng = random.Random(size)
    values = [Fraction(rng.randint(-9, 9), 7) for _ in range(size)]
    by_hand = sum((v - Fraction(2, 3)) ** 2 for v in values) / size
    numbers = {
        R: sympy.Rational(v.numerator, v.denominator) for R, v in zip(sy.scores(size), values, strict=True)
    }
    check("x-mse", sy.group_mse(size).subs(numbers).subs(sy.b, sympy.Rational(2, 3)), by_hand)


@pytest.mark.parametrize("size", [1, 2, 6])
def test_group_mse_of_any_size_is_the_same_formula(size):
    R = sy.scores(size)
    filled = sy.group_mse().subs({sy.K: size, sy.S: sum(R), sy.Q: sum(v**2 for v in R)})
    check("x-mse", filled, sy.group_mse(size))


def test_the_mean_is_the_only_minimum_of_the_group_mse():
    mse = sy.group_mse()
    check("x-derivative", mse.diff(sy.b), 2 * (sy.b - sy.S / sy.K))
    check("x-second", mse.diff(sy.b, 2), 2)
    check("x-only", sympy.solve(mse.diff(sy.b), sy.b), [sy.S / sy.K])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_residual_from_the_mean_is_the_shrunk_leave_one_out_residual(size):
    R = sy.scores(size)
    for value, alone in zip(R, sy.leave_one_out(R), strict=True):
        check("x-loo", value - sy.mean(R), sympy.Rational(size - 1, size) * alone)


def test_leave_one_out_agrees_with_the_library():
    values = [sympy.Rational(n, 4) for n in (3, 1, 0, 4)]
    rewards = torch.tensor([[0.75, 0.25, 0.0, 1.0]], dtype=torch.float64)
    ours = grpo_lib.group_advantages(rewards, baseline="leave-one-out", scale="none")
    check("x-loo", ours[0], sy.leave_one_out(values))


@pytest.mark.parametrize(("size", "call"), [(0, sy.scores), (1, lambda n: sy.leave_one_out(sy.scores(n)))])
def test_groups_that_are_too_small_are_refused(size, call):
    with pytest.raises(ValueError, match="at least"):
        call(size)


@pytest.mark.parametrize(("name", "case"), sy.clip_cases().items(), ids=sy.clip_cases())
def test_clipped_term_equals_its_branches_in_every_case(name, case):
    term = sy.clipped_term().subs(case)
    check("x-branches", term, sy.clipped_branches().subs(case))
    unclipped = (sy.r * sy.A).subs(case)
    if name in ("above, A > 0", "below, A < 0"):
        check("x-never-above", term - unclipped, 0, relation="<")
    else:
        check("x-never-above", term, unclipped)


@pytest.mark.parametrize("r", ["0.5", "0.8", "1", "1.2", "1.3"])
@pytest.mark.parametrize("A", [-2, 0, 1])
def test_clipped_term_and_branches_agree_with_the_library(r, A):
    at = {sy.r: sympy.Rational(r), sy.A: A, sy.epsilon: sympy.Rational(1, 5)}
    ratio, advantage = (
        torch.tensor([[float(r)]], dtype=torch.float64),
        torch.tensor([float(A)], dtype=torch.float64),
    )
    ours = grpo_lib.clipped_surrogate(ratio, advantage, epsilon=0.2)[0, 0]
    check("x-term", ours, sy.clipped_term().subs(at))
    check("x-branches", ours, sy.clipped_branches().subs(at))


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl_estimators_agree_with_the_library(name):
    current, reference = sympy.Rational(22, 100), sympy.Rational(11, 100)
    ours = getattr(grpo_lib, name)(
        torch.tensor([0.22], dtype=torch.float64).log(), torch.tensor([0.11], dtype=torch.float64).log()
    )
    check("x-kl", ours[0], sy.at_probabilities(getattr(sy, name)(), current, reference))


def test_k3_of_the_running_example_and_its_derivative():
    at = sympy.Rational(22, 100), sympy.Rational(11, 100)
    check("x-k3", sy.at_probabilities(sy.k3(), *at), sympy.log(2) - sympy.Rational(1, 2))
    check("x-slope", sy.at_probabilities(sy.k3().diff(sy.log_pi), *at), sympy.Rational(1, 2))
    x = sympy.Symbol("x", positive=True)
    check("x-form", sy.at_probabilities(sy.k3(), sympy.Integer(1), x), x - 1 - sympy.log(x))
