"""The far end of a station: one system in this process, commanded by lines of JSON.

Each system has a process to itself, so that no library's threads, allocator or imports disturb
another's, and a crash costs one row.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_bench.model import Session


def main() -> None:
    """Answer each line of standard input with one line, until there are no more."""
    # Libraries print to standard output as they like; the answers have a descriptor of their own.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


def serve(questions: TextIO, answers: TextIO) -> None:
    """Answer questions until they end, then close the session."""
    session: Session | None = None
    for line in questions:
        question = json.loads(line)
        try:
            if question["do"] == "open":
                session = _load(question["target"])(question["settings"])
                answer: Mapping[str, Any] = {"note": session.note}
            elif session is None:
                answer = {"error": "nothing is open"}
            elif question["do"] == "run":
                answer = session.run()
            else:
                answer = session.evidence()
        except Exception as error:  # noqa: BLE001 - whatever a library raises is this row's note
            traceback.print_exc()
            text = str(error).strip().splitlines()
            answer = {"error": f"{type(error).__name__}: {text[0] if text else ''}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if session is not None:
        session.close()


def _load(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)


if __name__ == "__main__":
    main()
