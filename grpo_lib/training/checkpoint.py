"""Checkpoints that are whole or not there: written under another name, flushed to the disk, renamed."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")
_PARTIAL = ".partial-"


def write_whole(folder: Path, step: int, write: Callable[[Path], None], *, keep: int) -> Path:
    """Write a checkpoint, and then remove the oldest ones.

    A process that is killed at any moment leaves a folder whose name starts with ``.partial-``, which is removed at the next call, or
    the whole checkpoint.

    Args:
        folder: of the run.
        step: after which it is taken.
        write: fills an empty folder.
        keep: checkpoints that stay, at least 1.

    Returns:
        The checkpoint's folder, ``folder/checkpoint-STEP``.

    Raises:
        OSError: the disk is full, or the folder cannot be written; the checkpoints that were there are still there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(stale)
    partial, whole = folder / f"{_PARTIAL}{step}", folder / f"checkpoint-{step:06}"
    partial.mkdir()
    try:
        write(partial)
        for path in partial.rglob("*"):
            if path.is_file():
                _flush(path)
        _flush(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(whole)
    _flush(folder)
    for old in sorted(_found(folder), key=_step)[:-keep]:
        shutil.rmtree(old)
    return whole


def latest(folder: Path) -> Path | None:
    """The last whole checkpoint of a run, or None."""
    return max(_found(folder), key=_step, default=None)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that it holds either the old text or the new one, whatever happens."""
    partial = path.with_name(f"{_PARTIAL}{path.name}")
    partial.write_text(text, encoding="utf-8")
    _flush(partial)
    partial.replace(path)
    _flush(path.parent)


def _found(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
