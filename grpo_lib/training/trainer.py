"""The training loop: Algorithm 1 of DeepSeekMath, one step at a time."""

import copy
import hashlib
import json
import math
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpo_lib._validate import require_count
from grpo_lib.advantages import group_advantages
from grpo_lib.algorithms import Algorithm, algorithm
from grpo_lib.objective import Objective, grpo_loss
from grpo_lib.training import checkpoint
from grpo_lib.training.evaluation import evaluate
from grpo_lib.training.logprobs import completion_logprobs, disable_dropout
from grpo_lib.training.rewards import RewardFunction, function_name, last_text, score
from grpo_lib.training.rollout import Rollout, sample_completions
from grpo_lib.training.tasks import Row, columns, load_rows


@dataclass(frozen=True)
class GRPOConfig:
    """Settings of a run. Objective fields left at None keep the value of the algorithm's row.

    Attributes:
        algorithm: row of :data:`grpo_lib.ALGORITHMS` whose advantages are one number an answer.
        epsilon, epsilon_high, delta, beta, kl_estimator, importance_sampling_level, aggregation, surrogate: as in
            :class:`grpo_lib.Objective`.
        std: ``"population"`` or ``"sample"`` standard deviation of the group.
        advantage_eps: δ of :func:`grpo_lib.group_advantages`.
        prompts_per_step: questions a step.
        num_generations: K, answers a question, at least 2.
        max_completion_length: longest answer in tokens; also L of ``seq-mean-token-sum-norm``.
        temperature: of the sampler, and of all log-probabilities.
        num_iterations: μ, updates on each batch.
        micro_batch_size: answers in one forward and backward pass, a multiple of num_generations; all at once if None.
        max_steps: steps, each with new answers.
        learning_rate, weight_decay, max_grad_norm: of AdamW and the clipping of its gradient.
        lr_scheduler_type, warmup_steps: how the learning rate changes over the updates, by transformers' names: ``"constant"``
            (after the warm-up), ``"linear"``, ``"cosine"``, …
        mask_truncated_completions: leave answers that were cut off out of the loss.
        reward_weights: weight of each reward function; all 1 if None.
        eval_steps: evaluate on eval_dataset every so many steps; never if None.
        bf16: run the model under bf16 autocast, weights and losses stay float32. An option, not a shortcut: log-probabilities
            change in the second decimal.
        seed: of the order of the questions and of the samples.
        output_dir: folder of the run, for its checkpoints and its metrics (metrics.jsonl, one line a step); nothing is stored if None.
        save_steps: take a checkpoint every so many steps; with output_dir, one is taken at the end and after Ctrl-C in any case.
        save_total_limit: checkpoints that are kept, the last ones.
    """

    algorithm: str = "grpo"
    epsilon: float | None = None
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float | None = None
    kl_estimator: str | None = None
    importance_sampling_level: str | None = None
    aggregation: str | None = None
    surrogate: str | None = None
    std: str = "population"
    advantage_eps: float = 1e-4
    prompts_per_step: int = 8
    num_generations: int = 8
    max_completion_length: int = 256
    temperature: float = 1.0
    num_iterations: int = 1
    micro_batch_size: int | None = None
    max_steps: int = 100
    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "constant"
    warmup_steps: int = 0
    mask_truncated_completions: bool = False
    reward_weights: list[float] | None = None
    eval_steps: int | None = None
    bf16: bool = False
    seed: int = 0
    output_dir: str | None = None
    save_steps: int | None = None
    save_total_limit: int = 2

    def __post_init__(self) -> None:
        for name in (
            "prompts_per_step",
            "num_generations",
            "max_completion_length",
            "num_iterations",
            "max_steps",
            "save_total_limit",
        ):
            require_count(name, getattr(self, name))
        if self.num_generations < 2:
            raise ValueError(
                "num_generations must be at least 2: an answer is compared with the others of its group."
            )
        if self.micro_batch_size is not None and (
            self.micro_batch_size < 1 or self.micro_batch_size % self.num_generations
        ):
            raise ValueError(
                f"micro_batch_size={self.micro_batch_size} is no multiple of num_generations={self.num_generations}: a "
                f"micro-batch holds whole groups, which share their prompt."
            )
        for name in ("eval_steps", "save_steps"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        if self.save_steps is not None and self.output_dir is None:
            raise ValueError(
                f"save_steps={self.save_steps} needs output_dir: the folder for the checkpoints."
            )
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be >= 0, got {self.warmup_steps}.")
        for name in ("learning_rate", "temperature", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be > 0 and finite, got {getattr(self, name)}.")
        if self.row().credit != "answer":
            raise ValueError(
                f"algorithm={self.algorithm!r} needs per-token rewards or a critic, which this trainer does not have: choose "
                f"one whose advantages are one number an answer, such as 'grpo', 'dr_grpo', 'rloo', 'dapo', 'gspo' or 'cispo'."
            )

    def row(self) -> Algorithm:
        """The algorithm with this run's settings."""
        names = {f.name for f in fields(Objective)} & {f.name for f in fields(self)}
        overrides = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return algorithm(self.algorithm, std=self.std, **overrides)


class GRPOTrainer:
    """Trains a language model with group-relative advantages.

    Args:
        model: a causal language model of transformers; it is trained in place, and its dropout is set to 0. Its weights should be
            float32.
        reward_funcs: one function or several, ``f(completions, **columns) -> list[float | None]``: completions are texts, columns
            are the dataset's, repeated to match, ``prompts`` among them. None or NaN leaves an answer out; with several functions the
            others still count.
        args: settings.
        train_dataset: rows with the key ``prompt``; see :func:`grpo_lib.training.load_rows`.
        eval_dataset: the same, held out; scored by the reward functions.
        processing_class: the tokenizer.

    Raises:
        ValueError: settings or data that cannot work; nothing has run then.

    Chapter: practice/train-a-small-model.
    """

    def __init__(
        self,
        model: nn.Module,
        reward_funcs: RewardFunction | Sequence[RewardFunction],
        args: GRPOConfig | None = None,
        *,
        train_dataset: str | Path | Iterable[Mapping[str, Any]],
        eval_dataset: str | Path | Iterable[Mapping[str, Any]] | None = None,
        processing_class: Any,
    ) -> None:
        self.model, self.tokenizer, self.args = model, processing_class, args or GRPOConfig()
        self.reward_funcs = list(reward_funcs) if isinstance(reward_funcs, Sequence) else [reward_funcs]
        self.reward_weights = self.args.reward_weights or [1.0] * len(self.reward_funcs)
        if len(self.reward_weights) != len(self.reward_funcs):
            raise ValueError(
                f"{len(self.reward_weights)} reward_weights for {len(self.reward_funcs)} reward functions."
            )
        self.train_rows = load_rows(train_dataset)
        self.eval_rows = None if eval_dataset is None else load_rows(eval_dataset)
        if len(self.train_rows) < self.args.prompts_per_step:
            raise ValueError(
                f"prompts_per_step={self.args.prompts_per_step} but train_dataset has {len(self.train_rows)} questions: "
                f"lower prompts_per_step, or give more questions."
            )
        trainable = [p for p in model.parameters() if p.requires_grad]
        if not trainable:
            raise ValueError("the model has no trainable parameter: every requires_grad is False.")
        if trainable[0].dtype in (torch.float16, torch.bfloat16):
            warnings.warn(
                f"the weights are {trainable[0].dtype}: steps of size {self.args.learning_rate} mostly round away. Load the model "
                f"in float32.",
                stacklevel=2,
            )
        disable_dropout(model)
        self.algorithm = self.args.row()
        self.reference = None
        if self.algorithm.objective.beta > 0:
            self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            trainable, lr=self.args.learning_rate, weight_decay=self.args.weight_decay
        )
        self.scheduler = _scheduler(self.args, self.optimizer)
        self.generator = torch.Generator(model.device).manual_seed(self.args.seed)
        self.order = random.Random(self.args.seed)
        self._upcoming: list[int] = []
        self.log_history: list[dict[str, float]] = []
        self.samples: list[tuple[str, str, float]] = []

    def train(self, *, progress: bool = True, resume: bool = False) -> list[dict[str, float]]:
        """Run all steps that are left.

        With ``output_dir`` nothing is lost: metrics are appended to metrics.jsonl step by step, checkpoints are taken every
        ``save_steps`` steps and at the end, and Ctrl-C finishes the running step, takes one, and stops (a second Ctrl-C stops at once).

        Args:
            progress: whether to print the objective in use and to show a bar with reward, KL and length.
            resume: go on from the last checkpoint in ``output_dir``: weights, optimizer, learning rate, step, order of the questions
                and random numbers of the samples. On a CPU the run goes on bit for bit as if it had not stopped. Give the trainer
                the model that the run began with: it is also its reference. A reward function with random numbers of its own is not
                restored. Without a checkpoint the run starts from the beginning.

        Returns:
            The metrics of each step, by TRL's names (also in ``log_history``): a table that plots as it is.

        Raises:
            ValueError: ``output_dir`` holds checkpoints and resume is False, or they are of a run with other settings or questions.
            KeyboardInterrupt: after Ctrl-C, when the checkpoint has been taken.
        """
        from tqdm.auto import tqdm

        self._open_folder(resume)
        if progress:
            print(describe(self.args))
        args, saved = self.args, len(self.log_history)
        bar = tqdm(total=args.max_steps, initial=saved, disable=not progress)
        with bar, _deferred_interrupt() as interrupted:
            while len(self.log_history) < args.max_steps and not interrupted():
                metrics = self.step()
                self._append_metrics()
                bar.update()
                shown = {"reward": "reward", "kl": "kl", "length": "completions/mean_length"}
                bar.set_postfix({k: f"{metrics[v]:.3g}" for k, v in shown.items() if v in metrics})
                done = len(self.log_history)
                if args.save_steps and done % args.save_steps == 0 and done < args.max_steps:
                    saved = done if self._try_to_save() else saved
        if args.output_dir is not None and saved < len(self.log_history):
            self.save_checkpoint()
        if interrupted():
            kept = (
                "" if args.output_dir is None else f" Saved in {args.output_dir}; train(resume=True) goes on."
            )
            raise KeyboardInterrupt(f"stopped after step {len(self.log_history)} of {args.max_steps}.{kept}")
        return self.log_history

    def save_checkpoint(self) -> Path:
        """Take a checkpoint now: a folder that transformers loads as a model, with what a resumed run needs beside it.

        Returns:
            The folder, ``output_dir/checkpoint-STEP``.

        Raises:
            ValueError: no ``output_dir``.
            OSError: the disk is full, or the folder cannot be written; earlier checkpoints stay.
        """
        if self.args.output_dir is None:
            raise ValueError("there is no output_dir: set it in the settings.")
        state = {
            "args": asdict(self.args),
            "questions": _fingerprint(self.train_rows),
            "rewards": [function_name(function) for function in self.reward_funcs],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": self.generator.get_state(),
            "order": self.order.getstate(),
            "upcoming": self._upcoming,
            "log_history": self.log_history,
        }

        def write(folder: Path) -> None:
            from safetensors import SafetensorError

            try:
                self.model.save_pretrained(folder, max_shard_size="1TB")
                self.tokenizer.save_pretrained(folder)
                torch.save(state, folder / _STATE)
            except (
                RuntimeError,
                ValueError,
                SafetensorError,
            ) as error:  # how some writers say that the disk is full
                raise OSError(f"the checkpoint could not be written: {error}") from error

        step = len(self.log_history)
        return checkpoint.write_whole(
            Path(self.args.output_dir), step, write, keep=self.args.save_total_limit
        )

    def _try_to_save(self) -> bool:
        """A checkpoint on the way: a full disk must not end the run."""
        try:
            self.save_checkpoint()
        except OSError as error:
            warnings.warn(
                f"no checkpoint was taken at step {len(self.log_history)}, the run goes on: {error}. Earlier checkpoints are kept.",
                stacklevel=3,
            )
            return False
        return True

    def _open_folder(self, resume: bool) -> None:
        if self.args.output_dir is None:
            if resume:
                raise ValueError("resume=True needs output_dir: the folder of the run.")
            return
        folder = Path(self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        last = checkpoint.latest(folder)
        if not self.log_history:
            if last is not None and not resume:
                raise ValueError(
                    f"{folder} holds {last.name} of an earlier run: pass resume=True to go on, or choose another output_dir."
                )
            if last is not None:
                self._load_checkpoint(last)
        lines = "".join(map(_line, self.log_history))
        checkpoint.replace_text(
            folder / _METRICS, lines
        )  # without the steps after the checkpoint, which are made again

    def _load_checkpoint(self, folder: Path) -> None:
        state = torch.load(folder / _STATE, map_location="cpu", weights_only=True)
        free = {"max_steps", "output_dir", "save_steps", "save_total_limit", "eval_steps"}
        now = asdict(self.args)
        if other := {k: v for k, v in state["args"].items() if k not in free and v != now.get(k)}:
            told = ", ".join(f"{k}={v!r} (now {now.get(k)!r})" for k, v in other.items())
            raise ValueError(
                f"{folder} is of a run with other settings: {told}. Resume with the same, or choose another output_dir."
            )
        if state["questions"] != _fingerprint(self.train_rows):
            raise ValueError(
                f"{folder} is of a run on other questions: give the same train_dataset, or choose another output_dir."
            )
        rewards = [function_name(function) for function in self.reward_funcs]
        if state["rewards"] != rewards:
            raise ValueError(
                f"{folder} is of a run with the reward functions {state['rewards']}, now {rewards}: give the same, or choose another "
                f"output_dir."
            )
        _load_weights(self.model, folder)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.generator.set_state(state["generator"])
        version, numbers, gauss = state["order"]
        self.order.setstate((version, tuple(numbers), gauss))
        self._upcoming, self.log_history = state["upcoming"], state["log_history"]

    def _append_metrics(self) -> None:
        if self.args.output_dir is not None:
            with (Path(self.args.output_dir) / _METRICS).open("a", encoding="utf-8") as file:
                file.write(_line(self.log_history[-1]))

    def step(self) -> dict[str, float]:
        """One round of Algorithm 1: sample, score, update. Appends its metrics to ``log_history`` and returns them."""
        started = time.perf_counter()
        args = self.args

        # Sample K answers to each question from the current policy, which is the old policy from here on.
        rows = self._next_rows()
        with self._autocast():
            rollout = sample_completions(
                self.model,
                self.tokenizer,
                [row["prompt"] for row in rows],
                num_generations=args.num_generations,
                max_completion_length=args.max_completion_length,
                temperature=args.temperature,
                generator=self.generator,
            )

        # Score them, and compare each answer with its group.
        rewards, valid, metrics = self._score(rows, rollout)
        advantages = self.algorithm.advantages(
            rewards, num_generations=args.num_generations, valid=valid, eps=args.advantage_eps
        )
        mask = rollout.completion_mask & valid[:, None]
        if args.mask_truncated_completions:
            mask = mask & rollout.finished[:, None]

        # Freeze old and reference log-probabilities, then update μ times on this batch.
        old = None if args.num_iterations == 1 else self._frozen_logps(self.model, rollout)
        ref = None if self.reference is None else self._frozen_logps(self.reference, rollout)
        for _ in range(args.num_iterations):
            metrics |= self._update(rollout, advantages, mask, old, ref)

        metrics |= self._rollout_metrics(rollout, mask)
        metrics["step_time"] = time.perf_counter() - started
        if args.eval_steps and self.eval_rows and (len(self.log_history) + 1) % args.eval_steps == 0:
            metrics |= self.evaluate()
        self.log_history.append({"step": len(self.log_history) + 1, **metrics})
        self._warn_if_nothing_can_be_learned(metrics)
        return self.log_history[-1]

    def evaluate(self) -> dict[str, float]:
        """Greedy and sampled accuracy on eval_dataset: an answer is right where the first reward function gives 1 or more."""
        if self.eval_rows is None:
            raise ValueError("there is no eval_dataset to evaluate on.")
        rates = evaluate(
            self.model,
            self.tokenizer,
            self.eval_rows,
            self.reward_funcs[0],
            max_completion_length=self.args.max_completion_length,
            num_samples=self.args.num_generations,
            temperature=self.args.temperature,
            seed=self.args.seed,
            progress=False,
        )
        return {f"eval/{name}": rate.value for name, rate in rates.items()}

    def _next_rows(self) -> list[Row]:
        """The next questions: the dataset in random order, over and over."""
        count = self.args.prompts_per_step
        while len(self._upcoming) < count:
            self._upcoming += self.order.sample(range(len(self.train_rows)), len(self.train_rows))
        taken, self._upcoming = self._upcoming[:count], self._upcoming[count:]
        return [self.train_rows[i] for i in taken]

    def _score(self, rows: list[Row], rollout: Rollout) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Rewards (N,), which of them are valid (N,), and their metrics."""
        table = columns(rows, self.args.num_generations)
        values = torch.tensor(
            [score(function, rollout.texts, table) for function in self.reward_funcs], dtype=torch.float32
        )
        weights = torch.tensor(self.reward_weights)[:, None]
        known = ~values.isnan()
        valid = known.any(dim=0)
        rewards = (weights * values.nan_to_num(0.0)).sum(dim=0)
        groups = rewards.reshape(len(rows), -1)
        known_groups = [group[keep] for group, keep in zip(groups, valid.reshape(groups.shape), strict=True)]
        spread = torch.tensor([group.std().item() if len(group) > 1 else 0.0 for group in known_groups])
        silent = (
            group_advantages(rewards, self.args.num_generations, scale="none", valid=valid).reshape(
                groups.shape
            )
            == 0
        ).all(dim=1)
        metrics = {
            "reward": rewards[valid].mean().item() if valid.any() else math.nan,
            "reward_std": spread.mean().item(),
            "frac_reward_zero_std": silent.float().mean().item(),
        }
        for function, row, keep in zip(self.reward_funcs, values, known, strict=True):
            metrics[f"rewards/{function_name(function)}/mean"] = (
                row[keep].mean().item() if keep.any() else math.nan
            )
        prompts = table["prompts"]
        self.samples = [
            (last_text(p), t, r) for p, t, r in zip(prompts, rollout.texts, rewards.tolist(), strict=True)
        ]
        return rewards.to(self.model.device), valid.to(self.model.device), metrics

    @torch.no_grad()
    def _frozen_logps(self, model: nn.Module, rollout: Rollout) -> Tensor:
        parts = [
            self._logps(model, rollout, questions)
            for questions in self._micro_batches(len(rollout.prompt_ids))
        ]
        return torch.cat(parts)

    def _logps(self, model: nn.Module, rollout: Rollout, questions: Tensor) -> Tensor:
        answers = self._answers(questions)
        with self._autocast():
            return completion_logprobs(
                model,
                rollout.prompt_ids[questions],
                rollout.prompt_mask[questions],
                rollout.completion_ids[answers],
                rollout.completion_mask[answers],
                num_generations=self.args.num_generations,
                temperature=self.args.temperature,
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.args.bf16)

    def _update(
        self, rollout: Rollout, advantages: Tensor, mask: Tensor, old: Tensor | None, ref: Tensor | None
    ) -> dict[str, float]:
        """One step of the optimizer on the whole batch, in micro-batches whose losses add up to the batch's."""
        objective = self.algorithm.objective
        normalizer = mask.sum() if objective.aggregation == "token-mean" else mask.any(dim=1).sum()
        # Without a KL term a group whose advantages are all 0 adds exactly 0 to loss and gradient: it is skipped.
        live = torch.arange(len(rollout.prompt_ids), device=advantages.device)
        if objective.beta == 0:
            live = live[(advantages.reshape(len(live), -1) != 0).any(dim=1)]
        self.optimizer.zero_grad(set_to_none=False)
        for p in self.optimizer.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        sums: dict[str, float] = {}
        for questions in self._micro_batches(len(live)):
            questions = live[questions]
            answers = self._answers(questions)
            loss, metrics = grpo_loss(
                self._logps(self.model, rollout, questions),
                advantages[answers],
                mask[answers],
                old_per_token_logps=None if old is None else old[answers],
                ref_per_token_logps=None if ref is None else ref[answers],
                objective=objective,
                normalizer=normalizer,
            )
            loss.backward()
            tokens = metrics.pop("num_tokens").item()
            metrics.pop("num_completions")
            sums["loss"] = sums.get("loss", 0.0) + loss.item()
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + value.item() * tokens
        learning_rate = self.scheduler.get_last_lr()[0]
        norm = torch.nn.utils.clip_grad_norm_(
            self.optimizer.param_groups[0]["params"], self.args.max_grad_norm
        )
        if not norm.isfinite():
            raise FloatingPointError(
                f"the gradient's norm is {norm.item()} at step {len(self.log_history) + 1}: the weights were left as they are. "
                f"Lower the learning rate, or look at the rewards."
            )
        self.optimizer.step()
        self.scheduler.step()
        tokens = max(1, int(mask.sum()))  # skipped groups are on-policy: they add 0 to every mean
        loss = sums.pop("loss", 0.0)
        return {
            "loss": loss,
            "grad_norm": norm.item(),
            "learning_rate": learning_rate,
            **{name: value / tokens for name, value in sums.items()},
        }

    def _micro_batches(self, count: int) -> tuple[Tensor, ...]:
        size = self.args.micro_batch_size
        index = torch.arange(count, device=self.model.device)
        return index.split(size // self.args.num_generations if size else max(1, count)) if count else ()

    def _answers(self, questions: Tensor) -> Tensor:
        k = self.args.num_generations
        return (questions[:, None] * k + torch.arange(k, device=questions.device)).reshape(-1)

    def _rollout_metrics(self, rollout: Rollout, mask: Tensor) -> dict[str, float]:
        lengths = rollout.completion_mask.sum(dim=1).float()
        tokens = int(rollout.completion_mask.sum())
        seen = self.log_history[-1]["num_tokens"] if self.log_history else 0
        return {
            "completions/mean_length": lengths.mean().item(),
            "completions/min_length": lengths.min().item(),
            "completions/max_length": lengths.max().item(),
            "completions/clipped_ratio": (~rollout.finished).float().mean().item(),
            "entropy": (rollout.entropy * rollout.completion_mask).sum().item() / tokens,
            "num_tokens": seen + tokens + int(rollout.prompt_mask.sum()) * self.args.num_generations,
        }

    def _warn_if_nothing_can_be_learned(self, metrics: dict[str, float]) -> None:
        if metrics["completions/clipped_ratio"] == 1.0:
            warnings.warn(
                f"step {len(self.log_history)}: every answer was cut off at max_completion_length="
                f"{self.args.max_completion_length}. Raise it, or use the chat template that taught the model to stop.",
                stacklevel=3,
            )
        if metrics["frac_reward_zero_std"] == 1.0:
            warnings.warn(
                f"step {len(self.log_history)}: all answers to each question scored the same (mean reward {metrics['reward']:g}), "
                f"so the scores teach nothing. The questions are too hard or too easy, or the reward reads the answers wrongly: "
                f"look at trainer.samples.",
                stacklevel=3,
            )


_STATE = "trainer_state.pt"
_METRICS = "metrics.jsonl"


def _scheduler(args: GRPOConfig, optimizer: torch.optim.Optimizer) -> Any:
    from transformers import get_scheduler

    name = "constant_with_warmup" if args.lr_scheduler_type == "constant" else args.lr_scheduler_type
    return get_scheduler(
        name,
        optimizer,
        num_warmup_steps=args.warmup_steps,
        num_training_steps=args.max_steps * args.num_iterations,
    )


def _load_weights(model: nn.Module, folder: Path) -> None:
    if hasattr(model, "peft_config"):
        from peft import load_peft_weights, set_peft_model_state_dict

        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))
    else:
        from safetensors.torch import load_model

        load_model(model, folder / "model.safetensors")


def _fingerprint(rows: list[Row]) -> str:
    """Tells one list of questions from another."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=repr).encode()).hexdigest()


def _line(metrics: dict[str, float]) -> str:
    """A line of JSON, which has no NaN."""
    return json.dumps({name: None if value != value else value for name, value in metrics.items()}) + "\n"


@contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C is only noted, so that a step is whole; the second interrupts at once."""
    noted = False

    def note(number: int, frame: Any) -> None:
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True
        print("\nCtrl-C: the running step is finished first; once more to stop at once.", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        signal.signal(signal.SIGINT, before)


def describe(args: GRPOConfig) -> str:
    """One line: the objective in use, and how it differs from the paper's GRPO and from TRL's default."""
    row = args.row()
    ours = {**asdict(row.objective), "baseline": row.baseline, "scale": row.scale, "std": row.std}
    del ours["max_completion_length"]
    common = {
        "epsilon_high": None,
        "delta": None,
        "surrogate": "clip",
        "kl_estimator": "k3",
        "baseline": "mean",
        "scale": "group",
    }
    level = {"importance_sampling_level": "token"}
    paper = common | level | {"beta": 0.04, "aggregation": "seq-mean-token-mean"}
    trl = common | level | {"epsilon": 0.2, "beta": 0.0, "aggregation": "token-mean", "std": "sample"}

    def differences(other: dict[str, Any]) -> str:
        found = [f"{k} {ours[k]} instead of {v}" for k, v in other.items() if ours[k] != v]
        return ", ".join(found) or "nothing"

    shown = ", ".join(f"{k} {v}" for k, v in ours.items() if v is not None)
    return (
        f"Objective: {args.algorithm} ({shown}). Other than in DeepSeekMath: {differences(paper)}. "
        f"Other than TRL's default: {differences(trl)}."
    )
