"""The geometry of transforms against torchvision's, and chains that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from fastfeed.decoding.draw import Draw
from fastfeed.decoding.window import Box, draw_window, fixed_size, same_window
from fastfeed.errors import DecodeError, OptionError
from fastfeed.fields import (
    CenterCrop,
    HorizontalFlip,
    Image,
    Normalize,
    RandomResizedCrop,
    Resize,
)

SIDES = st.integers(1, 300)
PINNED = [0.3035573297414881, 0.11947345256773934, 0.8487143628875933]
PINNED_BELOW = [16, 99, 18, 15, 31, 41, 0, 21]
PINNED_CROP = Box(x=227, y=14, w=233, h=290)


def window(*transforms, height, width, sample=0):
    return draw_window(transforms, height, width, Draw((0, 0, sample), "image"))


def as_tensor(picture):
    return torch.from_numpy(picture).permute(2, 0, 1)


@given(SIDES, SIDES, st.integers(0, 1 << 40))
def test_random_parts_lie_inside(height, width, sample):
    """A random part is never empty, never outside, and always comes at the wanted size."""
    drawn = window(RandomResizedCrop((7, 9)), height=height, width=width, sample=sample)
    crop = drawn.crop
    assert crop.w > 0
    assert crop.h > 0
    assert 0 <= crop.x <= width - crop.w
    assert 0 <= crop.y <= height - crop.h
    assert drawn.shape == (7, 9)


def test_random_parts_are_spread_as_torchvisions():
    """Areas, ratios and places have the means of torchvision's own draws."""
    ours, theirs = [], []
    picture = torch.empty(3, 375, 500, dtype=torch.uint8)
    torch.manual_seed(0)
    for sample in range(4000):
        crop = window(RandomResizedCrop(224), height=375, width=500, sample=sample).crop
        ours.append((crop.w * crop.h, np.log(crop.w / crop.h), crop.x, crop.y))
        top, left, high, wide = v2.RandomResizedCrop.make_params(
            v2.RandomResizedCrop(224), [picture]
        ).values()
        theirs.append((high * wide, np.log(wide / high), left, top))
    ours, theirs = np.array(ours), np.array(theirs)
    # Four standard errors of the difference of two means, and likewise for the spread.
    error = 4 * theirs.std(axis=0) * np.sqrt(2 / 4000)
    assert np.all(np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < error)
    assert np.all(np.abs(ours.std(axis=0) - theirs.std(axis=0)) < error)
    ratios = np.exp(ours[:, 1])
    assert 0.74 < ratios.min() < ratios.max() < 1.35
    assert ours[:, 0].min() / (375 * 500) > 0.07


def test_extreme_pictures_fall_back_to_the_middle():
    """A picture in which no part fits gives the middle at the nearest ratio."""
    crop = window(RandomResizedCrop(8, scale=(1, 1)), height=10, width=1000).crop
    assert crop == (493, 0, 13, 10)


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (97, 301), (224, 224)])
@pytest.mark.parametrize("resize", [256, 100, (120, 90)])
@pytest.mark.parametrize("cut", [224, 90, (51, 70)])
def test_resize_and_cut_equal_torchvision(kit, size, resize, cut):
    """Resize and CenterCrop, with and without filling up, are within a level of torchvision."""
    picture = kit.scene(*size)
    ours = kit.one(Image("png", Resize(resize), CenterCrop(cut)), kit.encode(picture, "PNG"))
    chain = v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(cut)])
    theirs = chain(as_tensor(picture)).permute(1, 2, 0).numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs).max() <= 1


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 50), st.integers(1, 50))
def test_cuts_equal_torchvision(kit, height, width, cut_h, cut_w):
    """CenterCrop alone gives torchvision's very pixels, whatever is odd, even or smaller."""
    picture = kit.scene(height, width)
    field = Image("png", CenterCrop((cut_h, cut_w)))
    theirs = v2.CenterCrop((cut_h, cut_w))(as_tensor(picture)).permute(1, 2, 0).numpy()
    assert np.array_equal(kit.one(field, kit.encode(picture, "PNG")), theirs)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 40))
def test_a_flip_before_a_cut(kit, height, width, cut):
    """The middle is that of the flipped picture where the flip comes first."""
    picture = kit.scene(height, width)
    field = Image("png", HorizontalFlip(1), CenterCrop(cut))
    chain = v2.Compose([v2.RandomHorizontalFlip(1), v2.CenterCrop(cut)])
    theirs = chain(as_tensor(picture)).permute(1, 2, 0).numpy()
    assert np.array_equal(kit.one(field, kit.encode(picture, "PNG")), theirs)


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_flips_come_with_their_probability(p):
    """Over many samples the share of flips is the probability, and exactly so for 0 and 1."""
    flips = [window(HorizontalFlip(p), height=4, width=4, sample=i).flip for i in range(2000)]
    assert abs(np.mean(flips) - p) < (0.04 if 0 < p < 1 else 1e-9)


def test_two_flips_cancel():
    """A second flip turns the picture back."""
    assert not window(HorizontalFlip(1), HorizontalFlip(1), height=4, width=4).flip


@pytest.mark.parametrize(
    "chain",
    [
        (Resize(8), Resize(9)),
        (RandomResizedCrop(8), Resize(9)),
        (Resize(8), RandomResizedCrop(9)),
        (Resize(8), CenterCrop(4), CenterCrop(6)),
    ],
)
def test_refused_chains(chain):
    """Chains that are not one cut, one resize and one cut are refused, with a way out."""
    with pytest.raises(OptionError) as caught:
        fixed_size(chain)
    assert caught.value.way_out


@pytest.mark.parametrize(
    "make",
    [
        lambda: Image("jpg", Normalize((0,) * 3, (1,) * 3), Resize(4)),
        lambda: Image("jpg", Normalize((0,), (1,))),
        lambda: Image("jpg", "flip"),
        lambda: Image(""),
        lambda: Image("jpg", mode="BGR"),
        lambda: Resize(0),
        lambda: Resize((1, 2, 3)),
        lambda: RandomResizedCrop(8, scale=(1, 0.5)),
        lambda: HorizontalFlip(1.5),
        lambda: Normalize((0,), (0,)),
    ],
)
def test_refused_descriptions(make):
    """Fields and transforms are checked where they are written."""
    with pytest.raises(OptionError):
        make()


def test_what_is_filled_up_is_not_resized():
    """A CenterCrop beyond the picture cannot come before a resize; one inside it can."""
    chain = (CenterCrop(100), Resize(10))
    with pytest.raises(DecodeError, match="fewer"):
        window(*chain, height=99, width=200)
    assert window(*chain, height=101, width=200).crop == (50, 0, 100, 100)


@pytest.mark.parametrize(
    ("chain", "size"),
    [
        ((), None),
        ((Resize(8),), None),
        ((Resize((8, 9)),), (8, 9)),
        ((Resize(8), CenterCrop(6)), (6, 6)),
        ((CenterCrop(6), Resize(8)), None),
        ((CenterCrop(6), RandomResizedCrop((3, 4)), HorizontalFlip()), (3, 4)),
    ],
)
def test_fixed_sizes(chain, size):
    """The size of the result is known beforehand exactly where it does not depend on pictures."""
    assert fixed_size(chain) == size


def test_a_window_for_another_size():
    """A mask of half the size gets half the window; one of another shape is refused."""
    whole = window(RandomResizedCrop(8), height=200, width=300)
    half = same_window(whole, 100, 150)
    assert half.size == whole.size
    assert half.crop == pytest.approx(np.array(whole.crop) / 2, abs=1)
    with pytest.raises(DecodeError, match="do not fit"):
        same_window(whole, 100, 100)


def test_draws_are_pinned():
    """The numbers of a sample never change between versions, platforms or workers."""
    draw = Draw((1, 2, 3), "image")
    assert [draw.uniform() for _ in range(3)] == PINNED
    assert [draw.below(100) for _ in range(8)] == PINNED_BELOW
    other = Draw((1, 2, 3), "mask")
    assert other.uniform() != PINNED[0]
    pinned = draw_window((RandomResizedCrop(224),), 375, 500, Draw((1, 2, 3), "image"))
    assert pinned.crop == PINNED_CROP


@given(st.tuples(*[st.integers(-(1 << 70), 1 << 70)] * 3), st.integers(1, 1 << 40))
def test_draws_keep_their_limits(draw, count):
    """Numbers lie in [0, 1) and below the count, for any seed that users give."""
    numbers = Draw(draw, "x")
    assert all(0 <= numbers.uniform() < 1 for _ in range(20))
    assert all(0 <= numbers.below(count) < count for _ in range(20))
