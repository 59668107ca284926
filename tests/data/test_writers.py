"""Tests the generated writers: their number, sizes and styles, and the digits they copy."""

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data import writers as made
from fedjax_lab.data.writers import PLAIN, Style, writers

FEW = 12


@pytest.fixture(scope="module")
def few():
    return writers(num_users=FEW)


def test_writers_have_images_and_natural_users(few):
    assert few.x.shape[1:] == (28, 28, 1)
    assert (few.x.dtype, few.y.dtype, few.client.dtype) == (np.uint8, np.int32, np.int32)
    assert len(few.users) == FEW and few.classes == tuple("0123456789")
    sizes, tests = np.bincount(few.client), np.bincount(few.client, few.test)
    assert tests.tolist() == [n - int(0.9 * n) for n in sizes.tolist()]
    assert few.x[:, 0].mean() > 245  # white paper in the top row


def test_sizes_match_those_of_femnist():
    sizes = made._draw_sizes(np.random.default_rng(0), 3500)
    assert sizes.mean() == pytest.approx(227, rel=0.03)
    assert sizes.std() == pytest.approx(89, rel=0.06)
    assert sizes.min() >= 10


def test_test_shapes_are_not_training_shapes():
    training, tests = made.split_shapes(np.random.default_rng(0))
    assert len(training.ink) + len(tests.ink) == 1797
    assert tests.counts.tolist() == [n // 5 for n in (training.counts + tests.counts).tolist()]
    assert not {shape.tobytes() for shape in training.ink} & {s.tobytes() for s in tests.ink}


def test_writers_depend_on_the_seed_but_not_on_their_number(few):
    fewer, other = writers(num_users=3), writers(num_users=3, seed=1)
    for a, b in zip((fewer.x, fewer.y, fewer.test), (few.x, few.y, few.test), strict=True):
        assert np.array_equal(a, b[: len(a)])
    assert not np.array_equal(other.x[:50], fewer.x[:50])


def darkest(data):
    """Returns the darkest pixel of each writer."""
    return np.array([data.x[data.client == k].min() for k in range(FEW)])


def test_the_style_setting_controls_how_writers_differ(few):
    assert len(set(darkest(few))) > FEW / 2
    assert set(darkest(writers(num_users=FEW, style=0.0))) == {round(255 * (1 - PLAIN.ink))}
    much = [made.draw_style(np.random.default_rng(k), 100.0) for k in range(20)]
    for style in much:
        assert np.all(np.array(style) >= made.LOWEST) and np.all(np.array(style) <= made.HIGHEST)


def ink_of(**changes):
    """Returns the darkness [28, 28] of a vertical stroke that is three shape pixels wide."""
    shape = np.zeros((1, 8, 8), np.float32)
    shape[:, :, 3:6] = 16
    style = Style(**{**PLAIN._asdict(), **changes})
    level = (shape.reshape(1, 64) @ made.resampling(style, np.zeros(2))) / (16 * made.UNIT / 256)
    shades = made.shades(style)[np.clip(level, 0, 255).astype(np.uint8)]
    return 255.0 - shades.reshape(28, 28)


def middles(ink):
    """Returns the mean column of the ink in the upper half and in the lower half."""
    return [half.sum(0) @ np.arange(28) / half.sum() for half in (ink[:14], ink[14:])]


def test_each_style_value_changes_a_stroke_as_its_name_says():
    plain = ink_of()
    assert plain.max() == pytest.approx(255 * PLAIN.ink, abs=1)
    assert np.ptp(middles(plain)) < 0.1
    upper, lower = middles(ink_of(slant=0.4))
    assert upper > lower + 2
    assert ink_of(thickness=0.8).sum() > 1.1 * plain.sum()
    assert ink_of(width=1.4).sum() == pytest.approx(1.4 * plain.sum(), rel=0.1)
    assert ink_of(height=12.0).any(1).sum() < plain.any(1).sum() - 5
    turned = middles(ink_of(turn=0.3))
    assert turned[0] > turned[1] + 1  # clockwise


def test_a_small_alpha_gives_unequal_labels(few):
    def most_frequent(data):
        return np.mean([np.bincount(data.y[data.client == k]).max() for k in range(FEW)])

    assert most_frequent(writers(num_users=FEW, alpha=0.1)) > 2 * most_frequent(few)


def test_test_digits_look_like_training_digits_of_their_class(few):
    dark = 255.0 - few.x.reshape(len(few.x), -1)
    means = np.stack([dark[~few.test & (few.y == label)].mean(0) for label in range(10)])
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    assert (np.argmax(dark[few.test] @ unit.T, axis=1) == few.y[few.test]).mean() > 0.6


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alpha": 0.0}, "config.data.alpha must be above 0"),
        ({"style": -1.0}, "config.data.style must be from 0 to 1,000,000"),
        ({"alpha": 1e308}, "config.data.alpha must be from 0 to 1,000,000"),
        ({"seed": -1}, "config.data.seed must not be negative"),
        ({"num_users": -3}, "config.data.num_users must be above 0"),
        ({"test_share": -0.1}, "config.data.test_share must be at least 0 and below 1"),
        ({"num_users": 2**31 - 1}, "num_users=2147483647 do not fit in memory"),
    ],
)
def test_invalid_settings_are_named_in_the_error(settings, said):
    assert said in complaint(writers, **settings)
