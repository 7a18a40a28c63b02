"""The command `fastfeed-bench`: list, peers, run."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed.errors import FastfeedError, OptionError
from fastfeed.options import cache_folder
from fastfeed_bench.harness import Bench, run_benchmark
from fastfeed_bench.machine import describe_machine
from fastfeed_bench.model import OURS, Context
from fastfeed_bench.registry import NAMES, list_peers, load_benchmark
from fastfeed_bench.station import Station
from fastfeed_bench.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed_bench.model import Benchmark, Case

_ROUNDS = 5
_QUICK_ROUNDS = 3
_WIDTH = 140


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, 1 if a comparison has no figure or is not equal, 2 for misuse."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.action(options)
    except FastfeedError as error:
        print(f"fastfeed-bench: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastfeed-bench",
        description="Measures fastfeed and its peers on the same work, in turns.",
    )
    actions = parser.add_subparsers(required=True, metavar="COMMAND")
    actions.add_parser("list", help="name the benchmarks").set_defaults(action=_list)
    actions.add_parser("peers", help="name the peers and whether they run here").set_defaults(
        action=_peers
    )
    run = actions.add_parser("run", help="run a benchmark")
    run.set_defaults(action=_run)
    run.add_argument("name", metavar="NAME", help=", ".join(NAMES))
    run.add_argument("--json", action="store_true", help="print one JSON object, last")
    run.add_argument(
        "--quick", action="store_true", help="three runs a system on less data, no new tuning"
    )
    run.add_argument(
        "--peers", default="all", metavar="all|LIST", help="peers to compare with, by commas"
    )
    run.add_argument(
        "--cases", default="", metavar="WORD", help="only cases with this in their name"
    )
    run.add_argument("--data", type=Path, metavar="DIR", help="folder of source photos")
    run.add_argument(
        "--work", type=Path, metavar="DIR", help="folder for data that is made once (a few GB)"
    )
    return parser


def _list(_: argparse.Namespace) -> int:
    for name in NAMES:
        benchmark = load_benchmark(name)
        print(f"{name:12} {benchmark.summary} ({benchmark.unit})")
    return 0


def _peers(_: argparse.Namespace) -> int:
    for name, version, state in list_peers():
        print(f"{name:22} {version:32} {state}")
    return 0


def _run(options: argparse.Namespace) -> int:
    benchmark = load_benchmark(options.name)
    chosen = _chosen_peers(benchmark, options.peers)
    _say("preparing the data")
    context = open_context(options.work, photos=options.data, quick=options.quick)
    named = find_cases(benchmark, context, options.cases)
    cases = [_only(case, chosen) for case in named]
    machine = describe_machine()
    tuning = Tuning(
        cache=context.work / "tuning.json",
        machine=machine,
        start=Station,
        higher_is_better=benchmark.higher_is_better,
        measure=not options.quick,
    )
    bench = Bench(
        start=Station,
        tuner=tuning,
        rounds=_QUICK_ROUNDS if options.quick else _ROUNDS,
        higher_is_better=benchmark.higher_is_better,
        say=_say,
    )
    result = run_benchmark(benchmark, cases, bench, machine=machine)
    _print(result, as_json=options.json)
    compared = result["ratio"] is not None or not chosen
    return 0 if compared and result["equal"] else 1


def _chosen_peers(benchmark: Benchmark, text: str) -> set[str]:
    if text == "all":
        return set(benchmark.peers)
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = names - set(benchmark.peers)
    if unknown:
        raise OptionError(
            f"{benchmark.name} has no peer {', '.join(sorted(unknown))}",
            way_out=f"Its peers are {', '.join(benchmark.peers)}",
        )
    return names


def open_context(work: Path | None, *, photos: Path | None, quick: bool) -> Context:
    """Return the context of a run; without a folder its data is kept in the user's cache."""
    work = work or cache_folder().with_name("fastfeed-bench")
    work.mkdir(parents=True, exist_ok=True)
    return Context(work=work, photos=photos, quick=quick)


def find_cases(benchmark: Benchmark, context: Context, word: str) -> list[Case]:
    """Return the case of that name, or all with the word in it; OptionError if there is none."""
    cases = benchmark.cases(context)
    found = [case for case in cases if case.name == word] or [
        case for case in cases if word.lower() in case.name.lower()
    ]
    if not found:
        raise OptionError(
            f"no case has {word!r} in its name",
            way_out=f"The cases are: {'; '.join(case.name for case in cases)}",
        )
    return found


def _only(case: Case, chosen: set[str]) -> Case:
    systems = tuple(s for s in case.systems if s.name == OURS or s.name in chosen)
    return replace(case, systems=systems)


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console

    from fastfeed_bench.table import print_result

    console = Console()
    # Notes are long; a file or a pipe has no width of its own.
    print_result(console if console.is_terminal else Console(width=_WIDTH), result)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
