"""The machine in figures that stay the same: what two nodes share or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed.doctor.check_link import links
from fastfeed.doctor.check_network import job_mounts
from fastfeed.doctor.check_place import near, nodes_of
from fastfeed.doctor.parse import counts
from fastfeed.topology import core_text
from fastfeed.version import __version__

if TYPE_CHECKING:
    from fastfeed.doctor.seen import Seen

_CORES = "sys/devices/system/cpu"


def describe(seen: Seen) -> dict[str, Any]:
    """Return the description; it names neither the host nor any file, but folders of mounts."""
    nodes = nodes_of(seen)
    memory = counts(seen.first.of("proc/meminfo")).get("MemTotal")
    shares = sorted(name for name in seen.first.found if name.endswith("/scaling_governor"))
    _, mounted = job_mounts(seen)
    return {
        "fastfeed": __version__,
        "kernel": seen.first.of("proc/sys/kernel/osrelease")[:100],
        "cpu": _cpu(seen),
        "cores": {"usable": seen.cores.count, "why": seen.cores.why, "quota": seen.quota},
        "memory_gib": round(memory / 2**30, 1) if memory else None,
        "numa_nodes": core_text(nodes) if nodes else None,
        "governors": sorted({seen.first.of(name)[:40] for name in shares}),
        "driver": next((gpu.driver for gpu in seen.gpus), None),
        "gpus": _gpus(seen),
        "no_gpus": seen.no_gpus or None,
        "mounts": {
            mount.folder: mount.kind for mount in mounted if mount.holds_data and mount.kind
        },
        "job": None if seen.job is None else {"pid": seen.job.pid, "why": seen.job.why},
        "looked_s": round(seen.seconds, 2),
    }


def _cpu(seen: Seen) -> str | None:
    for line in seen.first.of("proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model"}:
            return value.strip()[:100]
    return None


def _gpus(seen: Seen) -> list[dict[str, Any]]:
    """Return one entry a GPU, in the order of PCI addresses."""
    by_index = {gpu.index: gpu for gpu in seen.gpus}
    cores = near(seen)
    entries = []
    for link in links(seen):
        place = seen.places.get(link.address)
        entry: dict[str, Any] = {
            "address": link.address or None,
            "node": place.node if place else None,
            "cores": core_text(cores[link.address]) if cores.get(link.address) else None,
            "link": f"gen {link.generation_able} x{link.width_able}",
            "link_now": f"gen {link.generation} x{link.width}",
        }
        gpu = None if link.index is None else by_index[link.index]
        if gpu is not None:
            entry |= {
                "name": gpu.name,
                "memory_gib": round(gpu.memory / 2**30, 1) if gpu.memory else None,
                "clock_most_mhz": gpu.clock_most,
                "clock_asked_mhz": gpu.clock_asked,
                "power_limit_w": gpu.power_limit,
                "mig": gpu.mig,
                "persistent": gpu.persistent,
            }
        entries.append(entry)
    return sorted(entries, key=lambda entry: str(entry["address"]))
