"""Reports and differences as text; in colours where it goes to a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from fastfeed.doctor.compare import Difference
    from fastfeed.doctor.report import Report

_COLOURS: Final = {"ok": "green", "warn": "yellow", "bad": "bold red", "unknown": "cyan"}

Line = tuple[str, str]
"""A status, which gives the colour, and the text; the status is empty for plain lines."""


def report_lines(report: Report) -> Iterator[Line]:
    """Yield the lines of a report: each check, what to do, and the verdict."""
    for check in report.checks:
        yield check.status, f"{check.status:<8}{check.id:>2}  {check.name}: {check.finding}"
        if check.advice:
            yield "", f"            -> {check.advice}"
    yield "", ""
    yield "", report.verdict


def change_lines(before: Report, after: Report, seconds: float) -> Iterator[Line]:
    """Yield a line for a later look, and one for each check whose status is another than before."""
    told = (
        f"{status}: {', '.join(str(check.id) for check in found)}"
        for status in ("bad", "warn", "unknown")
        if (found := [check for check in after.checks if check.status == status])
    )
    yield "", f"+{seconds:.0f} s  {'; '.join(told) or 'all ok'}"
    for old, new in zip(before.checks, after.checks, strict=True):
        if old.status != new.status:
            change = f"{old.status} -> {new.status}"
            yield new.status, f"        {new.id:>2}  {new.name}: {change}: {new.finding}"


def difference_lines(found: Sequence[Difference], names: tuple[str, str]) -> Iterator[Line]:
    """Yield the lines of a comparison."""
    if not found:
        yield "ok", "no difference"
    for one in found:
        yield "warn", one.name
        for name, value in zip(names, (one.a, one.b), strict=True):
            yield "", f"    {name}: {'not told' if value is None else value}"


def write_lines(lines: Iterator[Line], stream: TextIO) -> None:
    """Write lines; rich is loaded only for a terminal."""
    if not stream.isatty():
        stream.writelines(f"{text}\n" for _, text in lines)
        stream.flush()
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream)
    for status, text in lines:
        console.print(Text(text, style=_COLOURS.get(status, "")))
