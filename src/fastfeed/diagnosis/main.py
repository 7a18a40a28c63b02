"""`fastfeed diagnose`: what it accepts and what it prints; 0 whatever the verdict is."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import Any


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `fastfeed`; nothing heavy is loaded for it."""
    text = "Say which bottleneck a training job has, by running its step in three ways."
    parser = commands.add_parser(
        "diagnose",
        help=text,
        description=text,
        epilog="FUNCTION is called without arguments and returns (loader, step), or a dict with "
        "loader, step and maybe device; step(batch) runs one training step.",
    )
    parser.set_defaults(command=_diagnose)
    add = parser.add_argument
    add("job", metavar="MODULE:FUNCTION", help="such as train:make_job, seen from this folder")
    add("--json", action="store_true", help="print one JSON object")
    add("--price", type=_amount, metavar="PRICE", help="of a GPU hour, for the costs")
    add("--seconds", type=_length, default=20.0, help="how long to measure (default: 20)")


def _diagnose(options: argparse.Namespace) -> int:
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does, and for imports only
    from fastfeed.diagnosis.job import load_job
    from fastfeed.diagnosis.run import diagnose

    job = load_job(options.job)
    found = diagnose(
        job.loader, job.step, device=job.device, price=options.price, seconds=options.seconds
    )
    text = json.dumps(found.document(), indent=2) if options.json else str(found)
    sys.stdout.write(text + "\n")
    return 0


def _amount(text: str) -> float:
    amount = _number(text)
    if not (math.isfinite(amount) and amount >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price, such as 2.50")
    return amount


def _length(text: str) -> float:
    seconds = _number(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
