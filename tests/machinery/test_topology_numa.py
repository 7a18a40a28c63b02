"""GPUs in recorded trees of /sys: nodes, cores near them, and what machines leave out."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.topology import (
    core_text,
    gpu_addresses,
    gpu_cores,
    gpu_locality,
    gpu_node,
    own_affinity,
    parse_cores,
    pci_address,
    place_workers,
    sibling_cores,
)

PCI = "sys/bus/pci/devices"
NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
FOUR = ("0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0")


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def gpu(address, **files):
    texts = {"vendor": "0x10de", "class": "0x030200"} | files
    return {f"{PCI}/{address}/{name}": text for name, text in texts.items()}


def two_sockets():
    """Sixteen cores of two threads each on two nodes, two GPUs and a network card at each."""
    files = {f"{NODES}/has_cpu": "0-1", f"{NODES}/online": "0-1"}
    lists = ("0-7,16-23", "8-15,24-31")
    for node, cores in enumerate(lists):
        files[f"{NODES}/node{node}/cpulist"] = cores
    for i, address in enumerate(FOUR):
        files |= gpu(address, numa_node=str(i // 2), local_cpulist=lists[i // 2])
    files |= gpu("0000:18:00.0", vendor="0x15b3", numa_node="0", local_cpulist=lists[0])
    for core in range(32):
        files[f"{CPUS}/cpu{core}/topology/thread_siblings_list"] = f"{core % 16},{core % 16 + 16}"
    return files


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:E1:1F.7", "10000:e1:1f.7"),
        ("3b:00.0", "0000:3b:00.0"),
        (" 0000:3b:00 ", "0000:3b:00.0"),
        ("0:3b:0.0", "0000:3b:00.0"),
        ("", None),
        ("MIG-4d1c9d8b-3a5e-5b0f-8a9c-000000000000", None),
        ("GPU-4d1c9d8b", None),
        ("0000:3b:20.0", None),
        ("0000:3b:00.8", None),
        ("../../etc", None),
        ("0000:3b:00.0/..", None),
        ("٣b:00.0", None),
    ],
)
def test_c74_addresses(text, address):
    """Addresses of NVML, CUDA, lspci and sysfs are the same; other names are none."""
    assert pci_address(text) == address


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("", set()),
        ("\n", set()),
        ("0", {0}),
        ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        ("3-1", None),
        ("0-3,", None),
        ("0 1", None),
        ("-1", None),
        ("0-4294967295", None),
        ("0-70000", None),
        ("0-3:1/2", None),
        ("0000ffff", None),
        ("٣", None),
    ],
)
def test_lists_of_cores(text, cores):
    """Ranges and single cores are read; a garbled list is no list, however long its range."""
    assert parse_cores(text) == cores


@given(st.frozensets(st.integers(0, 600)))
def test_written_lists_are_read_back(cores):
    """What is written for people is what the kernel writes, and reads back the same."""
    assert parse_cores(core_text(cores)) == (cores or None)


@given(st.text(alphabet="0123456789,- \n") | st.text())
def test_any_text_is_a_list_or_none(text):
    """Nothing that a file may hold raises, and no list names a core that no kernel has."""
    assert max(parse_cores(text) or {0}) < 1 << 16


def test_two_sockets_with_four_gpus(tmp_path):
    """Each GPU has its node and the cores there; a network card is no GPU."""
    root = tree(tmp_path, two_sockets())
    assert gpu_addresses(root) == FOUR
    assert [gpu_node(address, root) for address in FOUR] == [0, 0, 1, 1]
    assert gpu_cores("00000000:CA:00.0", root) == {*range(8, 16), *range(24, 32)}
    assert gpu_locality(FOUR[0], root).notes == ()
    assert sibling_cores([0, 1, 16], root) == ({0, 16}, {1, 17})


ONE_NODE = {f"{NODES}/has_cpu": "0", f"{NODES}/online": "0", f"{NODES}/node0/cpulist": "0-7"}
TWO_NODES = ONE_NODE | {f"{NODES}/has_cpu": "0-1", f"{NODES}/node1/cpulist": "8-15"}
HERE = "0000:3b:00.0"


@pytest.mark.parametrize(
    ("files", "node", "cores", "notes"),
    [
        (ONE_NODE | gpu(HERE, numa_node="0", local_cpulist="0-7"), 0, "0-7", []),
        # Firmware that names no node: with one node it is that one.
        (ONE_NODE | gpu(HERE, numa_node="-1", local_cpulist="0-7"), 0, "0-7", []),
        (TWO_NODES | gpu(HERE, numa_node="-1", local_cpulist="0-15"), None, "0-15", ["'-1'"]),
        # A GPU's own memory is a node without cores on some machines.
        (
            ONE_NODE | {f"{NODES}/online": "0,2"} | gpu(HERE, numa_node="-1", local_cpulist="0-7"),
            0,
            "0-7",
            [],
        ),
        ({f"{NODES}/online": "0"} | gpu(HERE, numa_node="-1"), 0, "", ["no cores near"]),
        (TWO_NODES | gpu(HERE, numa_node="1", local_cpulist=""), 1, "8-15", []),
        (TWO_NODES | gpu(HERE, numa_node="1"), 1, "8-15", []),
        (TWO_NODES | gpu(HERE, numa_node="1", local_cpulist="8-x"), 1, "8-15", ["garbled"]),
        (TWO_NODES | gpu(HERE, numa_node="7", local_cpulist=""), 7, "", ["no cores near"]),
        (TWO_NODES | gpu(HERE, local_cpulist="0-7"), None, "0-7", ["no numa_node"]),
        (TWO_NODES | gpu(HERE, numa_node="two"), None, "", ["'two'", "no cores near"]),
        (TWO_NODES | gpu(HERE), None, "", ["no numa_node", "no cores near"]),  # as under MIG
        (TWO_NODES, None, "", ["does not show the GPU"]),
        ({}, None, "", ["does not show the GPU"]),
    ],
)
def test_c74_what_machines_leave_out(tmp_path, files, node, cores, notes):
    """Missing, empty and garbled entries are filled from the node's own, or told in a note."""
    found = gpu_locality(HERE, tree(tmp_path, files))
    assert (found.node, found.cores) == (node, parse_cores(cores))
    assert len(found.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, found.notes, strict=True))


def test_c74_a_name_that_is_no_address(tmp_path):
    """An id of NVML or MIG finds nothing, says so, and never becomes a path."""
    for name in ("MIG-GPU-12/3/0", "../../../etc"):
        found = gpu_locality(name, tmp_path)
        assert (found.address, found.node, found.cores) == (name, None, frozenset())
        assert "not a PCI address" in found.notes[0]


def torchrun(rank, size):
    return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}


@pytest.mark.parametrize("visible", [FOUR, ()])
@pytest.mark.parametrize("order", list(itertools.permutations(FOUR))[::5])
def test_c74_ranks_in_any_order_of_gpus(tmp_path, order, visible):
    """However ranks are dealt to GPUs, each gets whole cores of its GPU's node, and only it."""
    root = tree(tmp_path, two_sockets())
    plans = [
        place_workers(
            order[rank],
            environment=torchrun(rank, 4),
            peers=visible or (order[rank],),  # the others may be hidden by CUDA_VISIBLE_DEVICES
            affinity=range(32),
            root=root,
        )
        for rank in range(4)
    ]
    assert sorted(core for plan in plans for core in plan.cores) == list(range(32))
    for address, plan in zip(order, plans, strict=True):
        assert set(plan.cores) <= gpu_cores(address, root)
        assert {core % 16 for core in plan.cores} == {core for core in plan.cores if core < 16}
        assert len(plan.cores) == 8
        assert plan.notes == ()


def test_bound_ranks_keep_their_cores(tmp_path):
    """What Slurm bound to each rank is only cut to the GPU's node, not divided again."""
    environment = {
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_LOCALID": "1",
        "SLURM_CPU_BIND_LIST": "0x00ff00ff,0xff00ff00",
    }
    root = tree(tmp_path, two_sockets())
    plan = place_workers(FOUR[2], environment=environment, affinity=range(6, 12), root=root)
    assert plan.cores == (8, 9, 10, 11)
    assert plan.node == 1


def test_no_sysfs_and_no_launcher(tmp_path):
    """Where nothing is known, workers may use what the process may use."""
    plan = place_workers(HERE, environment={}, affinity={5, 3}, root=tmp_path)
    assert plan.cores == (3, 5)
    assert plan.node is None
    assert len(plan.notes) == 1


def test_real_machine():
    """On the machine at hand the answer lies within the mask, whatever devices there are."""
    devices = Path("/", PCI)
    names = sorted(path.name for path in devices.iterdir()) if devices.is_dir() else []
    for address in [*names, HERE]:
        plan = place_workers(address, environment={})
        assert set(plan.cores) <= set(own_affinity())
        assert plan.cores
