"""Texts of /proc and /sys under a root: bounded, never an exception, with the reason for a gap."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# /proc/interrupts of 512 cores has 2 MB; nothing we read has more that we need.
LONGEST: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Texts:
    """What files said at one moment, by their path below the root."""

    found: Mapping[str, str]
    missing: Mapping[str, str]
    """Why a file that was asked for is not among `found`."""

    def of(self, name: str) -> str:
        """Return a file's text; empty if there is none."""
        return self.found.get(name, "")

    def why(self, name: str) -> str:
        """Return why a file has no text of use."""
        if name in self.found:
            return f"/{name} is not as the kernel writes it" if self.found[name] else "it is empty"
        return f"/{name}: {self.missing.get(name, 'not looked for')}"


def read_texts(root: Path, names: Iterable[str]) -> Texts:
    """Return the texts of files under `root`; symbolic links of /proc/PID/fd give their target."""
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            path = root / name
            found[name] = str(path.readlink()) if "/fd/" in name else _text(path)
        except OSError as error:
            missing[name] = (error.strerror or type(error).__name__).lower()
        except ValueError:
            missing[name] = "not a path"
    return Texts(found, missing)


def listed(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none if it cannot be read."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def numbers(folder: Path) -> list[int]:
    """Return the names in a folder that are numbers, such as processes and descriptors."""
    return sorted(int(name) for name in listed(folder) if name.isascii() and name.isdigit())


def _text(path: Path) -> str:
    # A pipe or a device in place of a file would never answer, so the open must not wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        pieces, left = [], LONGEST
        while left > 0 and (piece := os.read(descriptor, min(left, 1 << 16))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("ascii", errors="replace").strip()
