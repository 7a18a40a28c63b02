"""Prints a result as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

_KNOWN = {"system", "median", "min", "max", "n", "note"}


def print_result(console: Console, result: Mapping[str, Any]) -> None:
    """Print the machine, a table for each case, and the ratios."""
    console.print(f"[bold]{result['name']}[/bold] in {result['unit']}, {_direction(result)}")
    console.print(_machine_line(result["machine"]), style="dim", soft_wrap=True)
    for case in result["cases"]:
        console.print(_table(case, unit=case.get("unit", result["unit"])))
    equal = "yes" if result["equal"] else "[red]NO[/red]"
    console.print(f"worst ratio {_ratio(result['ratio'])}; equal work in all cases: {equal}")


def _direction(result: Mapping[str, Any]) -> str:
    return "higher is better" if result["higher_is_better"] else "lower is better"


def _machine_line(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, {versions}"
    )


def _table(case: Mapping[str, Any], *, unit: str) -> Table:
    ratios = [f"ratio to the best peer {_ratio(case['ratio'])}"]
    ratios += [
        f"to {name.removeprefix('of_').replace('_', '-')} {_ratio(value)}"
        for name, value in case.items()
        if name.startswith("of_")
    ]
    if "higher_is_better" in case:
        ratios.append(_direction(case))
    equal = "equal work" if case["equal"] else "[red]NOT shown to be equal work[/red]"
    table = Table(
        title=f"{case['case']}: {', '.join(ratios)}; {equal}", title_justify="left", expand=True
    )
    table.add_column("system", no_wrap=True)
    for name in (f"median {unit}", "min", "max", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note", ratio=1, overflow="fold")
    for row in case["rows"]:
        extras = [
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:,}"
            for name, value in row.items()
            if name not in _KNOWN
        ]
        figures = [_figure(row[name]) for name in ("median", "min", "max")]
        note = "; ".join([*extras, row["note"]])
        # Brackets in a note are text, not markup.
        table.add_row(row["system"], *figures, str(row["n"]), note.replace("[", "\\["))
    return table


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
