"""Two lanes to the device: at work at a time, in order, and lost one by one."""

from __future__ import annotations

import threading

import pytest

import fastfeed as ff
from device_pictures import LABELLED, collect, fields, same
from fake_decoder import FakeDecoder
from fastfeed.device.cut import cut_into
from fastfeed.errors import OptionError


def test_iterators_share_the_decoder_in_turns(mixed, use_decoder, monkeypatch):
    """Two iterators of one loader: what one has decoded is cut before the other decodes."""
    locked = []

    class Watched(FakeDecoder):
        def decode(self, encoded):
            locked.append(loader._device_path._lanes[0].turns.locked())
            return super().decode(encoded)

    def cut(*about, **how):
        locked.append(loader._device_path._lanes[0].turns.locked())
        cut_into(*about, **how)

    use_decoder(Watched())
    monkeypatch.setattr("fastfeed.device.stage.cut_into", cut)
    dataset = ff.ShardDataset(str(mixed), LABELLED)
    loader = ff.DataLoader(dataset, batch_size=8, device="cuda", decode="gpu", num_workers=1)
    for one, other in zip(loader, loader, strict=True):
        assert one["y"].tolist() == other["y"].tolist()
    assert locked
    assert all(locked)


@pytest.fixture
def two_lanes(monkeypatch, use_decoder):
    """A function that makes two decoders those of two lanes."""

    def use(first, second):
        monkeypatch.setattr("fastfeed.device.path.OVERLAPS", {"fake": lambda: True})
        monkeypatch.setattr("fastfeed.device.path.MAKERS", {"fake": lambda _: second()})
        return use_decoder(first)

    return use


def test_a_batch_is_got_ready_while_another_is_decoded(mixed, two_lanes):
    """Two lanes are at work at the same time, and batches come in order all the same."""
    both = threading.Barrier(2, timeout=60)

    class Meets(FakeDecoder):
        def decode(self, encoded):
            if not self.calls:
                both.wait()  # neither goes on before the other has begun
            return super().decode(encoded)

    two_lanes(Meets(), Meets)
    theirs, _ = collect(mixed, fields())
    ours, _ = collect(mixed, fields(), device="cuda", decode="gpu", num_workers=2)
    same(ours, theirs, levels=1)
    assert not both.broken


def test_a_loader_that_is_collected_where_another_decodes(mixed, two_lanes):
    """Its threads may want a lock that is held there: nobody waits for them under it."""
    engines = threading.Lock()
    inside, wanted = threading.Event(), threading.Event()
    collected = []
    before = set(threading.enumerate())

    class Collects(FakeDecoder):
        def decode(self, encoded):
            with engines:
                inside.set()
                assert wanted.wait(60)
                collected.clear()  # the last reference: its end begins here
                return super().decode(encoded)

    class Wants(FakeDecoder):
        def decode(self, encoded):
            assert inside.wait(60)
            wanted.set()
            with engines:
                return super().decode(encoded)

    def batches(kind):
        two_lanes(kind(), kind)
        dataset = ff.ShardDataset(str(mixed), LABELLED)
        loader = ff.DataLoader(dataset, batch_size=8, device="cuda", decode="gpu", num_workers=1)
        return iter(loader)

    collected.append(batches(Wants))
    assert sum(len(batch["y"]) for batch in batches(Collects)) == 24
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


@pytest.mark.parametrize(
    "error",
    [OptionError("its status is 5"), MemoryError("its status is 5")],
    ids=["ours", "theirs"],
)
def test_a_second_lane_that_does_not_start_is_done_without(mixed, two_lanes, caplog, error):
    """Where the device has no room for another decoder, one does all the work."""

    def refuses():
        raise error

    first = two_lanes(FakeDecoder(), refuses)
    theirs, _ = collect(mixed, fields())
    with caplog.at_level("INFO", "fastfeed"):
        ours, _ = collect(mixed, fields(), device="cuda", decode="gpu", num_workers=2)
    same(ours, theirs, levels=1)
    assert first.calls
    assert "status is 5" in caplog.text


def test_both_lanes_lose_their_decoders_once(mixed, two_lanes, caplog):
    """What breaks in both is said once, and the CPU goes on."""
    both = threading.Barrier(2, timeout=60)

    class Breaks(FakeDecoder):
        def decode(self, encoded):
            both.wait()
            return super().decode(encoded)

    two_lanes(Breaks(raises=True), lambda: Breaks(raises=True))
    theirs, _ = collect(mixed, fields())
    ours, _ = collect(mixed, fields(), device="cuda", decode="gpu", num_workers=2)
    same(ours, theirs, levels=0)
    assert caplog.text.count("is given up") == 1
