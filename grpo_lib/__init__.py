"""GRPO, formula by formula: the functions that the book derives, and that a trainer calls.

Scores of a group become relative weights (:func:`group_advantages`), ratios are clipped (:func:`importance_ratio`,
:func:`clipped_surrogate`), the reference penalty is subtracted (:func:`k3`), and all token terms become one number
(:func:`aggregate`). :func:`grpo_loss` does the last three in one call.
"""

from grpo_lib.advantages import difficulty_weight, gae, group_advantages, silent_group_probability
from grpo_lib.aggregation import AGGREGATIONS, aggregate
from grpo_lib.algorithms import ALGORITHMS, Algorithm, algorithm
from grpo_lib.kl import k1, k2, k3, kl_divergence, kl_in_reward
from grpo_lib.objective import LossOutput, Objective, grpo_loss
from grpo_lib.ratios import LOG_RATIO_CAP, ClipFractions, clip_fractions, clipped_surrogate, importance_ratio

__version__ = "0.1.0"

__all__ = [
    "AGGREGATIONS",
    "ALGORITHMS",
    "LOG_RATIO_CAP",
    "Algorithm",
    "ClipFractions",
    "LossOutput",
    "Objective",
    "aggregate",
    "algorithm",
    "clip_fractions",
    "clipped_surrogate",
    "difficulty_weight",
    "gae",
    "group_advantages",
    "grpo_loss",
    "importance_ratio",
    "k1",
    "k2",
    "k3",
    "kl_divergence",
    "kl_in_reward",
    "silent_group_probability",
]
