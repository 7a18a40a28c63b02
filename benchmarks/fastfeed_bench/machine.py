"""Describes the machine a figure belongs to: processor, cores, memory, kernel, versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from fastfeed.topology import usable_cores
from fastfeed.version import __version__

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "pillow-simd",
    "simplejpeg",
    "turbojpeg",
    "opencv-python-headless",
    "webdataset",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "spdl",
    "xxhash",
)


def describe_machine() -> dict[str, Any]:
    """Return the description; it names neither the host nor any path."""
    cores = usable_cores(environment=os.environ)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": cores.count,
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "fastfeed": __version__,
        "versions": versions(_PACKAGES),
    }


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model"}:
            return value.strip()
    return platform.processor() or platform.machine()
