"""Pinned memory: once, within the budget, and no copy over the border of two pieces."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.device import pinning
from fastfeed.device.pinning import Pinner
from fastfeed.device.share import Share
from fastfeed.device.stage import Stage
from fastfeed.device.transfer import Transfer, map_leaves
from fastfeed.policy import FeedReport

MIB = 1 << 20


class Pins:
    """The part of a device that pins."""

    def __init__(self, *, refuses=False):
        self.pinned, self.refuses = {}, refuses
        self.target = torch.device("cpu")

    def enter_thread(self):
        pass

    def pin(self, address, nbytes):
        if self.refuses:
            return "CUDA error 304"
        self.pinned[address] = nbytes
        return None

    def unpin(self, address):
        del self.pinned[address]


def region(base, capacity=512 * MIB):
    return SimpleNamespace(base=base, capacity=capacity)


def settled(pinner):
    """Wait until all that was asked for has been done."""
    pinner._jobs.put(None)
    if pinner.thread is not None:
        pinner.thread.join()
    pinner.thread = None


@pytest.fixture
def often_switched():
    """Threads take turns as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_the_first_piece_has_room_for_a_workers_batches():
    """A region is registered in one piece that holds as many batches as it will, and some more."""
    device = Pins()
    pinner = Pinner(device, budget=1 << 30, batches=4)
    pinner.use(region(1 << 40), 20 * MIB)
    pinner.use(region(1 << 40), 80 * MIB)
    settled(pinner)
    assert device.pinned == {1 << 40: 104 * MIB}
    assert pinner.nbytes == 104 * MIB
    assert list(pinner.pieces(1 << 40, 104 * MIB)) == [(0, 104 * MIB)]
    pinner.close()
    assert device.pinned == {}


def test_room_for_gaps_is_not_taken_from_other_workers():
    """A budget that holds all workers' batches does so, with little more for each."""
    device = Pins()
    pinner = Pinner(device, budget=1 << 30, batches=4, regions=8)
    for number in range(8):
        pinner.use(region((number + 1) << 40), 30 * MIB)
    settled(pinner)
    assert pinner.refused is None
    assert set(device.pinned.values()) == {128 * MIB}
    assert not pinner.is_behind
    pinner.close()


def test_what_was_timed_while_memory_was_pinned_teaches_nothing():
    """The split hears of typical batches only, and each one's waits are its own."""
    heard = []
    share = Share(SimpleNamespace(share=0.25, observe=heard.append))
    moved = SimpleNamespace(seconds=0.01, held_s=0.0)
    for number, is_typical in enumerate((False, True)):
        assert share.ask(0, number, samples=8) == 0.25
        report = FeedReport(steps_s={"decode": 0.5}, deferred=2)
        result = SimpleNamespace(generation=0, number=number, report=report, busy_s=1.0)
        share.delivered(result, moved, is_typical=is_typical)
    assert [(one.share, one.decoded, one.stage_s) for one in heard] == [(0.25, 6, 0.01)]


class Met:
    """A region at which two threads meet when each first looks at it."""

    capacity = 512 * MIB

    def __init__(self):
        self._both, self._been = threading.Barrier(2, timeout=60), set()

    @property
    def base(self):
        if threading.get_ident() not in self._been:
            self._been.add(threading.get_ident())
            self._both.wait()
        return 1 << 40


def test_lanes_that_ask_at_once_register_memory_once():
    """Two batches of one worker, moved side by side: no piece is registered twice, or by halves."""
    device, one = Pins(), Met()
    pinner = Pinner(device, budget=1 << 30)
    with ThreadPoolExecutor(2) as lanes:
        list(lanes.map(lambda mib: pinner.use(one, mib * MIB), (100, 20)))
    settled(pinner)
    ends = [start + nbytes for start, nbytes in sorted(device.pinned.items())]
    assert sorted(device.pinned) == [1 << 40, *ends[:-1]]
    assert pinner.asked == pinner.nbytes == sum(device.pinned.values())
    pinner.close()
    assert device.pinned == {}


@pytest.mark.parametrize(("held_s", "pace_s"), [(0.0, 0.01), (0.016, 0.016)])
def test_lanes_bring_batches_at_the_pace_of_what_they_share(held_s, pace_s):
    """Two of them need half of a batch's time each, but for what one at a time may have."""
    heard = []
    share = Share(SimpleNamespace(share=0.25, observe=heard.append), lanes=2)
    share.ask(0, 0, samples=8)
    result = SimpleNamespace(generation=0, number=0, report=FeedReport(), busy_s=1.0)
    moved = SimpleNamespace(seconds=0.02, held_s=held_s)
    share.delivered(result, moved, is_typical=True)
    assert [one.stage_s for one in heard] == [pace_s]


def test_copies_end_at_borders():
    """What reaches over two pieces is copied in two; what is not registered in one."""
    pinner = Pinner(Pins(), budget=1 << 30)
    for stop in (6 * MIB, 12 * MIB, 25 * MIB):
        pinner.use(region(1 << 40), stop)
    settled(pinner)
    base = 1 << 40
    assert list(pinner.pieces(base + 4 * MIB, 14 * MIB)) == [
        (0, 4 * MIB),
        (4 * MIB, 12 * MIB),
        (12 * MIB, 14 * MIB),
    ]
    assert list(pinner.pieces(base + 30 * MIB, 4 * MIB)) == [(0, 2 * MIB), (2 * MIB, 4 * MIB)]
    assert list(pinner.pieces(base + 64 * MIB, 4 * MIB)) == [(0, 4 * MIB)]
    assert list(pinner.pieces(12345, 4 * MIB)) == [(0, 4 * MIB)]
    pinner.close()


def test_one_budget_for_all_loaders(caplog):
    """Two loaders share the budget; beyond it memory stays as it is, which is said once."""
    device = Pins()
    first, second = (Pinner(device, budget=64 * MIB) for _ in range(2))
    first.use(region(1 << 40), 40 * MIB)
    second.use(region(1 << 41), 40 * MIB)
    second.use(region(1 << 41), 48 * MIB)
    settled(first)
    settled(second)
    assert sum(device.pinned.values()) == 56 * MIB
    assert second.refused is not None
    assert sum("pinned memory" in record.message for record in caplog.records) == 1
    first.close()
    second.close()
    third = Pinner(device, budget=64 * MIB)
    third.use(region(1 << 42), 40 * MIB)
    settled(third)
    assert device.pinned == {1 << 42: 56 * MIB}
    third.close()


def test_loaders_in_many_threads_share_the_budget(often_switched):
    """However their threads mix, pinners that come and grow at a time stay within the budget."""
    device = Pins()
    begin = threading.Barrier(4)
    made = []

    def grow(number):
        begin.wait(60)
        for one in range(50):
            pinner = Pinner(device, budget=256 * MIB)
            made.append(pinner)
            pinner.use(region((number * 50 + one + 1) << 40), 8 * MIB)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(grow, range(4)))
    for pinner in made:
        settled(pinner)
    assert sum(device.pinned.values()) == 256 * MIB
    for pinner in made:
        pinner.close()
    assert device.pinned == {}


def test_who_is_waited_for_while_the_budget_is_shared_gives_up():
    """What is collected there may end another loader, whose thread may want its share just then."""
    first, second = (Pinner(Pins(), budget=1 << 30) for _ in range(2))
    ended = []

    class Collected:
        @property
        def asked(self):
            if not ended:
                thread = threading.Thread(target=second.use, args=(region(1 << 41), 8 * MIB))
                thread.daemon = True
                thread.start()
                thread.join(20)
                ended.append(not thread.is_alive())
            return 0

    collected = Collected()
    pinning._living.add(collected)
    first.use(region(1 << 40), 8 * MIB)
    assert ended == [True]
    assert (first.asked, second.asked) == (16 * MIB, 0)
    second.use(region(1 << 41), 8 * MIB)
    assert second.asked == 16 * MIB
    first.close()
    second.close()


def test_others_see_no_pinner_that_is_not_whole(monkeypatch):
    """A loader that begins while another one grows has asked for nothing."""
    seen = []
    monkeypatch.setattr(pinning, "_living", SimpleNamespace(add=lambda one: seen.append(one.asked)))
    Pinner(Pins(), budget=1 << 30)
    assert seen == [0]


def test_refused_pinning_is_said_once(caplog):
    """A driver that refuses is asked no more, and the loader goes on."""
    pinner = Pinner(Pins(refuses=True), budget=1 << 30)
    for number in range(3):
        pinner.use(region((number + 1) << 40), 8 * MIB)
    settled(pinner)
    assert "304" in pinner.refused
    assert pinner.nbytes == 0
    assert sum("ulimit" in record.message for record in caplog.records) == 1
    pinner.close()


def bytes_at(tensor, borders):
    """Return a pinner to whom the tensor's memory has pieces that end at these places."""
    pinner = Pinner(Pins(), budget=1 << 30)
    base = tensor.data_ptr()
    pinner._regions[base] = SimpleNamespace(base=base, capacity=tensor.nbytes)
    pinner._borders[base] = [base + border for border in borders]
    return pinner


def test_borders_are_known_before_memory_is_registered():
    """A copy that is asked for while the driver registers a piece does not reach over its end."""
    device, go_on = Pins(), threading.Event()
    pin = device.pin
    device.pin = lambda *piece: go_on.wait(60) and pin(*piece)
    pinner = Pinner(device, budget=1 << 30)
    for stop in (6 * MIB, 12 * MIB):
        pinner.use(region(1 << 40), stop)
    try:
        assert list(pinner.pieces(1 << 40, 16 * MIB)) == [(0, 8 * MIB), (8 * MIB, 16 * MIB)]
    finally:
        go_on.set()
    settled(pinner)
    pinner.close()
    assert device.pinned == {}


@given(st.lists(st.integers(1, 3999), unique=True).map(sorted), st.booleans())
def test_pieces_make_the_whole(borders, last):
    """However many borders there are, a tensor arrives whole, whatever its strides."""
    source = torch.arange(1000, dtype=torch.int32).view(2, 20, 25)
    source = source.movedim(-1, -2) if last else source
    copied = Transfer(Pins(), bytes_at(source, borders)).send(source)
    assert torch.equal(copied, source)
    assert copied.stride() == source.stride()


def test_decoders_never_see_a_border():
    """Encoded bytes over two pieces go to the decoder as a copy: its own copies know no pieces."""
    data = torch.arange(200, dtype=torch.uint8)
    whole = Transfer(Pins(), bytes_at(data, [300])).in_one_piece(data)
    apart = Transfer(Pins(), bytes_at(data, [100])).in_one_piece(data)
    assert whole.data_ptr() == data.data_ptr()
    assert apart.data_ptr() != data.data_ptr()
    assert torch.equal(apart, data)


def test_a_decoder_that_raises_is_given_up():
    """What breaks a library ends its use, with the reason, and pictures go to the CPU."""
    said = []

    class Broken:
        name = "broken"

        def decode(self, encoded):
            raise RuntimeError("the engines are gone")

    stage = Stage(Pins(), decoder=Broken(), lost=said.append)
    assert stage._try(None) is None
    assert stage._try(None) is None
    assert said == ["broken: the engines are gone"]


class Own(dict):
    """A mapping that knows more than its items."""

    def __init__(self, items=(), *, note=None):
        super().__init__(items)
        self.note = note


@pytest.mark.parametrize("tree", [{"a": 1}, [1, 2], (1, (2, [3])), Own({"a": 1}, note="kept")])
def test_trees_keep_their_types(tree):
    """Containers come out as they went in, with what they know of themselves."""
    changed = map_leaves(tree, lambda leaf: leaf)
    assert changed == tree
    assert type(changed) is type(tree)
    assert getattr(changed, "note", None) == getattr(tree, "note", None)
