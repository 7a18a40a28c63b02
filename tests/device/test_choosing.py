"""The check that every decoder must pass, and the choice among them."""

from __future__ import annotations

import pytest
import torch

from fake_decoder import FakeDecoder
from fastfeed.device.decoders.check import (
    Canary,
    check_decoder,
)
from fastfeed.device.decoders.choose import MAKERS, choose, choose_among
from fastfeed.errors import OptionError

CPU = torch.device("cpu")


# The check and the choice


def test_a_right_decoder_passes():
    """One that keeps the contract passes, whole or by boxes; plain colours are told."""
    for fake in (FakeDecoder(), FakeDecoder(regions=True), FakeDecoder(plain=True)):
        report = check_decoder(fake, CPU, canary=Canary(CPU))
        assert report.reason is None
        assert report.upsampling == ("plain" if fake.plain else "interpolated")
        assert check_decoder(fake, CPU, gray=True, canary=Canary(CPU)).reason is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"fails_at": frozenset({2})}, "left out a good picture: 420"),
        ({"swaps": True}, "differs from the CPU's by"),
        ({"hides": True}, "returned pixels for a file that is no picture"),
        ({"stale": True}, "returned pixels for a file that is no picture"),
        ({"drops": True}, "returned 12 pictures for 13"),
        ({"transposes": True}, "came out as"),
        ({"takes": False}, "takes none of the common kinds"),
        ({"marks_input": True}, "wrote to the encoded pictures"),
        ({"raises": True}, "MemoryError: no memory on the device"),
    ],
)
def test_a_wrong_decoder_is_rejected_with_the_reason(wrong, reason):
    """Each way of being wrong is found; the next decoder is used and the first one closed."""
    fake, right = FakeDecoder(**wrong), FakeDecoder()
    makers = {"first": lambda device: fake, "second": lambda device: right}
    choice = choose_among(makers, None, device=CPU, gray=False)
    assert choice.decoder is right
    ((name, why),) = choice.rejected
    assert name == "first"
    assert reason in why
    assert (fake.closed, right.closed) == (1, 0)
    with pytest.raises(OptionError, match="cannot be used") as caught:
        choose_among(makers, "first", device=CPU, gray=False)
    assert reason in str(caught.value)
    assert caught.value.way_out


def test_a_canary_is_heard():
    """A decoder that writes one byte of foreign memory is found by the canary."""
    canary = Canary(CPU)
    fake = FakeDecoder(writes_to=canary.blocks[3:4])
    assert check_decoder(fake, CPU, canary=canary).reason == "it wrote outside its own memory"


def test_a_decoder_that_fails_as_one_channel():
    """One channel is checked where it is needed, and only there."""

    class Coloured(FakeDecoder):
        def decode(self, encoded):
            if encoded.gray:
                raise RuntimeError("no luma here")
            return super().decode(encoded)

    makers = {"coloured": lambda device: Coloured()}
    assert choose_among(makers, None, device=CPU, gray=False).decoder is not None
    choice = choose_among(makers, None, device=CPU, gray=True)
    assert choice.decoder is None
    assert "no luma here" in choice.rejected[0][1]


def test_a_library_that_is_missing_is_told():
    """What does not import is passed over with its reason; all missing is no error by itself."""

    def missing(device):
        import no_such_library  # noqa: F401

    choice = choose_among({"a": missing, "b": missing}, None, device=CPU, gray=False)
    assert choice.decoder is None
    assert [name for name, _ in choice.rejected] == ["a", "b"]
    assert "no_such_library" in choice.rejected[0][1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
def test_without_a_gpu_nothing_is_chosen():
    """Without a GPU every decoder has a reason and none is chosen; a wrong name is an error."""
    choice = choose(None, 0)
    assert choice.decoder is None
    assert [name for name, _ in choice.rejected] == list(MAKERS)
    with pytest.raises(OptionError, match="no GPU decoder 'magic'"):
        choose("magic", 0)
