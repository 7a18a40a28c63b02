"""The log gets a line of the last seconds, and TensorBoard a point of the last batches."""

from __future__ import annotations

import logging

import pytest

from fastfeed import exports
from fastfeed.errors import OptionError


class FakeWriter:
    """Keeps the points it is given."""

    def __init__(self):
        self.points = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.points.append((tag, scalar_value, global_step))


def test_log_tells_of_the_last_seconds(fake_loader, caplog):
    """A line comes when the time is over at a batch, and is of the batches since the one before."""
    caplog.set_level(logging.INFO, logger="fastfeed")
    with exports.log(fake_loader, every_s=10):
        for _ in range(10):
            fake_loader.deliver()  # one a second, a quarter of it waited for
        assert not caplog.records
        for _ in range(11):
            fake_loader.deliver(wait=0.75, steps_s={"read": 0.1})
    first, second = (record.getMessage() for record in caplog.records)
    assert "4 samples/s" in first
    assert "the loop waited 30.2% of its time" in first
    assert "the loop waited 75.0% of its time" in second
    assert "batches ready" in second


def test_log_goes_where_it_is_sent(fake_loader, caplog):
    """Another logger and level may be given, and nothing is logged after the end."""
    elsewhere = logging.getLogger("training")
    with exports.log(fake_loader, every_s=0, logger=elsewhere, level=logging.WARNING):
        fake_loader.deliver()
    fake_loader.deliver()
    assert [(one.name, one.levelname) for one in caplog.records] == [("training", "WARNING")]
    with pytest.raises(OptionError, match="every_s=-1"):
        exports.log(fake_loader, every_s=-1)


def test_log_starts_where_it_was_switched_on(fake_loader, caplog):
    """What the loader did before is not in the first line."""
    caplog.set_level(logging.INFO, logger="fastfeed")
    for _ in range(1000):
        fake_loader.deliver(wait=0.0)
    with exports.log(fake_loader, every_s=2):
        for _ in range(3):
            fake_loader.deliver(wait=0.5)
    assert "42.9% of its time" in caplog.text  # 1.5 s of the 3.5 s since it was switched on


def test_tensorboard_gets_the_last_batches(fake_loader):
    """Every so many batches there is one point of each curve, of the batches since the last."""
    writer = FakeWriter()
    with exports.tensorboard(fake_loader, writer, every=5, prefix="train"):
        for number in range(12):
            fake_loader.deliver(wait=0.25 if number < 5 else 0.5, stage=True)
    steps = [step for tag, _, step in writer.points if tag == "train/wait_ms/max"]
    assert steps == [5, 10]
    last = {tag: value for tag, value, step in writer.points if step == 10}
    assert last["train/wait_ms/p50"] == pytest.approx(500, rel=0.19)
    assert last["train/waited_percent"] == pytest.approx(50, rel=0.1)
    assert last["train/step_ms/fetch"] == pytest.approx(450)
    assert last.keys() == {
        f"train/{name}"
        for name in (
            *("samples_per_s", "waited_percent", "batches_ready", "workers_busy_percent"),
            *("wait_ms/p50", "wait_ms/p95", "wait_ms/p99", "wait_ms/max"),
            *("step_ms/fetch", "step_ms/slots"),
        )
    }


def test_tensorboard_refuses_what_it_cannot_use(fake_loader):
    """A writer without add_scalar, and no batches between points, are errors at once."""
    with pytest.raises(OptionError, match="no add_scalar"):
        exports.tensorboard(fake_loader, object())
    with pytest.raises(OptionError, match="every=0"):
        exports.tensorboard(fake_loader, FakeWriter(), every=0)


def test_tensorboard_writes_files_of_torch(small_loader, tmp_path):
    """Torch's own writer takes the points."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    loader = small_loader()
    with SummaryWriter(tmp_path) as writer, exports.tensorboard(loader, writer, every=4):
        assert len(list(loader)) == 8
    assert any(path.stat().st_size > 100 for path in tmp_path.iterdir())
