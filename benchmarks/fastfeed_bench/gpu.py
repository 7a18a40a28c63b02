"""`python -m fastfeed_bench.gpu`: all that needs a GPU in one go: the tests, then the benchmarks.

The result is one JSON file, written anew after each case, so that a machine which is taken away
costs one case. What the file has from another call stays: a long benchmark can be run in parts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed_bench.main import find_cases, open_context
from fastfeed_bench.registry import load_benchmark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BENCHMARKS = ("h2d", "diagnose-gpu", "jpeg-gpu", "train-feed")
STEPS = ("tests", *BENCHMARKS)
_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = "import sys; from fastfeed_bench.main import main; sys.exit(main())"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; returns 0, or 1 if a test failed or a comparison has no figure."""
    options = _parser().parse_args(arguments)
    steps = [name.strip() for name in options.only.split(",")]
    failed = False
    for step in steps:
        for case in ("",) if step == "tests" else _cases(step, options):
            try:
                found = _tests(options) if step == "tests" else _benchmark(step, case, options)
            except subprocess.TimeoutExpired:
                _say(f"{step}: {case} took longer than {options.limit} s")
                failed = True
                continue
            failed |= not _is_good(found)
            known = _load(options.out)
            _save(options.out, merged(known, step, found))
            _say(f"{step}: {summary(found)}")
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastfeed_bench.gpu", description="Runs what needs a GPU, in one go."
    )
    parser.add_argument("--only", default=",".join(STEPS), metavar="LIST", help=", ".join(STEPS))
    parser.add_argument("--quick", action="store_true", help="quick runs of the benchmarks")
    parser.add_argument("--cases", default="", metavar="WORD", help="only cases with this word")
    parser.add_argument("--peers", default="all", metavar="all|LIST", help="peers, by commas")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where data is made once")
    parser.add_argument("--limit", type=int, default=3600, metavar="S", help="seconds for a case")
    parser.add_argument(
        "--out", type=Path, default=_ROOT / "docs" / "benchmarks" / "h200.json", metavar="FILE"
    )
    return parser


def _tests(options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(_ROOT / "tests" / "gpu")]
    done = subprocess.run(  # noqa: S603 - ours
        command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=options.limit, check=False
    )
    sys.stderr.write(done.stdout)
    lines = done.stdout.strip().splitlines()
    return {"exit": done.returncode, "summary": lines[-1].strip("= ") if lines else ""}


def _cases(name: str, options: argparse.Namespace) -> list[str]:
    context = open_context(options.work, photos=None, quick=options.quick)
    return [case.name for case in find_cases(load_benchmark(name), context, options.cases)]


def _benchmark(name: str, case: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-c", _COMMAND, "run", name, "--json", "--peers", options.peers]
    command += ["--cases", case]
    command += ["--quick"] if options.quick else []
    command += ["--work", str(options.work)] if options.work else []
    done = subprocess.run(  # noqa: S603 - ours
        command, stdout=subprocess.PIPE, text=True, timeout=options.limit, check=False
    )
    lines = done.stdout.strip().splitlines()
    if not lines:
        return {"name": name, "ratio": None, "equal": False, "cases": [], "exit": done.returncode}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _is_good(found: Mapping[str, Any]) -> bool:
    if "cases" in found:
        cases = found["cases"]
        return bool(cases) and all(c["ratio"] is not None and c["equal"] for c in cases)
    return bool(found["exit"] == 0)


def merged(known: Mapping[str, Any], step: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known with the findings of a step in it, and the GPU that they belong to."""
    result = {**known, "gpu": describe_gpu()}
    if step == "tests":
        return {**result, "tests": dict(found)}
    benchmarks = dict(known.get("benchmarks", {}))
    before = benchmarks.get(step, {"cases": []})
    cases = {case["case"]: case for case in (*before["cases"], *found["cases"])}
    ratios = [case["ratio"] for case in cases.values()]
    benchmarks[step] = {
        **found,
        "ratio": None if None in ratios or not ratios else min(ratios),
        "equal": bool(cases) and all(case["equal"] for case in cases.values()),
        "cases": list(cases.values()),
    }
    return {**result, "benchmarks": benchmarks}


def describe_gpu() -> dict[str, str]:
    """Return name, driver and memory of the first GPU, as the driver tells; empty without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    fields = ("name", "driver_version", "memory.total")
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    done = subprocess.run(  # noqa: S603 - ours
        command, capture_output=True, text=True, timeout=60, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {}
    return dict(zip(("name", "driver", "memory"), lines[0].split(", "), strict=False))


def summary(found: Mapping[str, Any]) -> str:
    """Return a step's findings in a few lines."""
    if "cases" not in found:
        return str(found["summary"])
    lines = [f"ratio {found['ratio']}, equal {found['equal']}"]
    for case in found["cases"]:
        lines.append(f"  {case['case']}: ratio {case['ratio']}, equal {case['equal']}")
        for row in case["rows"]:
            au = f", AU {row['au']}" if "au" in row else ""
            lines.append(f"    {row['system']}: {row['median']}{au} ({row['note']})")
    return "\n".join(lines)


def _load(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _save(path: Path, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
