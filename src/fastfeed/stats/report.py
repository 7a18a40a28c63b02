"""The report that a person reads: rates, waits, where the time went, and what that means."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from fastfeed.stats.hints import differ, shares_of, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastfeed.stats.decoded import DecodedFacts
    from fastfeed.stats.values import DeviceFacts, Snapshot, StageFacts, WorkerFacts

_WIDTH = 100

Table = tuple[list[str], list[list[str]]]


def describe(
    snapshot: Snapshot, *, workers: int, in_use: int | None = None, colour: bool = False
) -> str:
    """Return the report; `in_use` is of workers whose number is tuned, `colour` for terminals."""
    if not snapshot.batches:
        return "fastfeed: no batch was delivered yet"
    blocks = list(_blocks(snapshot, workers=int(workers), in_use=in_use))
    if colour:
        return _coloured(blocks)
    lines: list[str] = []
    for block in blocks:
        lines += [block] if isinstance(block, str) else _plain(block)
    return "\n".join(lines)


def _blocks(snapshot: Snapshot, *, workers: int, in_use: int | None) -> Iterator[str | Table]:
    hands = f"{workers} workers"
    if in_use is not None and in_use != workers:
        hands = f"{in_use} of {hands} in use (num_workers={in_use} pins that)"
    yield (
        f"fastfeed: {snapshot.samples:,} samples in {snapshot.batches:,} batches, "
        f"{snapshot.samples_per_s:,.0f} samples/s, {snapshot.nbytes / 1e6:,.1f} MB, {hands}"
    )
    yield (
        f"  wait for a batch: p50 {_time(snapshot.wait_p50_s)}, p95 {_time(snapshot.wait_p95_s)}, "
        f"p99 {_time(snapshot.wait_p99_s)}, max {_time(snapshot.wait_max_s)}"
    )
    depth = snapshot.depth
    if workers and depth.asked:
        yield (
            f"  ready when asked for: {depth.mean:.1f} batches on average, "
            f"none {depth.none / depth.asked:.0%} of the times"
        )
    yield from _steps(snapshot)
    if snapshot.workers:
        yield f"  {_of_workers(snapshot.workers)}"
        if differ(snapshot.workers):
            yield _worker_table(snapshot.workers)
    if snapshot.stage is not None:
        yield f"  {_of_stage(snapshot.stage)}"
    if snapshot.device is not None:
        yield f"  {_of_device(snapshot, snapshot.device)}"
    if snapshot.decoded is not None:
        yield f"  {_of_decoded(snapshot.decoded)}"
    if snapshot.copied:
        yield f"  {snapshot.copied:,} batches were copied because many were kept at a time"
    yield f"  {verdict(snapshot, workers=workers, tuned=in_use is not None)}"


def _steps(snapshot: Snapshot) -> Iterator[str | Table]:
    """Yield where the time of making batches went."""
    if not snapshot.steps_s:
        if snapshot.busy_s:
            yield f"  workers' time: {_time(snapshot.busy_s)}"
        return
    total = sum(snapshot.steps_s.values()) or 1.0
    parts = ", ".join(
        f"{step} {seconds:.2f} s ({seconds / total:.0%})"
        for step, seconds in snapshot.steps_s.items()
    )
    yield f"  time by step: {parts}"
    waits = {"(no job)": snapshot.blocked_in, "(sending)": snapshot.blocked_out}
    rows = [
        [step, *map(_time, (one.p50_s, one.p95_s, one.p99_s, one.max_s))]
        for step, one in (snapshot.steps | waits).items()
        if one.count
    ]
    if rows:
        yield ["step, a batch", "p50", "p95", "p99", "max"], rows


def _of_workers(workers: Sequence[WorkerFacts]) -> str:
    busy, waits, sends = shares_of(workers)
    return (
        f"workers: busy {busy:.0%} of their time, waiting for jobs {waits:.0%}, sending {sends:.0%}"
    )


def _worker_table(workers: Sequence[WorkerFacts]) -> Table:
    heads = ["worker", "batches", "MB", "busy", "waits for jobs", "sends", "p50", "p99", "max"]
    rows = [
        [
            str(one.worker),
            f"{one.batches:,}",
            f"{one.nbytes / 1e6:,.1f}",
            *(f"{share:.0%}" for share in shares_of([one])),
            *map(_time, (one.busy.p50_s, one.busy.p99_s, one.busy.max_s)),
        ]
        for one in workers
    ]
    return heads, rows


def _of_stage(stage: StageFacts) -> str:
    parts = (stage.busy_s, stage.copying_s, stage.blocked_in_s, stage.blocked_out_s)
    total = sum(parts) or 1.0
    busy, copying, starved, full = (part / total for part in parts)
    return (
        f"to the device: busy {busy:.0%} of its time, waiting for copies {copying:.0%}, "
        f"for batches {starved:.0%}, for the loop {full:.0%}"
    )


def _of_device(snapshot: Snapshot, device: DeviceFacts) -> str:
    words = [f"{device.name}: {device.pinned_nbytes / 2**20:,.0f} MiB pinned"]
    if device.unpinned_why:
        words.append(f"no more because {device.unpinned_why}")
    if device.decoder is not None:
        words.append(
            f"{device.decoder} decoded {snapshot.deferred - snapshot.failed:,} pictures, "
            f"{device.share:.0%} of a batch now"
        )
    if snapshot.refused or snapshot.failed:
        words.append(
            f"{snapshot.refused:,} are of kinds that it does not do and it failed at "
            f"{snapshot.failed:,}: the CPU made those"
        )
    return ", ".join(words)


def _of_decoded(decoded: DecodedFacts) -> str:
    looked = decoded.hits + decoded.misses
    words = [
        f"decoded cache: {decoded.hits:,} of {looked:,} found ({decoded.hits / (looked or 1):.0%})",
        f"{decoded.kept_nbytes / 1e6:,.0f} of {decoded.budget_nbytes / 1e6:,.0f} MB in use",
    ]
    if decoded.hits and decoded.misses:
        found, made = decoded.hit_s / decoded.hits, decoded.miss_s / decoded.misses
        words.append(f"{_time(found)} a sample found, {_time(made)} decoded")
        verb = "saved" if decoded.saved_s >= 0 else "cost so far"
        words.append(f"{verb} {_time(abs(decoded.saved_s))} of workers' time")
    return ", ".join(words)


def _time(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    return f"{seconds * 1e3:.2f} ms"


def _plain(table: Table) -> list[str]:
    """Return a table as aligned lines."""
    heads, rows = table
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
    return [
        "    "
        + "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [heads, *rows]
    ]


def _coloured(blocks: Sequence[str | Table]) -> str:
    """Return the same for a terminal; rich is loaded for nothing else."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(file=io.StringIO(), force_terminal=True, width=_WIDTH)
    with console.capture() as captured:
        for place, block in enumerate(blocks):
            if isinstance(block, str):
                style = "bold" if place in {0, len(blocks) - 1} else ""
                console.print(Text(block, style=style), soft_wrap=True)
                continue
            heads, rows = block
            grid = Grid(box=None, header_style="dim", pad_edge=False)
            for column, head in enumerate(heads):
                grid.add_column(head, justify="right" if column else "left", no_wrap=True)
            for row in rows:
                grid.add_row(*row)
            console.print(Padding(grid, (0, 0, 0, 4)))
    return captured.get().rstrip("\n")
