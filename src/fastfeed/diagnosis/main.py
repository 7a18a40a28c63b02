"""`fastfeed diagnose`: what it accepts, what it prints, its exit codes.

0: measured, whatever the verdict is. 1: data or machine failed the job: a damaged shard, a worker
that died. 2: the call is not right, or the job: there is none, or what it runs raises. 130: ^C.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from fastfeed.command import complain
from fastfeed.errors import FastfeedError

_OURS: Final = Path(__file__).parent


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

    try:
        job = load_job(options.job)
        found = diagnose(
            job.loader, job.step, device=job.device, price=options.price, seconds=options.seconds
        )
    except FastfeedError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the job's own code raises
        return _failed(error)
    text = json.dumps(found.document(), indent=2) if options.json else str(found)
    sys.stdout.write(text + "\n")
    return 0


def _failed(error: BaseException) -> int:
    """Show where the job's own code failed, without our frames around it."""
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == _OURS:
        trace = trace.tb_next
    sys.stderr.writelines(traceback.format_exception(error.with_traceback(trace)))
    complain("fastfeed", f"the job raised {type(error).__name__}. Mend it first: it must run alone")
    return 2


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
