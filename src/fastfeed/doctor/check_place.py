"""Checks 5 and 10: which cores and memory are near each GPU, and whether the job is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings
from fastfeed.doctor.parse import named_lists, node_bytes, task_stat
from fastfeed.topology import core_text, parse_cores

if TYPE_CHECKING:
    from fastfeed.doctor.seen import Job, Seen

# Part of the job's time or memory that may be elsewhere: some of it always is, in libraries shared
# with other processes for one.
_FAR: Final = 0.3
_REPIN = "start the job with `numactl --cpunodebind` and `--membind`, or let its launcher bind it"


def nodes_of(seen: Seen) -> frozenset[int] | None:
    """Return the NUMA nodes that have cores; None if the machine does not say."""
    text = seen.first.of("sys/devices/system/node/has_cpu")
    return parse_cores(text or seen.first.of("sys/devices/system/node/online")) or None


def near(seen: Seen) -> dict[str, frozenset[int]]:
    """Return the cores near each GPU by its address: sysfs's word, then NVML's."""
    told = {gpu.address: gpu.cores for gpu in seen.gpus}
    return {
        address: place.cores or told.get(address, frozenset())
        for address, place in seen.places.items()
    }


def check_topology(seen: Seen) -> Check:
    """Look where each GPU hangs in the machine (5)."""
    findings = Findings(5, "topology of the GPUs")
    names = {gpu.address: f"GPU {gpu.index}" for gpu in seen.gpus}
    nodes = nodes_of(seen)
    findings.figure("NUMA nodes with cores", core_text(nodes) if nodes else None)
    for address, cores in near(seen).items():
        place, name = seen.places[address], names.get(address, f"GPU {address}")
        findings.figure(f"{name} node", place.node)
        findings.figure(f"{name} cores", core_text(cores) if cores else None)
        if cores and (place.node is not None or (nodes and len(nodes) == 1)):
            node = f"on node {place.node} " if place.node is not None else ""
            findings.add("ok", f"{name} is {node}near cores {core_text(cores)}")
        else:
            why = "; ".join(place.notes) or f"the machine names no cores near {name}"
            findings.add(
                "unknown", why, "on the host: `nvidia-smi topo -m`; in BIOS: NUMA nodes per socket"
            )
    for gpu in seen.gpus:
        for other, way in gpu.others:
            if other > gpu.index:
                findings.figure(f"GPU {gpu.index} to GPU {other}", way)
    if not seen.places:
        findings.add("unknown", f"/sys shows no GPU, and {seen.no_gpus}")
    return findings.check("")


def check_placement(seen: Seen) -> Check:
    """Compare where the job may run, runs and has its memory with where its GPU is (10)."""
    findings = Findings(10, "placement of the job")
    nodes, job = nodes_of(seen), seen.job
    if nodes is not None and len(nodes) == 1:
        findings.add("ok", "the machine has one NUMA node, so everything is near")
        return findings.check("")
    if job is None:
        findings.add("unknown", seen.no_job, "look while the job runs, or name it with --pid")
        return findings.check("")
    mine = _addresses(seen, job)
    cores = frozenset[int]().union(*(near(seen)[address] for address in mine))
    if not cores:
        findings.add("unknown", "it is not known which cores are near the job's GPU")
        return findings.check("")
    findings.figure("cores near the job's GPU", core_text(cores))
    _add_mask(findings, seen, cores)
    home = {seen.places[address].node for address in mine} - {None}
    if home:
        _add_memory(findings, seen, {node for node in home if node is not None})
    return findings.check("")


def _addresses(seen: Seen, job: Job) -> list[str]:
    """Return the GPUs that the job uses; all of them if NVML does not tell."""
    family = set(job.family)
    used = {
        sample.index
        for one in seen.rounds
        for sample in one.gpus
        if any(process.pid in family for process in sample.processes)
    }
    found = [gpu.address for gpu in seen.gpus if gpu.index in used and gpu.address in seen.places]
    return [address for address in found if address] or list(seen.places)


def _add_mask(findings: Findings, seen: Seen, cores: frozenset[int]) -> None:
    status = named_lists(seen.first.of(f"{seen.who}/status"))
    allowed = parse_cores(status.get("Cpus_allowed_list", ""))
    if not allowed:
        findings.add(
            "unknown", f"the job's cores are not known ({seen.first.why(f'{seen.who}/status')})"
        )
        return
    findings.figure("cores the job may use", core_text(allowed))
    if not allowed & cores:
        findings.add(
            "bad",
            f"the job may only use cores {core_text(allowed)}, all far from its GPU "
            f"(near are {core_text(cores)})",
            _REPIN,
        )
    elif allowed <= cores:
        findings.add("ok", f"the job keeps to cores {core_text(allowed)}, near its GPU")
    else:
        _add_running(findings, seen, cores)


def _add_running(findings: Findings, seen: Seen, cores: frozenset[int]) -> None:
    """Judge a job that may run near and far by where its time went while we looked."""
    close = far = 0
    for pid in seen.job.family if seen.job else ():
        before = task_stat(seen.first.of(f"proc/{pid}/stat"))
        after = task_stat(seen.last.of(f"proc/{pid}/stat"))
        if before and after:
            spent = after.user + after.system - before.user - before.system
            close, far = (
                close + spent * (after.core in cores),
                far + spent * (after.core not in cores),
            )
    if close + far <= 0:
        findings.add("unknown", "the job may run near and far, and used no core while we looked")
        return
    share = far / (close + far)
    findings.figure("job's time far from its GPU", share)
    text = f"{share:.0%} of the job's CPU time went to processes far from its GPU"
    findings.add("warn" if share > _FAR else "ok", text, _REPIN if share > _FAR else "")


def _add_memory(findings: Findings, seen: Seen, home: set[int]) -> None:
    status = named_lists(seen.first.of(f"{seen.who}/status"))
    allowed = parse_cores(status.get("Mems_allowed_list", ""))
    if allowed and not allowed & home:
        findings.add(
            "bad",
            f"the job may take memory only of nodes {core_text(allowed)}, its GPU is on "
            f"{core_text(home)}",
            _REPIN,
        )
    name = f"{seen.who}/numa_maps"
    held = node_bytes(seen.last.of(name))
    total = sum(held.values())
    if not total:
        findings.add(
            "unknown",
            f"where the job's memory lies is not known ({seen.last.why(name)})",
            "run as the job's user or as root",
        )
        return
    share = sum(size for node, size in held.items() if node not in home) / total
    findings.figure("job's memory far from its GPU", share)
    findings.figure("job's memory, MiB", total >> 20)
    if share > _FAR:
        findings.add(
            "warn", f"{share:.0%} of the job's {total / 1e9:.1f} GB lie far from its GPU", _REPIN
        )
