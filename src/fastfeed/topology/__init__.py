"""What this machine grants one rank: cores, those near its GPU, and memory; read, never enforced.

Everything is computed from /proc, /sys and the environment, which callers pass in; `root` is where
/proc and /sys are looked for, so that recorded trees can be tested. Nothing here is fatal: what a
machine does not say is a note in the result, and the answer falls back to the process's own mask.
"""

from fastfeed.topology.cores import Cores, cgroup_quota, own_affinity, reserved_cores, usable_cores
from fastfeed.topology.lists import core_text, parse_cores
from fastfeed.topology.memory import (
    Budget,
    memlock_limit,
    memory_limit,
    memory_rooms,
    pinned_budget,
)
from fastfeed.topology.numa import (
    Locality,
    gpu_addresses,
    gpu_cores,
    gpu_locality,
    gpu_node,
    pci_address,
    sibling_cores,
)
from fastfeed.topology.placement import Placement, pin_to, place_workers, plan_cores
from fastfeed.topology.ranks import LocalRank, local_rank
from fastfeed.topology.usage import room_for, runnable_s, threads_of

__all__ = [
    "Budget",
    "Cores",
    "LocalRank",
    "Locality",
    "Placement",
    "cgroup_quota",
    "core_text",
    "gpu_addresses",
    "gpu_cores",
    "gpu_locality",
    "gpu_node",
    "local_rank",
    "memlock_limit",
    "memory_limit",
    "memory_rooms",
    "own_affinity",
    "parse_cores",
    "pci_address",
    "pin_to",
    "pinned_budget",
    "place_workers",
    "plan_cores",
    "reserved_cores",
    "room_for",
    "runnable_s",
    "sibling_cores",
    "threads_of",
    "usable_cores",
]
