"""A bar while a command works, drawn on terminals only; `rich` is loaded only then."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def show_progress(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Give a function to be called with the bytes just done, of `total` (0: not known)."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    # Without a thread of its own: the command forks while the bar stands.
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    with bar:
        task = bar.add_task(title, total=total or None)
        bar.refresh()

        def advance(nbytes: int) -> None:
            bar.advance(task, nbytes)
            bar.refresh()

        yield advance


def size_text(nbytes: float) -> str:
    """Return bytes in a unit that people read: 1.1 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.3g} TB" if nbytes < 1000 else f"{nbytes:,.0f} TB"
