"""Metrics for Prometheus: read from the loader when it is scraped, at no cost in between.

docs/grafana.json is a dashboard over them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fastfeed.errors import OptionError
from fastfeed.exports.export import Export, collector_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastfeed.exports.export import Measured
    from fastfeed.stats import Snapshot, Spread

# Upper bounds of the buckets of waits, in seconds: always the same ones, or rates mean nothing.
_BOUNDS: Final = tuple(1e-6 * 4**power for power in range(1, 15))

Sample = tuple[tuple[str, ...], float]


def prometheus(
    loader: Measured | Mapping[str, Measured],
    *,
    port: int | None = None,
    address: str = "127.0.0.1",
    registry: Any = None,
) -> Export:
    """Serve the loader's metrics to Prometheus on `port`, or add them to what is served already.

    Several loaders of a process are given together, by name: `{"train": train, "val": val}`; the
    name is the label `loader`. `address` says who may ask: "0.0.0.0" is everybody that reaches this
    machine. Without a port the metrics are added to `registry`, or to prometheus_client's own,
    which takes them once. It needs the package prometheus-client (the extra fastfeed[prometheus]).
    It ends with the first of the loaders; in a forked child it only lets go of the port.
    """
    try:
        import prometheus_client as client
    except ImportError as error:
        raise OptionError(
            "prometheus-client is not installed",
            way_out="pip install prometheus-client, or fastfeed[prometheus]",
        ) from error
    loaders = loader if isinstance(loader, Mapping) else {"loader": loader}
    if not loaders:
        raise OptionError("no loader is given")
    for one in loaders.values():
        collector_of(one)
    if port is not None and registry is None:
        registry = client.CollectorRegistry()
    registry = client.REGISTRY if registry is None else registry
    metrics, pid = _Metrics(loaders), os.getpid()
    try:
        registry.register(metrics)
    except ValueError as error:
        raise OptionError(
            "this registry has metrics of fastfeed already",
            way_out='Give all loaders in one call, by name: {"train": train, "val": val}; or '
            "another registry; or close the first export",
        ) from error
    try:
        unserve = None if port is None else _serve(port, address, registry)
    except BaseException:
        registry.unregister(metrics)
        raise

    def close() -> None:
        if unserve is not None:
            unserve()
        if os.getpid() == pid:  # in a fork the registry's lock may be one that nobody opens
            registry.unregister(metrics)

    return Export(next(iter(loaders.values())), close)


def _serve(port: int, address: str, registry: Any) -> Callable[[], None]:
    """Serve until the result is called."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise OptionError(
            f"port {port} of {address} cannot be served: {error.strerror or error}",
            way_out="Choose another port; each process of a node needs its own",
        ) from error
    pid = os.getpid()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    def end() -> None:
        if os.getpid() != pid:  # the thread that would end the server stayed behind
            server.socket.close()
        elif threading.current_thread() is thread:  # the last reference to a loader went away here
            threading.Thread(target=stop, name="fastfeed-unserve", daemon=True).start()
        else:
            stop()

    return end


class _Metrics:
    """Is asked by a registry for each scrape."""

    def __init__(self, loaders: Mapping[str, Measured]) -> None:
        self._loaders = {name: weakref.ref(loader) for name, loader in loaders.items()}

    def describe(self) -> Iterator[Any]:
        """Yield what has the names of all metrics, so that a registry takes them once."""
        return self.collect()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all loaders."""
        from prometheus_client import core

        seen: dict[str, Snapshot] = {}
        in_use: list[Sample] = []
        for name, reference in self._loaders.items():
            loader = reference()
            if loader is not None:
                seen[name] = loader.stats()
                in_use.append(((name,), loader.workers_in_use))
        for name, about, labels, samples in counters(seen):
            counter = core.CounterMetricFamily(name, about, labels=("loader", *labels))
            for values, value in samples:
                counter.add_metric(values, value)
            yield counter
        gauges = [*_gauges(seen), ("fastfeed_workers_in_use", "Workers that get jobs", in_use)]
        for name, about, samples in gauges:
            gauge = core.GaugeMetricFamily(name, about, labels=("loader",))
            for values, value in samples:
                gauge.add_metric(values, value)
            yield gauge
        waits = core.HistogramMetricFamily(
            "fastfeed_wait_seconds", "Waits of the loop for a batch", labels=("loader",)
        )
        for name, snapshot in seen.items():
            waits.add_metric((name,), cumulative(snapshot.wait), snapshot.waited_s)
        yield waits


def cumulative(spread: Spread) -> list[tuple[str, float]]:
    """Return how many durations are at most as long as each bound, and as any."""
    found = [
        (f"{bound:.6g}", float(sum(n for upper, n in spread.buckets if upper <= bound * 1.001)))
        for bound in _BOUNDS
    ]
    return [*found, ("+Inf", float(spread.count))]


def counters(
    seen: Mapping[str, Snapshot],
) -> Iterator[tuple[str, str, tuple[str, ...], list[Sample]]]:
    """Yield name, help, labels and samples of what only grows."""
    for name, about, field in (
        ("batches", "Batches that the loop was given", "batches"),
        ("samples", "Samples that the loop was given", "samples"),
        ("bytes", "Bytes of them that came through shared memory", "nbytes"),
        ("copied_batches", "Batches copied because many were kept", "copied"),
        ("elapsed_seconds", "Time from the first request to the last batch", "elapsed_s"),
        ("device_pictures", "Pictures left to the device's decoder", "deferred"),
        ("refused_pictures", "Pictures of kinds that it does not do", "refused"),
        ("failed_pictures", "Pictures that it failed at", "failed"),
    ):
        samples: list[Sample] = [((n,), float(getattr(one, field))) for n, one in seen.items()]
        yield f"fastfeed_{name}", about, (), samples
    yield (
        *("fastfeed_step_seconds", "Time that went into a step of making batches", ("step",)),
        [((n, step), s) for n, one in seen.items() for step, s in one.steps_s.items()],
    )
    workers = [(n, worker) for n, one in seen.items() for worker in one.workers]
    for state, field in (
        ("busy", ""),
        ("blocked_in", "blocked_in_s"),
        ("blocked_out", "blocked_out_s"),
    ):
        yield (
            *(f"fastfeed_worker_{state}_seconds", f"Time of a worker: {state}", ("worker",)),
            [
                ((n, str(one.worker)), getattr(one, field) if field else one.busy.total_s)
                for n, one in workers
            ],
        )
    depths: list[Sample] = [
        ((n,), float(one.depth.mean * one.depth.asked)) for n, one in seen.items()
    ]
    yield "fastfeed_ready_batches", "Ready batches, summed over the times of asking", (), depths
    none: list[Sample] = [((n,), float(one.depth.none)) for n, one in seen.items()]
    yield "fastfeed_asked_too_early", "How often none was ready when the loop asked", (), none


def _gauges(seen: Mapping[str, Snapshot]) -> Iterator[tuple[str, str, list[Sample]]]:
    with_device = [(n, one.device) for n, one in seen.items() if one.device is not None]
    yield (
        *("fastfeed_device_share", "Share of a batch's pictures left to the device"),
        [((n,), device.share) for n, device in with_device],
    )
    yield (
        *("fastfeed_pinned_bytes", "Pinned memory"),
        [((n,), float(device.pinned_nbytes)) for n, device in with_device],
    )
