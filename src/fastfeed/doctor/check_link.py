"""Checks 3 and 4: the PCIe link of each GPU, as it is and as it could be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings
from fastfeed.topology.files import integer
from fastfeed.topology.numa import DEVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.doctor.gpus import GpuFacts
    from fastfeed.doctor.seen import Seen

# Usable GB/s of one lane by generation, after the link's own encoding.
_LANE: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
_GENERATIONS: Final = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
# A GPU in use at all keeps its link awake; below it the link may rest at a lower speed.
AWAKE: Final = 20
_UNDER_LOAD = "look again while the job runs: an idle GPU lowers its link's speed"
_PLATFORM = "fix the platform before any code: reseat card and riser, look at slot and BIOS"


@dataclass(frozen=True, slots=True)
class Link:
    """One GPU's link; None is what the machine does not tell."""

    name: str
    address: str
    """PCI address; empty if NVML tells none."""
    index: int | None
    """NVML's; None without NVML."""
    generation: int | None
    width: int | None
    generation_able: int | None
    """What the GPU can, whatever the slot."""
    width_able: int | None
    generation_slot: int | None
    """What GPU and slot can together."""
    awake: bool | None
    """Whether the GPU was in use; None if it does not tell."""
    replays: int | None
    """Packets sent again while we looked."""
    replays_ever: int | None


def links(seen: Seen) -> Iterator[Link]:
    """Yield the link of each GPU: NVML's word first, then sysfs's."""
    by_address = {gpu.address: gpu for gpu in seen.gpus if gpu.address}
    for address in seen.places:
        yield _link(seen, address, by_address.get(address))
    for gpu in seen.gpus:
        if not gpu.address:
            yield _link(seen, "", gpu)


def _link(seen: Seen, address: str, gpu: GpuFacts | None) -> Link:
    samples = seen.samples(gpu.index) if gpu else []
    folder = f"{DEVICES}/{address}"
    speeds = [_generation(one.texts.of(f"{folder}/current_link_speed")) for one in seen.rounds]
    widths = [_width(one.texts.of(f"{folder}/current_link_width")) for one in seen.rounds]
    # The fastest of all looks: between two batches a link may rest.
    generation = _most([s.generation for s in samples]) or _most(speeds)
    width = _most([s.width for s in samples]) or _most(widths)
    able = _generation(seen.first.of(f"{folder}/max_link_speed"))
    wide = _width(seen.first.of(f"{folder}/max_link_width"))
    replays = [s.replays for s in samples if s.replays is not None]
    busy = seen.busy(gpu.index) if gpu else None
    return Link(
        f"GPU {gpu.index}" if gpu else f"GPU {address}",
        address,
        gpu.index if gpu else None,
        generation=generation,
        width=width,
        generation_able=(gpu.generation_able or gpu.generation_most if gpu else None) or able,
        width_able=(gpu.width_most if gpu else None) or wide,
        generation_slot=gpu.generation_most if gpu else None,
        awake=None if busy is None else busy >= AWAKE,
        replays=replays[-1] - replays[0] if replays else None,
        replays_ever=replays[-1] if replays else None,
    )


def check_link(seen: Seen) -> Check:
    """Look at generation and width now, and what they carry (3)."""
    findings = Findings(3, "PCIe link now")
    for link in links(seen):
        findings.figure(f"{link.name} generation", link.generation)
        findings.figure(f"{link.name} width", link.width)
        now = _carries(link.generation, link.width)
        if now is None:
            findings.add("unknown", f"{link.name}: the machine does not tell its link")
            continue
        text = (
            f"{link.name} is linked by generation {link.generation} x{link.width}: {now:.0f} GB/s"
        )
        findings.figure(f"{link.name} link, GB/s", now)
        able = _carries(link.generation_able, link.width_able)
        if able is None:
            findings.add("unknown", f"{text}, and it is not known what it could be")
        elif now >= 0.9 * able:
            findings.add("ok", text)
        elif link.awake or link.width != link.width_able:
            text += f" of {able:.0f} GB/s that it can"
            findings.add("bad" if now <= 0.6 * able else "warn", text, _PLATFORM)
        else:
            why = "and idle" if link.awake is False else "and may be idle"
            findings.add("unknown", f"{text} of {able:.0f} GB/s, {why}", _UNDER_LOAD)
    _add_absence(findings, seen)
    return findings.check("")


def check_negotiated(seen: Seen) -> Check:
    """Compare the negotiated link with what both ends can, and count what was sent again (4)."""
    findings = Findings(4, "PCIe link against its best")
    for link in links(seen):
        for text, value in (
            ("generation at best", link.generation_able),
            ("width at best", link.width_able),
            ("generation at best in this slot", link.generation_slot),
            ("replays while looking", link.replays),
            ("replays ever", link.replays_ever),
        ):
            findings.figure(f"{link.name} {text}", value)
        if not (link.width and link.width_able and link.generation and link.generation_able):
            findings.add("unknown", f"{link.name}: the machine does not tell what its link can")
            continue
        _add_downgrades(findings, link)
        if link.replays:
            findings.add(
                "warn",
                f"{link.name} sent {link.replays} packets again in {seen.seconds:.0f} s",
                "the link's signal is poor: reseat card, riser and cables",
            )
        findings.add(
            "ok",
            f"{link.name} has generation {link.generation} x{link.width} of "
            f"generation {link.generation_able} x{link.width_able}",
        )
    for address in seen.places:
        _add_errors(findings, seen, address)
    _add_absence(findings, seen)
    return findings.check("")


def _add_downgrades(findings: Findings, link: Link) -> None:
    if link.width and link.width_able and link.width < link.width_able:
        findings.add(
            "bad",
            f"{link.name} has x{link.width} of x{link.width_able} lanes",
            _PLATFORM,
        )
    slot = link.generation_slot
    if slot and link.generation_able and slot < link.generation_able:
        findings.add(
            "warn",
            f"{link.name} can generation {link.generation_able}, its slot only {slot}",
            "use a faster slot if there is one, or send fewer bytes: uint8 pictures",
        )
    best = slot or link.generation_able or 0
    if link.generation and link.generation < best:
        text = f"{link.name} runs at generation {link.generation} of {best}"
        if link.awake:
            findings.add("bad", f"{text} under load", _PLATFORM)
        else:
            why = "it is idle" if link.awake is False else "whether it is idle is not known"
            findings.add("unknown", f"{text}, but {why}", _UNDER_LOAD)


def _add_errors(findings: Findings, seen: Seen, address: str) -> None:
    """Add what the kernel counted of mended errors of a link (AER)."""
    name = f"{DEVICES}/{address}/aer_dev_correctable"
    before, after = _total(seen.first.of(name)), _total(seen.last.of(name))
    if before is None or after is None:
        return
    findings.figure(f"GPU {address} mended errors ever", after)
    if after > before:
        findings.add(
            "warn",
            f"GPU {address} had {after - before} link errors mended in {seen.seconds:.0f} s",
            "the link's signal is poor: reseat card, riser and cables",
        )


def _total(text: str) -> int | None:
    match = re.search(r"^TOTAL_ERR_COR ([0-9]{1,18})$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _add_absence(findings: Findings, seen: Seen) -> None:
    if not seen.places and not seen.gpus:
        findings.add("unknown", f"/sys shows no GPU, and {seen.no_gpus}")


def _carries(generation: int | None, width: int | None) -> float | None:
    return None if not generation or not width else _LANE.get(generation, 0.0) * width or None


def _generation(text: str) -> int | None:
    speed, _, unit = text.partition(" ")
    # Older kernels write "8 GT/s" for "8.0 GT/s PCIe".
    speed = speed if "." in speed else f"{speed}.0"
    return _GENERATIONS.get(speed) if unit.startswith("GT/s") else None


def _width(text: str) -> int | None:
    width = integer(text)
    # Guests are shown 0, 63 or 255 where there is no real link.
    return width if width in {1, 2, 4, 8, 12, 16, 32} else None


def _most(values: list[int | None]) -> int | None:
    return max((value for value in values if value), default=None)
