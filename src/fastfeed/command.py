"""How every command of ours ends: its exit code, and what it says of an error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fastfeed.errors import FastfeedError, OptionError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable


def run_command(program: str, options: Namespace) -> int:
    """Run the command that was parsed; returns its exit code, 2 if the call is not right."""
    command: Callable[[Namespace], int] = options.command
    try:
        code = command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough; nothing more can be said to them at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        complain(program, "interrupted")
        return 130
    except FastfeedError as error:
        complain(program, error)
        return 2 if isinstance(error, OptionError) else 1
    return code


def complain(program: str, error: object) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"{program}: {error}\n")
