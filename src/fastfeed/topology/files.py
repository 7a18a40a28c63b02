"""Small files of /proc and /sys: their text, their numbers, and the cgroup folders of a process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def text_of(path: Path) -> str:
    """Return a file's text without the white space around it; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def integer(text: str | None) -> int | None:
    """Return a whole number as the kernel and launchers write it, or None."""
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,19}", text) else None


def positive(text: str | None) -> int | None:
    """Return a whole number above nothing, or None; "max" and -1 are no number here."""
    number = integer(text)
    return number if number is not None and number > 0 else None


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's cgroup folders for a controller, from its own up to the mount."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup" / controller]
        else:
            continue
        # In a container the path may be the host's; the mount itself is then the container's own.
        relative = Path(path.lstrip("/"))
        for mount in mounts:
            if ".." not in relative.parts:
                for parent in (relative, *relative.parents):
                    yield mount / parent
