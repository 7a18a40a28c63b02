"""The door to the GPU: a stream of its own for copies, events both ways, pinned memory.

Everything else in this folder works against `Device`, so that tests can put a device of ordinary
memory in its place.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fastfeed.errors import DeviceError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

# Torch before 2.8 has no type for it.
_CUDA_ERROR: type[Exception] | None = getattr(torch, "AcceleratorError", None)
_RELAXED = 2
_REGISTERED_ALREADY = 712


class Mark(Protocol):
    """A point in the work that a device was given."""

    def wait(self) -> None:
        """Wait until the work up to here is done; DeviceError if it failed."""
        ...

    def is_done(self) -> bool:
        """Say whether the work up to here is done, or has failed."""
        ...


class Device(Protocol):
    """Where batches go."""

    @property
    def target(self) -> torch.device:
        """The device of the batches."""
        ...

    def enter_thread(self) -> None:
        """Make the calling thread one of the loader's: before anything else it does here."""
        ...

    def work(self) -> AbstractContextManager[None]:
        """Give what torch is asked for inside to the loader's own stream."""
        ...

    def mark(self) -> Mark:
        """Mark the end of the work given so far."""
        ...

    def hand_over(self, tensors: Sequence[torch.Tensor], mark: Mark) -> None:
        """Let the calling thread's stream use tensors, which it waits for up to the mark.

        Their memory is not given to other work of the loader before that stream is done with them.
        """
        ...

    def pin(self, address: int, nbytes: int) -> str | None:
        """Make host memory ready for copies that nobody waits for; returns why not, if refused."""
        ...

    def unpin(self, address: int) -> None:
        """Undo `pin`; the memory may be unmapped already."""
        ...


class CudaDevice:
    """A CUDA device, with one stream for all copies and decoding of a lane."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._target = torch.device("cuda", index)
        # Above the training step's own: what it launches is small, and the next step waits for it.
        cuda: Any = torch.cuda  # parts of it have no types
        _, highest = cuda.Stream.priority_range()
        self._stream: torch.cuda.Stream = cuda.Stream(self._target, priority=highest)
        self._runtime = cuda.cudart()

    @property
    def target(self) -> torch.device:
        """The device of the batches."""
        return self._target

    def enter_thread(self) -> None:
        """Choose the device, and keep the thread out of graphs that the user captures."""
        torch.cuda.set_device(self._target)
        mode = ctypes.c_int(_RELAXED)
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    @contextmanager
    def work(self) -> Iterator[None]:
        """Give what torch is asked for inside to the loader's own stream."""
        with explained(self._target), torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Mark:
        """Record an event."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _Event(event, self._target)

    def hand_over(self, tensors: Sequence[torch.Tensor], mark: Mark) -> None:
        """Have the current stream wait, and tell torch's allocator that it uses the tensors."""
        current = torch.cuda.current_stream(self._target)
        if isinstance(mark, _Event):
            current.wait_event(mark.event)
        for tensor in tensors:
            tensor.record_stream(current)

    def pin(self, address: int, nbytes: int) -> str | None:
        """Register the memory with the driver, which keeps it from being moved."""
        status = int(self._runtime.cudaHostRegister(address, nbytes, 0))
        return None if status in {0, _REGISTERED_ALREADY} else f"CUDA error {status}"

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        self._runtime.cudaHostUnregister(address)


class _Event:
    """A CUDA event; waiting for it takes no core."""

    def __init__(self, event: torch.cuda.Event, target: torch.device) -> None:
        self.event = event
        self._target = target

    def is_done(self) -> bool:
        """Look at the event."""
        try:
            return bool(self.event.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            return True

    def wait(self) -> None:
        """Wait for the event."""
        try:
            self.event.synchronize()
        except RuntimeError as error:
            raise explain(error, self._target) from error


def _is_of_cuda(error: Exception) -> bool:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    if _CUDA_ERROR is None:
        return type(error) is RuntimeError and "CUDA" in str(error)
    return isinstance(error, _CUDA_ERROR)


@contextmanager
def explained(target: torch.device) -> Iterator[None]:
    """Raise what CUDA raises inside as a DeviceError."""
    try:
        yield
    except Exception as error:
        if not _is_of_cuda(error):
            raise
        raise explain(error, target) from error


def explain(error: Exception, target: torch.device) -> DeviceError:
    """Return what a failure of the GPU means, and what helps."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return DeviceError(
            f"{target} has no memory left for the next batches: {str(error)[:300]}",
            way_out="Use a smaller batch or model, or decode='cpu', which needs less there",
        )
    if "captur" in str(error):
        return DeviceError(
            f"{target} has no batch for a stream whose work is being captured: {str(error)[:300]}",
            way_out='Take the first batch before the capture; with output="static" each later one '
            "lies in its place",
        )
    return DeviceError(
        f"{target} failed: {str(error)[:500]}",
        way_out="A kernel before may be the cause (CUDA_LAUNCH_BLOCKING=1 shows it); if nvidia-smi "
        "does not list the GPU any more, restart the job from its last checkpoint",
    )


def pci_address(device: Device) -> str | None:
    """Return where on the PCI bus a device is, None if torch does not say."""
    if device.target.type != "cuda":
        return None
    about = torch.cuda.get_device_properties(device.target)
    numbers = [getattr(about, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    domain, bus, slot = numbers
    if domain is None or bus is None or slot is None:
        return None
    return f"{domain:08x}:{bus:02x}:{slot:02x}.0"


def open_device(device: Any) -> Device:
    """Return the device that a user names; OptionError if it is none, or is not there.

    DeviceError if it has no memory left for a process more, or fails.
    """
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(
            f"device={device!r} is no device", way_out='Write for example device="cuda"'
        ) from error
    if target.type != "cuda":
        raise OptionError(
            f"device={device!r}: batches go to CUDA devices only", way_out='Use "cuda", or None'
        )
    if not torch.cuda.is_available():
        raise OptionError(
            f"device={device!r}: torch finds no CUDA device here",
            way_out="Look at nvidia-smi and torch.version.cuda, or leave device= out",
        )
    if target.index is not None and target.index >= torch.cuda.device_count():
        raise OptionError(
            f"device={device!r}: there are {torch.cuda.device_count()} CUDA devices here"
        )
    with explained(target):
        return CudaDevice(target)
