"""What holds the book to its claims: :func:`check`, and the SymPy statements in :mod:`grpo_lib.proof.symbolic`."""

from grpo_lib.proof.check import CheckFailed, check

__all__ = ["CheckFailed", "check"]
