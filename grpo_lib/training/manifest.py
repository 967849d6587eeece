"""What a stored result was made on."""

import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

import torch


def machine(device: str = "cpu") -> dict[str, Any]:
    """Device, versions and commit, for the manifest of a stored result.

    Args:
        device: ``"cpu"`` or ``"cuda"``.

    Returns:
        A dictionary that JSON can hold: ``device`` in words, ``versions``, and ``commit``, with a + if files differ from it and
        empty outside a repository.
    """
    import transformers

    return {
        "device": torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "commit": _commit(),
    }


def peak_memory_gb(device: str = "cpu") -> float:
    """The most memory used so far, in GB: of the process, or on the GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
