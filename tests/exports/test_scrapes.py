"""Prometheus reads what the loader measured, for as long as the loader lives."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import exports
from fastfeed.errors import OptionError
from fastfeed.exports.scrapes import cumulative
from fastfeed.stats import Waits

client = pytest.importorskip("prometheus_client")
parser = pytest.importorskip("prometheus_client.parser")

DASHBOARD = Path(__file__).parent.parent.parent / "docs" / "grafana.json"


def scraped(registry):
    """All samples of a registry by name and labels."""
    text = client.generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def registry():
    """A registry of the test's own."""
    return client.CollectorRegistry()


def test_metrics_say_what_was_measured(fake_loader, registry):
    """Counters, gauges and the histogram of waits carry the loader's name and its figures."""
    with exports.prometheus(fake_loader, registry=registry):
        for _ in range(4):
            fake_loader.deliver(steps_s=None)
        found = scraped(registry)
    mine = ("loader", "loader")
    assert found["fastfeed_batches_total", (mine,)] == 4
    assert found["fastfeed_samples_total", (mine,)] == 16
    assert found["fastfeed_bytes_total", (mine,)] == 400
    assert found["fastfeed_workers_in_use", (mine,)] == 2
    assert found["fastfeed_worker_busy_seconds_total", (mine, ("worker", "1"))] == 1.0
    assert found["fastfeed_step_seconds_total", (mine, ("step", "fetch"))] == pytest.approx(1.8)
    assert found["fastfeed_wait_seconds_count", (mine,)] == 4
    assert found["fastfeed_wait_seconds_sum", (mine,)] == 1.0
    assert found["fastfeed_wait_seconds_bucket", (("le", "+Inf"), mine)] == 4
    assert scraped(registry) == {}


@given(st.lists(st.floats(0, 1000), max_size=100))
def test_buckets_only_grow(durations):
    """Cumulative counts rise with the bound, and end at the number of waits."""
    waits = Waits()
    for duration in durations:
        waits.add(duration)
    found = cumulative(waits.spread)
    counts = [count for _, count in found]
    assert counts == sorted(counts)
    assert found[-1] == ("+Inf", len(durations))
    for bound, count in found[:-1]:
        true = sum(duration < float(bound) for duration in durations)
        assert true - sum(d > 0.99 * float(bound) for d in durations) <= count <= len(durations)


def test_several_loaders_have_names(fake_loader, registry):
    """Loaders that are given together share the metrics, each under its own label."""
    other = type(fake_loader)()
    with exports.prometheus({"train": fake_loader, "val": other}, registry=registry):
        fake_loader.deliver()
        found = scraped(registry)
    assert found["fastfeed_batches_total", (("loader", "train"),)] == 1
    assert found["fastfeed_batches_total", (("loader", "val"),)] == 0
    with pytest.raises(OptionError, match="no loader"):
        exports.prometheus({})


def test_a_port_is_served_until_the_end(fake_loader, leak_gauge):
    """The page can be fetched while the export is on; then nothing of the server is left."""
    free = client.start_http_server(0, addr="127.0.0.1", registry=client.CollectorRegistry())
    port = free[0].server_port
    with pytest.raises(OptionError, match=f"port {port} of 127.0.0.1 cannot be served"):
        exports.prometheus(fake_loader, port=port)
    free[0].shutdown()
    free[0].server_close()
    free[1].join()
    fake_loader.deliver()
    with (
        exports.prometheus(fake_loader, port=port),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page,
    ):
        assert b'fastfeed_batches_total{loader="loader"} 1.0' in page.read()


def test_a_fork_ends_without_the_server(fake_loader, leak_gauge):
    """A forked copy of the trainer has no thread to wait for; the trainer's server goes on."""
    with exports.prometheus(fake_loader, port=0) as export:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            export.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not export.closed


def test_a_registry_takes_one_export(fake_loader, registry):
    """Two would give samples with equal labels; once the first is closed there is room again."""
    other = type(fake_loader)()
    export = exports.prometheus(fake_loader, registry=registry)
    for again in (other, {"val": other}):
        with pytest.raises(OptionError, match="by name"):
            exports.prometheus(again, registry=registry, port=0)
    fake_loader.deliver()
    assert scraped(registry)["fastfeed_batches_total", (("loader", "loader"),)] == 1
    export.close()
    with exports.prometheus(other, registry=registry):
        assert scraped(registry)["fastfeed_batches_total", (("loader", "loader"),)] == 0


def test_the_server_ends_with_the_loader(fake_loader, registry, leak_gauge):
    """A loader that nobody holds any more ends its export by itself."""
    loader = type(fake_loader)()
    export = exports.prometheus(loader, registry=registry)
    loader.deliver()
    assert scraped(registry)
    del loader
    assert export.closed
    assert scraped(registry) == {}


def test_without_the_package_it_says_what_to_install(fake_loader, monkeypatch):
    """prometheus-client is an extra."""
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(OptionError, match=r"fastfeed\[prometheus\]"):
        exports.prometheus(fake_loader)


def test_the_dashboard_asks_for_what_there_is(fake_loader, registry):
    """Every metric that the Grafana dashboard names is one that a loader has."""
    with exports.prometheus(fake_loader, registry=registry):
        fake_loader.deliver(stage=True)
        text = client.generate_latest(registry).decode()
    there = set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))
    dashboard = json.loads(DASHBOARD.read_text())
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            asked |= set(re.findall(r"fastfeed_\w+", target["expr"]))
    assert asked
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked} <= there
