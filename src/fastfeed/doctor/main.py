"""The `fastfeed` command: looks at the machine. What it accepts, what it prints, its exit codes.

0: looked, whatever was found; or two reports do not differ. 1: they do, or a file cannot be
written. 2: the call is not right.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.command import run_command
from fastfeed.errors import OptionError
from fastfeed.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed.doctor.machine import Machine
    from fastfeed.doctor.report import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return run_command("fastfeed", make_parser().parse_args(arguments))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fastfeed", description="Keeps GPUs fed, and says why not."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "Look at the machine for a few seconds and say what starves its GPUs."
    doctor = commands.add_parser("doctor", help=text, description=text)
    doctor.set_defaults(command=_doctor)
    add = doctor.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--watch", type=_seconds, metavar="SECONDS", help="look again every so often, until ^C")
    add("--pid", type=_process, metavar="PID", help="the training process (default: by its GPU)")
    add("--capture", metavar="FILE", help="write report, figures and trace into one file")
    add("--trace", metavar="FILE", help="a trace of a few steps by torch.profiler, for check 12")
    others = doctor.add_subparsers(metavar="compare")
    text = "Say what differs between two nodes; exit code 1 if anything does."
    compare = others.add_parser("compare", help=text, description=text)
    compare.set_defaults(command=_compare)
    compare.add_argument("a", metavar="A.json", help="what --json printed on one node")
    compare.add_argument("b", metavar="B.json", help="and on the other")
    # The default of the outer command must not undo what was given before `compare`.
    compare.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    # By name: a diagnosis stands on the doctor, which needs to know no more of it.
    import_module("fastfeed.diagnosis.main").add_command(commands)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from fastfeed.doctor.machine import Machine
    from fastfeed.doctor.nvml import open_nvml
    from fastfeed.options import cache_folder

    with open_nvml() as (gpus, no_gpus):
        machine = Machine(
            gpus=gpus,
            no_gpus=no_gpus,
            environment=os.environ,
            cache=os.path.realpath(cache_folder()),
        )
        return run_doctor(machine, options)


def run_doctor(machine: Machine, options: argparse.Namespace) -> int:
    """Look at a machine once or again and again, and write what was found."""
    from fastfeed.doctor.capture import write_capture
    from fastfeed.doctor.kernels import read_kernels
    from fastfeed.doctor.machine import LOOK_S
    from fastfeed.doctor.report import examine
    from fastfeed.doctor.show import change_lines, report_lines, write_lines

    if options.watch is not None and options.capture is not None:
        raise OptionError("--watch and --capture exclude each other", way_out="Leave one out")
    kernels = read_kernels(Path(options.trace)) if options.trace else None
    began = machine.clock.now()
    before: Report | None = None
    try:
        while True:
            begin = machine.clock.now()
            length = LOOK_S if options.watch is None else min(LOOK_S, options.watch)
            seen = machine.look(pid=options.pid, seconds=length, kernels=kernels)
            report = examine(seen)
            if options.json:
                indent = 2 if options.watch is None else None
                sys.stdout.write(json.dumps(report.document(), indent=indent) + "\n")
                sys.stdout.flush()
            elif before is None:
                write_lines(report_lines(report), sys.stdout)
            else:
                passed = machine.clock.now() - began
                write_lines(change_lines(before, report, passed), sys.stdout)
            if options.capture is not None:
                write_capture(Path(options.capture), seen, report)
            if options.watch is None:
                return 0
            before = report
            machine.clock.sleep(max(0.0, options.watch - (machine.clock.now() - begin)))
    except KeyboardInterrupt:
        # Watching has no other end.
        return 130 if options.watch is None else 0


def _compare(options: argparse.Namespace) -> int:
    from fastfeed.doctor.compare import differences, read_report
    from fastfeed.doctor.show import difference_lines, write_lines

    found = differences(read_report(Path(options.a)), read_report(Path(options.b)))
    if options.json:
        document = {"differences": [asdict(one) for one in found]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        write_lines(difference_lines(found, (options.a, options.b)), sys.stdout)
    return 1 if found else 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0.1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 up")
    return seconds


def _process(text: str) -> int:
    try:
        pid = int(text)
    except ValueError:
        pid = 0
    if not 0 < pid < 1 << 31:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the number of a process, as `nvidia-smi` or `ps` shows it"
        )
    return pid


if __name__ == "__main__":
    raise SystemExit(main())
