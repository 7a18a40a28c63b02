"""The job of a command line: MODULE:FUNCTION, called for its loader and its step."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

_EXPECTED: Final = (
    "Let the function return (loader, step), or a dict of them and maybe `device`; step(batch) "
    "runs one training step"
)


@dataclass(frozen=True, slots=True)
class Job:
    """A loader, and what is done with each of its batches."""

    loader: Any
    step: Callable[[Any], Any]
    device: Any = None


def load_job(name: str) -> Job:
    """Import MODULE, call FUNCTION without arguments, and return the job it makes.

    What the user's code raises passes; OptionError if there is no such function, or if what it
    returns is no job.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise OptionError(f"{name!r} is not MODULE:FUNCTION", way_out="Such as train:make_job")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # it is there, and what it imports is not
        raise OptionError(
            f"there is no module {module_name!r}",
            way_out="Name it as Python imports it from this folder: train, or package.train",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise OptionError(f"{module_name!r} has no function {function_name!r}", way_out=_EXPECTED)
    return job_of(function(), name)


def job_of(made: Any, name: str) -> Job:
    """Return the job in what a function returned; OptionError if there is none."""
    if isinstance(made, dict):
        unknown = sorted(set(map(str, made)) - {"loader", "step", "device"})
        if unknown or not {"loader", "step"} <= set(made):
            raise OptionError(
                f"{name!r} returned a dict with {', '.join(map(str, made)) or 'nothing'}",
                way_out=_EXPECTED,
            )
        job = Job(**made)
    elif isinstance(made, tuple) and len(made) == 2:
        job = Job(*made)
    else:
        raise OptionError(f"{name!r} returned {type(made).__name__}", way_out=_EXPECTED)
    check_job(job)
    return job


def check_job(job: Job) -> None:
    """Raise OptionError if the loader cannot be iterated or the step cannot be called."""
    if not hasattr(job.loader, "__iter__"):
        raise OptionError(
            f"the loader, {type(job.loader).__name__}, cannot be iterated", way_out=_EXPECTED
        )
    if not callable(job.step):
        raise OptionError(
            f"the step, {type(job.step).__name__}, cannot be called", way_out=_EXPECTED
        )
