"""Checks augmentations against NumPy (padding, flips) and Pillow (rotation, resizing, colors)."""

import colorsys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint
from PIL import Image, ImageEnhance

from fedjax_lab.data import augment
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
PIXELS = RNG.permutation(7 * 6 * 3).reshape(1, 7, 6, 3).astype(np.uint8)  # all different


def copies(n):
    """The same image n times, [n, 7, 6, 3]."""
    return jnp.asarray(np.repeat(PIXELS, n, 0), jnp.float32)


def crops(pad, mode):
    """All crops of the padded image, by offset."""
    padded = np.pad(PIXELS[0], ((pad, pad), (pad, pad), (0, 0)), mode)
    offsets = range(2 * pad + 1)
    return {(i, j): padded[i : i + 7, j : j + 6] for i in offsets for j in offsets}


def matches(image, candidates):
    """Names of the candidates that the image equals."""
    return [name for name, other in candidates.items() if np.array_equal(image, other)]


@pytest.mark.parametrize("mode", ["reflect", "constant"])
def test_a_random_crop_is_a_crop_of_the_padded_image_at_any_offset(mode):
    y = np.asarray(augment.random_crop(KEY, copies(200), 1, mode))
    offsets = [matches(image, crops(1, mode)) for image in y]
    assert all(len(names) == 1 for names in offsets)
    assert len({name for names in offsets for name in names}) == 9


def pillow(image, degrees):
    return np.asarray(Image.fromarray(image).rotate(degrees, resample=Image.Resampling.NEAREST))


@pytest.mark.parametrize("shape", [(32, 32, 3), (17, 24, 3)])
def test_rotation_matches_pillow(shape):
    """Pixels whose source lies on an edge may differ, since Pillow computes in fixed point."""
    image = RNG.integers(1, 256, shape).astype(np.uint8)
    angles = np.array([0, -15, -7.3, -0.5, 3, 11.1, 15, 40, 200], np.float32)
    ours = jax.jit(jax.vmap(augment.rotate, (None, 0)))(jnp.asarray(image, jnp.float32), angles)
    np.testing.assert_array_equal(ours[0], image)
    for angle, rotated in zip(angles, np.asarray(ours), strict=True):
        unequal = (rotated != pillow(image, float(angle))).any(-1)
        assert unequal.sum() <= 4, angle


def test_random_rotation_draws_angles_within_its_bounds():
    """In each image, the column of a point near the upper edge gives the sine of the angle."""
    x = jnp.zeros((300, 101, 101, 1)).at[:, 5, 50].set(1)
    x = jnp.maximum(x, jnp.roll(x, 1, 1))  # two pixels, so that at least one is always sampled
    y = np.asarray(jax.jit(augment.random_rotation)(KEY, x, 15))[..., 0]
    assert y.any((1, 2)).all()
    column = np.array([np.nonzero(image)[1].mean() for image in y]) - 50
    angle = np.degrees(np.arcsin(-column / 44.5))  # counterclockwise: to the left
    assert np.abs(angle).max() < 17
    assert angle.min() < -13 and angle.max() > 13
    assert abs(angle.mean()) < 2
    assert 7 < angle.std() < 10.5  # 15 / sqrt(3) = 8.7


@cache
def compiled(name):
    return jax.jit(augment.AUGMENTATIONS[name])


STEPS = {  # {augmentation: degrees of its rotation, its crops}; each mirrors half of the images
    "cifar10": ([], crops(4, "reflect")),
    "cifar100": ([15], crops(4, "constant")),
    "office": ([30], {"whole": PIXELS[0]}),
}


@pytest.mark.parametrize("name", STEPS)
def test_images_are_cropped_mirrored_and_rotated(name, monkeypatch):
    (degrees, upright), bounds = STEPS[name], []
    turned = np.asarray(compiled(name)(KEY, copies(200)))
    monkeypatch.setattr(augment, "random_rotation", lambda key, x, d: bounds.append(d) or x)
    images = np.asarray(augment.AUGMENTATIONS[name](KEY, copies(200)))
    assert bounds == degrees
    mirrored = np.array([not matches(image, upright) for image in images])
    if name != "cifar10":  # its crops of reflections may be those of the mirrored image, too
        assert 70 < mirrored.sum() < 130  # 100 +- 4 standard deviations
    assert all(matches(image[:, ::-1], upright) for image in images[mirrored])
    assert (turned != images).any() == bool(degrees)


# The steps of DomainBed's augmentation.

SMOOTH = np.asarray(
    Image.fromarray(RNG.integers(0, 256, (6, 7, 3)).astype(np.uint8)).resize((28, 24))
)


def floats(image):
    return jnp.asarray(image, jnp.float32)


def crop(key, x, scale, ratio):
    return jax.jit(augment.random_resized_crop, static_argnums=(2, 3))(key, x, scale, ratio)


@pytest.mark.parametrize(
    "top, left, height, width", [(0, 0, 20, 28), (5, 3, 17, 19), (9, 1, 1, 2), (0, 0, 24, 28)]
)
def test_a_stretched_rectangle_matches_pillow(top, left, height, width):
    """Pillow rounds to whole numbers after each axis."""
    part = Image.fromarray(SMOOTH[top : top + height, left : left + width])
    expected = np.asarray(part.resize((28, 24), Image.Resampling.BILINEAR), float)
    stretch = jax.jit(augment.stretch)
    actual = stretch(floats(SMOOTH), jnp.array([top, left]), jnp.array([height, width]))
    assert np.abs(actual - expected).max() <= 1.01
    outside = np.zeros_like(SMOOTH)
    outside[top : top + height, left : left + width] = part
    alone = stretch(floats(outside), jnp.array([top, left]), jnp.array([height, width]))
    np.testing.assert_array_equal(actual, alone)
    if part.size == (28, 24):
        np.testing.assert_array_equal(actual, SMOOTH)


def test_a_crop_of_the_whole_image_is_the_image():
    x = floats(np.stack([SMOOTH, SMOOTH[::-1]]))
    np.testing.assert_array_equal(crop(KEY, x, (1.0, 1.0), (28 / 24, 28 / 24)), x)
    np.testing.assert_array_equal(crop(KEY, x, (1.0, 1.0), (3.0, 4.0)), x)  # no crop fits


def test_random_resized_crops_are_distributed_as_in_torchvision():
    """The pixels are their own coordinates, so that opposite corners give the rectangle.

    Means and deviations of height, width and area agree within four standard errors.
    """
    n, count = 32, 3000
    ramp = np.stack(np.broadcast_arrays(*np.ogrid[:n, :n], 0), -1)
    x = jnp.broadcast_to(floats(ramp), (count, n, n, 3))
    y = np.asarray(crop(KEY, x, (0.7, 1.0), (3 / 4, 4 / 3)))[..., :2]
    first, last = y[:, 0, 0], y[:, -1, -1]
    sides = last - first + 1
    np.testing.assert_allclose(first, first.round(), atol=1e-4)
    assert first.min() == 0 and last.max() == n - 1
    area, ratio = sides.prod(1) / n**2, sides[:, 1] / sides[:, 0]
    slack = 2.5 / n  # sides are whole pixels
    assert 0.7 - slack < area.min() and area.max() <= 1
    assert 3 / 4 - slack < ratio.min() and ratio.max() < 4 / 3 + slack
    free = n - sides
    place = (first[free > 4] / free[free > 4]).mean()  # the mean of a uniform distribution
    assert abs(place - 0.5) < 0.03
    theirs = naive_draws(count)
    for a, b in ((sides, theirs), (sides.prod(1), theirs.prod(1))):
        error = np.sqrt(a.var(0) / count + b.var(0) / count)
        assert (np.abs(a.mean(0) - b.mean(0)) < 4 * error).all()
        np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.07)


def naive_draws(count, seed=0):
    """torchvision's get_params in NumPy: sides of accepted rectangles for 32x32 images."""
    rng, sides = np.random.default_rng(seed), []
    for _ in range(count):
        for _ in range(10):
            area = 1024 * rng.uniform(0.7, 1)
            ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
            if w <= 32 and h <= 32:
                break
        else:
            w = h = 32
        sides.append((h, w))
    return np.array(sides)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (augment.brightness, ImageEnhance.Brightness),
        (augment.contrast, ImageEnhance.Contrast),
        (augment.saturation, ImageEnhance.Color),
    ],
)
def test_brightness_contrast_and_saturation_match_pillow(ours, theirs):
    """Pillow rounds gray levels and the result."""
    run = jax.jit(ours)
    for factor in (0.0, 0.7, 1.0, 1.3):
        expected = np.asarray(theirs(Image.fromarray(SMOOTH)).enhance(factor), float)
        assert np.abs(run(floats(SMOOTH), factor) - expected).max() < 1.2
    np.testing.assert_array_equal(run(floats(SMOOTH), 1.0), SMOOTH)
    brighter = run(floats(SMOOTH), 1.3)
    assert brighter.max() <= 255 and not np.allclose(brighter, SMOOTH)


def test_hue_rotation_matches_colorsys():
    special = [[0, 0, 0], [255, 255, 255], [9, 9, 9], [255, 0, 0], [0, 7, 7], [3, 200, 3]]
    pixels = np.concatenate([SMOOTH.reshape(-1, 3)[::5], special]) / 255
    hsv, run = [colorsys.rgb_to_hsv(*p) for p in pixels], jax.jit(augment.hue)
    for turn in (0.0, 0.3, -0.25, 1 / 3):
        expected = np.array([colorsys.hsv_to_rgb((h + turn) % 1, s, v) for h, s, v in hsv])
        actual = run(floats(255 * pixels[None]), turn)[0]
        np.testing.assert_allclose(actual, 255 * expected, atol=1e-2)
    np.testing.assert_allclose(actual[-3], [0, 255, 0], atol=1e-3)  # a third: red becomes green
    np.testing.assert_allclose(run(floats(255 * pixels), 0.0), 255 * pixels, atol=1e-3)


def test_jitter_applies_its_steps_in_the_given_order():
    x, amounts = floats(SMOOTH), jnp.array([1.3, 0.7, 1.2, 0.2])
    steps = [jax.jit(getattr(augment, n)) for n in ("brightness", "contrast", "saturation", "hue")]
    run, results = jax.jit(augment.jitter), []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        expected = x
        for k in order:
            expected = steps[k](expected, amounts[k])
        results.append(np.asarray(run(x, amounts, jnp.array(order))))
        np.testing.assert_allclose(results[-1], expected, atol=1e-2)
    assert np.abs(results[0] - results[1]).max() > 1  # they do not commute
    unchanged = run(x, jnp.array([1.0, 1, 1, 0]), jnp.array([2, 0, 3, 1]))
    np.testing.assert_allclose(unchanged, x, atol=1e-3)


def test_random_jitter_draws_amounts_and_orders_for_each_image(monkeypatch):
    monkeypatch.setattr(augment, "jitter", lambda x, a, o: (a, o))
    amounts, orders = jax.jit(augment.random_jitter, static_argnums=2)(
        KEY, jnp.zeros((2000, 1, 1, 3)), 0.3
    )
    middle = np.array([1, 1, 1, 0])
    np.testing.assert_allclose(amounts.min(0), middle - 0.3, atol=0.01)
    np.testing.assert_allclose(amounts.max(0), middle + 0.3, atol=0.01)
    assert np.abs(np.corrcoef(np.asarray(amounts).T) - np.eye(4)).max() < 0.1
    kinds, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    assert len(kinds) == 24 and (np.sort(kinds) == np.arange(4)).all()
    assert ((counts - 2000 / 24) ** 2 / (2000 / 24)).sum() < 56  # chi-square, p > 1e-4


def test_random_gray_converts_a_share_of_the_images_as_pillow_does():
    expected = np.asarray(Image.fromarray(SMOOTH).convert("L"), float)
    assert np.abs(augment.gray(floats(SMOOTH))[..., 0] - expected).max() < 0.51
    x = jnp.broadcast_to(floats(SMOOTH), (2000, 24, 28, 3))[:, :2, :2]
    y = np.asarray(jax.jit(augment.random_gray)(KEY, x, 0.1))
    lost = (y == y[..., :1]).all((1, 2, 3))
    assert 150 < lost.sum() < 250  # 200 +- 3.7 standard deviations
    np.testing.assert_array_equal(y[~lost], x[~lost])
    expected = np.broadcast_to(augment.gray(x[0]), x[0].shape)
    np.testing.assert_allclose(y[lost], np.stack(lost.sum() * [expected]), rtol=1e-6)


def test_domainbed_applies_its_steps_with_their_settings(monkeypatch):
    calls = []
    for name in ("random_resized_crop", "random_flip", "random_jitter", "random_gray"):
        monkeypatch.setattr(augment, name, lambda k, x, *a, n=name: calls.append((n, *a)) or x + 1)
    assert float(augment.domainbed(KEY, jnp.zeros(()))) == 4
    assert calls == [
        ("random_resized_crop", (0.7, 1.0), (3 / 4, 4 / 3)),
        ("random_flip",),
        ("random_jitter", 0.3),
        ("random_gray", 0.1),
    ]


@pytest.mark.parametrize("channels, dtype", [(1, np.uint8), (3, np.float32)])
def test_domainbed_requires_8_bit_color_images(channels, dtype, tmp_path):
    x = RNG.integers(0, 256, (40, 8, 8, channels)) / (1 if dtype == np.uint8 else 255)
    path = tmp_path / "data.npz"
    np.savez(path, x=x.astype(dtype), y=np.arange(40) % 2)
    data = {"name": "arrays", "path": str(path), "augment": "domainbed"}
    config = resolve({"data": data, "partition": {"num_clients": 2}})
    message = complaint(experiment.build, config)
    assert "config.data.augment=domainbed needs 8-bit color images" in message


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "domainbed"])
def test_the_key_determines_a_different_augmentation_for_each_image(name):
    x = copies(30)
    y = compiled(name)(KEY, x)
    assert y.shape == x.shape and y.dtype == x.dtype
    np.testing.assert_array_equal(y, compiled(name)(KEY, x))
    assert not np.array_equal(y, compiled(name)(jax.random.key(1), x))
    assert len({image.tobytes() for image in np.asarray(y)}) > 20


def test_vectorized_clients_are_augmented_as_in_separate_calls():
    keys, x = jax.random.split(KEY, 2), jnp.stack([copies(30), copies(30) / 2])
    together = jax.jit(jax.vmap(augment.cifar100))(keys, x)
    for i in (0, 1):
        np.testing.assert_array_equal(together[i], compiled("cifar100")(keys[i], x[i]))
