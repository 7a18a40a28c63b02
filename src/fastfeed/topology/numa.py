"""Where a GPU hangs in the machine: its NUMA node and the cores near it, by its PCI address.

Devices are told apart by PCI address alone: NVML, CUDA and nvidia-smi each count in an order of
their own, and CUDA_VISIBLE_DEVICES changes one of them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.topology.files import integer, text_of
from fastfeed.topology.lists import parse_cores

if TYPE_CHECKING:
    from collections.abc import Iterable

DEVICES = "sys/bus/pci/devices"
NODES = "sys/devices/system/node"
NVIDIA = "0x10de"
DISPLAYS = ("0x0300", "0x0302")
"""PCI classes of GPUs with and without a screen, as their first six characters."""


@dataclass(frozen=True, slots=True)
class Locality:
    """One GPU's node and cores, as far as the machine says."""

    address: str
    """As sysfs writes it, or as it was asked for if that is no PCI address."""
    node: int | None
    """None if the machine does not say."""
    cores: frozenset[int]
    """The cores near it, those outside this process's mask included; empty if not known."""
    notes: tuple[str, ...]


def pci_address(text: str) -> str | None:
    """Return a PCI address as sysfs writes it, or None if `text` is none.

    NVML writes eight digits of domain and capitals, lspci often leaves the domain out.
    """
    match = re.fullmatch(
        r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])(?:\.([0-7]))?",
        text.strip().lower(),
    )
    if match is None:
        return None
    domain, bus, device = (int(part or "0", 16) for part in match.groups()[:3])
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match[4] or 0}"


def gpu_node(address: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node of a GPU, or None if the machine does not say."""
    return gpu_locality(address, root).node


def gpu_cores(address: str, root: Path = Path("/")) -> frozenset[int]:
    """Return the cores near a GPU, whoever may use them; empty if the machine does not say."""
    return gpu_locality(address, root).cores


def gpu_locality(address: str, root: Path = Path("/")) -> Locality:
    """Return what sysfs says of a GPU's place; whatever it leaves out is told in the notes."""
    known = pci_address(address)
    if known is None:
        note = f"{address[:80]!r} is not a PCI address, so no NUMA node is known for it"
        return Locality(address, None, frozenset(), (note,))
    folder = root / DEVICES / known
    if not os.path.isdir(folder):  # noqa: PTH112 - nor is it shown where a sandbox forbids that
        return Locality(known, None, frozenset(), (f"sysfs does not show the GPU at {known}",))
    node, note = _node(folder, root)
    notes = [note] if note else []
    cores, garbled = _cores(folder, node, root)
    if garbled:
        notes.append(f"GPU {known}: local_cpulist is garbled")
    if not cores:
        notes.append(f"GPU {known}: the machine names no cores near it")
    return Locality(known, node, cores, tuple(notes))


def gpu_addresses(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the addresses of all NVIDIA GPUs that sysfs shows, in order.

    A container sees the host's, so these may be more than the process can use.
    """
    try:
        folders = sorted((root / DEVICES).iterdir())
    except OSError:
        return ()
    return tuple(
        folder.name
        for folder in folders
        if text_of(folder / "vendor") == NVIDIA and text_of(folder / "class")[:6] in DISPLAYS
    )


def sibling_cores(cores: Iterable[int], root: Path = Path("/")) -> tuple[frozenset[int], ...]:
    """Return the hardware threads of each physical core that has one among `cores`.

    A core whose siblings the machine does not tell is left out.
    """
    groups: list[frozenset[int]] = []
    seen: set[int] = set()
    for core in sorted(cores):
        if core in seen:
            continue
        topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
        # The first name is the current one, the second what older kernels write.
        text = text_of(topology / "core_cpus_list") or text_of(topology / "thread_siblings_list")
        group = parse_cores(text)
        if group and core in group:
            groups.append(group)
            seen |= group
    return tuple(groups)


def _node(folder: Path, root: Path) -> tuple[int | None, str]:
    """Return the node of a PCI device and a note if it has none."""
    text = text_of(folder / "numa_node")
    node = integer(text)
    if node is not None and node >= 0:
        return node, ""
    # Firmware of small machines and of guests often names no node. With one node it is that one.
    # Nodes of memory alone (a GPU's own on some machines) are none to choose from.
    nodes = parse_cores(text_of(root / NODES / "has_cpu") or text_of(root / NODES / "online"))
    if nodes is not None and len(nodes) == 1 and node == -1:
        return next(iter(nodes)), ""
    said = f"numa_node is {text[:20]!r}" if text else "there is no numa_node"
    return None, f"GPU {folder.name}: {said}, so its NUMA node is not known"


def _cores(folder: Path, node: int | None, root: Path) -> tuple[frozenset[int], bool]:
    """Return the cores near a PCI device, and whether its own list was garbled."""
    cores = parse_cores(text_of(folder / "local_cpulist"))
    garbled = cores is None
    if not cores and node is not None:
        cores = parse_cores(text_of(root / NODES / f"node{node}/cpulist"))
    return cores or frozenset(), garbled
