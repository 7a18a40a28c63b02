"""Cores for the workers of each rank: disjoint, whole, near the GPU, and never beyond the mask."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.topology import Locality, parse_cores, pin_to, plan_cores


def near(name, cores, node=None):
    return Locality(name, node, parse_cores(cores), ())


def plans_of(gpus, allowed, siblings=()):
    """Plan for one rank at each GPU, all of them knowing all GPUs."""
    return [
        plan_cores(
            allowed=allowed,
            local=gpu,
            rank=rank,
            local_ranks=len(gpus),
            peers=gpus,
            siblings=siblings,
        )
        for rank, gpu in enumerate(gpus)
    ]


@st.composite
def machines(draw):
    """A mask, GPUs with nodes of any cores (also none, also outside), and pairs of siblings."""
    total = draw(st.integers(1, 48))
    nodes = draw(st.integers(1, 4))
    cores = [set() for _ in range(nodes)]
    for core in range(total):
        cores[draw(st.integers(0, nodes - 1))].add(core)
    kinds = st.sampled_from([*map(frozenset, cores), frozenset(), frozenset({1000})])
    gpus = [
        Locality(f"gpu{i}", None, local, ())
        for i, local in enumerate(draw(st.lists(kinds, min_size=1, max_size=9)))
    ]
    mask = draw(st.frozensets(st.integers(0, total - 1), min_size=1))
    step = draw(st.integers(1, total))
    siblings = [{core, core + step} for core in range(0, total, 2 * step)]
    return gpus, mask, draw(st.sampled_from([(), siblings]))


@given(machines())
def test_shares_are_disjoint_and_within_the_mask(machine):
    """No plan leaves the mask or is empty; two overlap only where cores do not go round."""
    gpus, mask, siblings = machine
    plans = plans_of(gpus, mask, siblings)
    for gpu, plan in zip(gpus, plans, strict=True):
        assert plan.cores
        assert set(plan.cores) <= mask
        assert list(plan.cores) == sorted(set(plan.cores))
        if gpu.cores & mask and all(other.cores & mask for other in gpus):
            assert set(plan.cores) <= gpu.cores
    lent = [core for plan in plans for core in plan.cores]
    if not any("ranks share cores" in note for plan in plans for note in plan.notes):
        assert len(lent) == len(set(lent))
        # Nothing that is near a GPU lies idle.
        assert set(lent) >= mask & frozenset[int]().union(*(gpu.cores for gpu in gpus))


@given(machines(), st.data())
def test_ranks_that_know_only_themselves(machine, data):
    """Without peers, ranks that are near the same cores still share them without overlap."""
    gpus, mask, siblings = machine
    size = data.draw(st.integers(1, len(mask)))
    cores = gpus[0].cores if len(gpus[0].cores & mask) >= size else mask
    plans = [
        plan_cores(
            allowed=mask,
            local=Locality(f"gpu{rank}", 0, cores, ()),
            rank=rank,
            local_ranks=size,
            siblings=siblings,
        )
        for rank in range(size)
    ]
    assert sorted(core for plan in plans for core in plan.cores) == sorted(cores & mask)


def test_eight_ranks_on_two_nodes():
    """Four ranks a node, each a contiguous quarter of it."""
    gpus = [near(f"gpu{i}", "0-31" if i < 4 else "32-63", i // 4) for i in range(8)]
    plans = plans_of(gpus, range(64))
    assert [plan.cores for plan in plans] == [tuple(range(8 * i, 8 * i + 8)) for i in range(8)]
    assert plans[5].why == "cores 40-47 near GPU gpu5 on NUMA node 1, one of 4 shares"
    assert all(plan.notes == () for plan in plans)


def test_siblings_stay_together():
    """Hardware threads of one core go to one rank, unless there are more ranks than cores."""
    siblings = [{core, core + 4} for core in range(4)]
    gpus = [near(f"gpu{i}", "0-7") for i in range(3)]
    assert [p.cores for p in plans_of(gpus, range(8), siblings)] == [(0, 4), (1, 5), (2, 3, 6, 7)]
    assert [p.cores for p in plans_of(gpus, {0, 4, 1}, siblings)] == [(0,), (4,), (1,)]


def test_the_users_mask_is_not_widened():
    """A mask across nodes is cut to the GPU's; a mask elsewhere stays, with a note."""
    (plan,) = plans_of([near("gpu", "0-7", 0)], {6, 7, 8})
    assert plan.cores == (6, 7)
    (plan,) = plans_of([near("gpu", "0-7", 0)], {8, 9})
    assert plan.cores == (8, 9)
    assert "near GPU gpu (0-7) are none of this process's (8-9)" in plan.notes[0]
    assert plan.why == "cores 8-9 of the process's mask"


def test_ranks_far_from_the_mask_share_it_with_those_near():
    """With all cores on one node, ranks of the other node's GPUs take shares of them as well."""
    gpus = [near(f"gpu{i}", "0-7" if i < 2 else "8-15", i // 2) for i in range(4)]
    assert [plan.cores for plan in plans_of(gpus, range(8))] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_more_ranks_than_cores():
    """Each rank has a core even then, and the note says that ranks share them."""
    plans = plans_of([near(f"gpu{i}", "0-1") for i in range(5)], range(2))
    assert [plan.cores for plan in plans] == [(0,), (1,), (0,), (1,), (0,)]
    assert all("do not go round" in plan.notes[0] for plan in plans)


@pytest.mark.parametrize(
    "peers",
    [
        [],
        [near("gpu", "0-7")],
        [near("gpu", "0-7"), near("gpu", "0-7")],
        [near("other", "0-7"), near("third", "0-7")],
    ],
)
def test_peers_that_do_not_fit_are_not_believed(peers):
    """Too few GPUs, one GPU twice or without one's own: shares go by rank, with a note."""
    plan = plan_cores(
        allowed=range(8), local=near("gpu", "0-7"), rank=1, local_ranks=2, peers=peers
    )
    assert plan.cores == (4, 5, 6, 7)
    assert "is not known" in plan.notes[0]


def test_a_rank_without_a_number():
    """A launcher that tells only the size leaves each rank all its cores: it had them before."""
    plan = plan_cores(allowed=range(8), local=near("gpu", "0-3"), rank=None, local_ranks=4)
    assert plan.cores == (0, 1, 2, 3)
    assert "which of 4 local ranks" in plan.notes[0]


def in_a_thread(function):
    """Run where pinning ends with the thread, so that the test's process stays as it was."""
    results = []
    thread = threading.Thread(target=lambda: results.append((function(), os.sched_getaffinity(0))))
    thread.start()
    thread.join()
    return results[0]


def test_pinning_is_real():
    """The system reports the cores asked for, of those the thread had, and no note."""
    mask = os.sched_getaffinity(0)
    assert in_a_thread(lambda: pin_to([min(mask), 1 << 20])) == (None, {min(mask)})
    assert in_a_thread(lambda: pin_to(mask)) == (None, mask)
    assert os.sched_getaffinity(0) == mask


@pytest.mark.parametrize("cores", [(), (1 << 20,), (-1,)])
def test_c74_pinning_to_others_cores_is_a_note(cores):
    """Cores outside the mask are not tried, and everything stays."""
    note, mask = in_a_thread(lambda: pin_to(cores))
    assert "not pinned" in note
    assert mask == os.sched_getaffinity(0)


@pytest.mark.parametrize("error", [OSError(22, "Invalid argument"), PermissionError(1, "No")])
def test_c74_refused_pinning_is_a_note(monkeypatch, error):
    """What a container refuses is told, not raised."""

    def refuse(pid, cores):
        raise error

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert pin_to([1]) == f"not pinned to cores 1: {error.strerror}"


def test_platforms_without_pinning(monkeypatch):
    """Where the system has no such call, nothing is done and nothing said."""
    monkeypatch.delattr(os, "sched_setaffinity")
    assert pin_to([0]) is None
