"""The door to NVML (package nvidia-ml-py): the one module that loads it; its refusals are None."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastfeed.doctor.gpus import GpuFacts, GpuProcess, GpuSample
from fastfeed.topology import pci_address

if TYPE_CHECKING:
    from collections.abc import Iterator

# NVML's common ancestors of two GPUs, from near to far.
_WAYS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "NUMA nodes",
}


@contextmanager
def open_nvml() -> Iterator[tuple[Nvml | None, str]]:
    """Load NVML for a while; yields it, or None and the reason why there is none."""
    try:
        import pynvml
    except ImportError:
        yield None, "NVML cannot be asked without nvidia-ml-py (fastfeed[nvml])"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield None, f"NVML does not answer ({error})"
        return
    try:
        nvml = Nvml(pynvml)
        yield (nvml, "") if nvml.found else (None, "NVML shows no GPU")
    finally:
        pynvml.nvmlShutdown()


class Nvml:
    """NVML as a source of GPUs; `bindings` is the module, initialised by the caller."""

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings
        count = self.ask("nvmlDeviceGetCount") or 0
        handles = ((index, self.ask("nvmlDeviceGetHandleByIndex", index)) for index in range(count))
        # A container may be shown fewer GPUs than are counted.
        self._handles = [(index, handle) for index, handle in handles if handle is not None]
        self._seen: dict[int, int] = {}

    @property
    def found(self) -> int:
        """How many GPUs there are."""
        return len(self._handles)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call one function; None where the GPU, the driver or the package has no answer."""
        function = getattr(self.bindings, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.bindings.NVMLError:
            return None

    def at(self, address: str | None) -> Any:
        """Return the handle of the GPU at an address of the PCI bus, or None."""
        for _, handle in self._handles:
            bus = self.ask("nvmlDeviceGetPciInfo", handle)
            if address and bus is not None and pci_address(_word(bus.busId)) == address:
                return handle
        return None

    def facts(self) -> tuple[GpuFacts, ...]:
        """Return what does not change, one of each GPU."""
        driver = _word(self.ask("nvmlSystemGetDriverVersion"))
        return tuple(
            replace(self._facts(index, handle), driver=driver, others=self._others(index, handle))
            for index, handle in self._handles
        )

    def sample(self) -> tuple[GpuSample, ...]:
        """Return what each GPU does now; PCIe traffic takes NVML 40 ms a GPU."""
        return tuple(self._sample(index, handle) for index, handle in self._handles)

    def _facts(self, index: int, handle: Any) -> GpuFacts:
        bus = self.ask("nvmlDeviceGetPciInfo", handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        mig = self.ask("nvmlDeviceGetMigMode", handle)
        persistent = self.ask("nvmlDeviceGetPersistenceMode", handle)
        return GpuFacts(
            index,
            _word(self.ask("nvmlDeviceGetName", handle)) or "unnamed GPU",
            pci_address(_word(bus.busId)) if bus is not None else None,
            memory=memory.total if memory is not None else None,
            generation_most=self.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            generation_able=self.ask("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
            width_most=self.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            clock_most=self.ask("nvmlDeviceGetMaxClockInfo", handle, 1),
            clock_asked=self.ask("nvmlDeviceGetApplicationsClock", handle, 1),
            power_limit=_watts(self.ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
            power_default=_watts(self.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            mig=bool(mig[0]) if mig else None,
            persistent=None if persistent is None else bool(persistent),
            cores=_cores(self.ask("nvmlDeviceGetCpuAffinity", handle, 64)),
        )

    def _others(self, index: int, handle: Any) -> tuple[tuple[int, str], ...]:
        ways = (
            (other, self.ask("nvmlDeviceGetTopologyCommonAncestor", handle, there))
            for other, there in self._handles
            if other != index
        )
        return tuple((other, _WAYS[way]) for other, way in ways if way in _WAYS)

    def _sample(self, index: int, handle: Any) -> GpuSample:
        use = self.ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        # The name changed with driver 535; the old one stays for older packages.
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return GpuSample(
            index,
            busy=use.gpu if use is not None else None,
            memory_busy=use.memory if use is not None else None,
            memory_used=memory.used if memory is not None else None,
            clock=self.ask("nvmlDeviceGetClockInfo", handle, 1),
            power=_watts(self.ask("nvmlDeviceGetPowerUsage", handle)),
            temperature=self.ask("nvmlDeviceGetTemperature", handle, 0),
            state=self.ask("nvmlDeviceGetPerformanceState", handle),
            reasons=reasons,
            generation=self.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            width=self.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            replays=self.ask("nvmlDeviceGetPcieReplayCounter", handle),
            sent=_kilobytes(self.ask("nvmlDeviceGetPcieThroughput", handle, 0)),
            received=_kilobytes(self.ask("nvmlDeviceGetPcieThroughput", handle, 1)),
            processes=self._processes(index, handle),
        )

    def _processes(self, index: int, handle: Any) -> tuple[GpuProcess, ...]:
        last = self._seen.get(index, 0)
        uses = self.ask("nvmlDeviceGetProcessUtilization", handle, last) or []
        self._seen[index] = max((use.timeStamp for use in uses), default=last)
        busy: dict[int, int] = {}
        for use in uses:
            busy[use.pid] = max(use.smUtil, busy.get(use.pid, 0))
        running = self.ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        return tuple(
            GpuProcess(process.pid, process.usedGpuMemory, busy.get(process.pid))
            for process in running
        )


def _word(text: Any) -> str:
    # Older packages give bytes.
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text or "")


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _kilobytes(count: int | None) -> int | None:
    return None if count is None else count * 1024


def _cores(words: Any) -> frozenset[int]:
    return frozenset(
        64 * place + bit
        for place, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    )
