"""One table: GRPO and its relatives as rows of settings."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from grpo_lib._validate import require_choice
from grpo_lib.advantages import Baseline, Scale, Std, gae, group_advantages
from grpo_lib.kl import kl_in_reward
from grpo_lib.objective import Objective

Credit = Literal["answer", "return", "gae"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the table: how scores become advantages, and the objective that they enter.

    Attributes:
        source: where the row is from: paper, year, arXiv number, place.
        objective: settings of :func:`grpo_lib.grpo_loss`. β is a run's choice and 0 in every row.
        baseline, scale, std: settings of :func:`grpo_lib.group_advantages`.
        credit: ``"answer"``, one advantage an answer; ``"return"``, one a token from the KL penalty inside the reward (REINFORCE++);
            ``"gae"``, one a token from a critic's values (PPO).
        beta_in_reward: KL strength where the penalty sits in the reward (credit ``"return"`` or ``"gae"``).
        gamma, lam: discount and λ of :func:`grpo_lib.gae`, for credit ``"gae"``, and for ``"return"``, where every value
            is 0.
    """

    source: str
    objective: Objective = Objective()  # noqa: RUF009 (frozen)
    baseline: Baseline = "mean"
    scale: Scale = "group"
    std: Std = "population"
    credit: Credit = "answer"
    beta_in_reward: float = 0.0
    gamma: float = 1.0
    lam: float = 1.0

    def __post_init__(self) -> None:
        for name, choices in (("baseline", Baseline), ("scale", Scale), ("std", Std), ("credit", Credit)):
            require_choice(name, getattr(self, name), get_args(choices))
        if self.credit == "return" and (self.baseline not in ("batch", "none") or self.scale == "group"):
            raise ValueError(
                f"credit='return' gives each token its own return, and an answer's tokens are not a group: "
                f"baseline={self.baseline!r} must be 'batch' or 'none', scale={self.scale!r} 'batch', 'batch-residual' "
                f"or 'none'."
            )
        in_reward = self.credit != "answer"
        if in_reward and self.objective.beta > 0:
            raise ValueError(
                f"this algorithm keeps the KL penalty in the reward: pass beta_in_reward={self.objective.beta} instead of beta."
            )
        if not in_reward and self.beta_in_reward != 0:
            raise ValueError(
                f"this algorithm keeps the KL penalty in the loss: pass beta={self.beta_in_reward} instead of beta_in_reward."
            )
        if not 0 <= self.beta_in_reward < float("inf"):
            raise ValueError(f"beta_in_reward must be >= 0 and finite, got {self.beta_in_reward}.")

    def advantages(
        self,
        rewards: Shaped[Tensor, "..."],
        num_generations: int | None = None,
        *,
        group_ids: Tensor | Sequence[Hashable] | None = None,
        eps: float = 1e-4,
        valid: Shaped[Tensor, "..."] | None = None,
        per_token_kl: Float[Tensor, "N T"] | None = None,
        completion_mask: Shaped[Tensor, "N T"] | None = None,
        values: Float[Tensor, "N T"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Advantages of a batch by this row's rule.

        Args:
            rewards, num_generations, group_ids, eps, valid: as in :func:`grpo_lib.group_advantages`. Rows that keep the KL in the
                reward take rewards of shape (N,) and no ``valid``.
            per_token_kl: KL estimate of each token (k1), shape (N, T), for credit ``"return"`` and ``"gae"``. With credit
                ``"return"`` it also says what is counted: given (zeros will do), mean and standard deviation run over the valid
                tokens, as in the paper; without it, over the answers.
            completion_mask: shape (N, T), True at valid tokens, for the same rows.
            values: the critic's value of the prefix before each token, shape (N, T), for credit ``"gae"``.

        Returns:
            Shape of rewards for credit ``"answer"``; (N, T) for ``"gae"``, and for ``"return"`` when per_token_kl is given.
            PPO's advantages are not whitened.

        Raises:
            ValueError: an argument that this row needs is missing, or one that it does not use is given.
        """
        if self.credit == "answer" or (self.credit == "return" and per_token_kl is None):
            self._require_absent(per_token_kl=per_token_kl, completion_mask=completion_mask, values=values)
            if self.beta_in_reward > 0:
                raise ValueError(
                    f"beta_in_reward={self.beta_in_reward} > 0 needs per_token_kl and completion_mask."
                )
            return group_advantages(
                rewards,
                num_generations,
                group_ids=group_ids,
                baseline=self.baseline,
                scale=self.scale,
                std=self.std,
                eps=eps,
                valid=valid,
            )
        self._require_absent(valid=valid)
        if completion_mask is None or (self.credit == "gae" and values is None):
            missing = "completion_mask" if completion_mask is None else "values"
            raise ValueError(
                f"advantages of credit {self.credit!r} need {missing}: shape (N, T), one entry a token."
            )
        if per_token_kl is None:
            if self.beta_in_reward > 0:
                raise ValueError(f"beta_in_reward={self.beta_in_reward} > 0 needs per_token_kl.")
            per_token_kl = torch.zeros(completion_mask.shape, device=rewards.device)
        token_rewards = kl_in_reward(rewards, per_token_kl, completion_mask, beta=self.beta_in_reward)
        if self.credit == "return":
            self._require_absent(values=values)
            values = torch.zeros_like(token_rewards)
        per_token = gae(token_rewards, values, completion_mask, gamma=self.gamma, lam=self.lam)
        if self.credit == "gae":
            return per_token
        return group_advantages(
            per_token, baseline=self.baseline, scale=self.scale, std=self.std, eps=eps, valid=completion_mask
        )

    def _require_absent(self, **arguments: object) -> None:
        for name, value in arguments.items():
            if value is not None:
                raise ValueError(
                    f"{name} was given, but advantages of credit {self.credit!r} do not use it here: drop it."
                )


ALGORITHMS: dict[str, Algorithm] = {
    "grpo": Algorithm(source="DeepSeekMath (2024), arXiv:2402.03300, equation 3 and section 4.1.2"),
    "dr_grpo": Algorithm(
        source="Understanding R1-Zero-Like Training (2025), arXiv:2503.20783, section 3.2",
        scale="none",
        objective=Objective(aggregation="seq-mean-token-sum-norm"),
    ),
    "rloo": Algorithm(
        source="Kool et al. (2019); Back to Basics (2024), arXiv:2402.14740, section 2.3; here inside GRPO's clipped objective",
        baseline="leave-one-out",
        scale="none",
    ),
    "dapo": Algorithm(
        source="DAPO (2025), arXiv:2503.14476, equations 10 and 12; without its dynamic sampling",
        objective=Objective(epsilon_high=0.28, aggregation="token-mean"),
    ),
    "gspo": Algorithm(
        source="Group Sequence Policy Optimization (2025), arXiv:2507.18071, equations 5 to 7, published clip range",
        objective=Objective(epsilon=3e-4, epsilon_high=4e-4, importance_sampling_level="sequence"),
    ),
    "cispo": Algorithm(
        source="MiniMax-M1 (2025), arXiv:2506.13585; the cap is a run's choice",
        objective=Objective(surrogate="cispo", aggregation="token-mean"),
    ),
    "reinforce_plus_plus": Algorithm(
        source="REINFORCE++ (2025, v9), arXiv:2501.03262, equations 4 and 5",
        baseline="batch",
        scale="batch",
        credit="return",
        objective=Objective(aggregation="token-mean"),
    ),
    "reinforce_plus_plus_baseline": Algorithm(
        source="REINFORCE++ (2025, v9), arXiv:2501.03262, equations 6 to 8",
        scale="batch-residual",
        objective=Objective(kl_estimator="k2", aggregation="token-mean"),
    ),
    "ppo": Algorithm(
        source="Proximal Policy Optimization (2017), arXiv:1707.06347, equations 7, 11 and 12",
        credit="gae",
        objective=Objective(aggregation="token-mean"),
    ),
}
"""All rows by name. A new algorithm is one more row."""


def algorithm(name: str, **overrides: Any) -> Algorithm:
    """A row of :data:`ALGORITHMS`, with some of its settings replaced.

    Args:
        name: key of the table.
        **overrides: fields of :class:`Algorithm` or of :class:`Objective`, for example ``epsilon=0.1``, ``beta=0.04``,
            ``std="sample"``, ``max_completion_length=512``.

    Returns:
        Row with its ``.advantages(rewards, ...)``, ``.objective`` and ``.source``.

    Raises:
        ValueError: an unknown name or setting, or settings that do not go together.

    Chapter: relatives/variants.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"algorithm {name!r} is unknown: choose one of {', '.join(ALGORITHMS)}.")
    row = ALGORITHMS[name]
    own = {f.name for f in fields(Algorithm)} - {"objective"}
    settings = {f.name for f in fields(Objective)}
    if unknown := set(overrides) - own - settings:
        raise ValueError(f"unknown settings {sorted(unknown)}: choose from {sorted(own | settings)}.")
    objective = replace(row.objective, **{k: v for k, v in overrides.items() if k in settings})
    return replace(row, objective=objective, **{k: v for k, v in overrides.items() if k in own})
