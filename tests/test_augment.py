"""Augmentations against NumPy's padding and mirrors and Pillow's rotation."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from fedjax_lab import augment

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
PIXELS = RNG.permutation(7 * 6 * 3).reshape(1, 7, 6, 3).astype(np.uint8)  # all different


def copies(n):
    """One image n times, [n, 7, 6, 3]."""
    return jnp.asarray(np.repeat(PIXELS, n, 0), jnp.float32)


def crops(pad, mode):
    """All crops of the padded image, by offset."""
    grown = np.pad(PIXELS[0], ((pad, pad), (pad, pad), (0, 0)), mode)
    offsets = range(2 * pad + 1)
    return {(i, j): grown[i : i + 7, j : j + 6] for i in offsets for j in offsets}


def found(image, candidates):
    """Names of the candidates that the image equals."""
    return [name for name, other in candidates.items() if np.array_equal(image, other)]


@pytest.mark.parametrize("mode", ["reflect", "constant"])
def test_crop_is_numpys_at_some_offset_and_all_occur(mode):
    y = np.asarray(augment.random_crop(KEY, copies(200), 1, mode))
    offsets = [found(image, crops(1, mode)) for image in y]
    assert all(len(names) == 1 for names in offsets)
    assert len({name for names in offsets for name in names}) == 9


def test_flip_mirrors_half_of_the_images():
    y = np.asarray(augment.random_flip(KEY, copies(400)))
    sides = {"same": PIXELS[0], "mirrored": PIXELS[0][:, ::-1]}
    names = [found(image, sides) for image in y]
    assert all(len(name) == 1 for name in names)
    assert 160 < names.count(["mirrored"]) < 240  # 200 +- 4 standard deviations


def pillow(image, degrees):
    return np.asarray(Image.fromarray(image).rotate(degrees, resample=Image.Resampling.NEAREST))


@pytest.mark.parametrize("shape", [(32, 32, 3), (17, 24, 3)])
def test_rotation_is_pillows(shape):
    """But for pixels whose source lies on an edge: Pillow computes in fixed point."""
    image = RNG.integers(1, 256, shape).astype(np.uint8)
    angles = np.array([-15, -7.3, -0.5, 3, 11.1, 15, 40, 200], np.float32)
    ours = jax.jit(jax.vmap(augment.rotate, (None, 0)))(jnp.asarray(image, jnp.float32), angles)
    for angle, rotated in zip(angles, np.asarray(ours), strict=True):
        unequal = (rotated != pillow(image, float(angle))).any(-1)
        assert unequal.sum() <= 4, angle


def test_rotation_by_nothing_is_the_identity():
    image = copies(1)[0]
    np.testing.assert_array_equal(augment.rotate(image, 0.0), image)


def test_random_rotation_is_by_angles_within_its_bounds():
    """The column of a point on the upper edge, by image, gives the sine of its angle."""
    x = jnp.zeros((300, 101, 101, 1)).at[:, 5, 50].set(1)
    x = jnp.maximum(x, jnp.roll(x, 1, 1))  # two pixels, so that one is always met
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


def test_cifar10_is_a_reflected_crop_and_a_flip():
    y = np.asarray(compiled("cifar10")(KEY, copies(30)))
    for image in y:
        assert found(image, crops(4, "reflect")) or found(image[:, ::-1], crops(4, "reflect"))


def test_cifar100_is_a_crop_with_zeros_a_flip_and_a_rotation(monkeypatch):
    x, bounds = copies(30), []
    y = np.asarray(compiled("cifar100")(KEY, x))
    monkeypatch.setattr(augment, "random_rotation", lambda key, x, d: bounds.append(d) or x)
    upright = np.asarray(augment.cifar100(KEY, x))
    assert bounds == [15]
    for image in upright:
        assert found(image, crops(4, "constant")) or found(image[:, ::-1], crops(4, "constant"))
    assert any(not np.array_equal(a, b) for a, b in zip(y, upright, strict=True))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_keys_decide_image_by_image(name):
    x = copies(30)
    y = compiled(name)(KEY, x)
    assert y.shape == x.shape and y.dtype == x.dtype
    np.testing.assert_array_equal(y, compiled(name)(KEY, x))
    assert not np.array_equal(y, compiled(name)(jax.random.key(1), x))
    assert len({image.tobytes() for image in np.asarray(y)}) > 20


def test_clients_at_once_equal_clients_alone():
    keys, x = jax.random.split(KEY, 2), jnp.stack([copies(30), copies(30) / 2])
    together = jax.jit(jax.vmap(augment.cifar100))(keys, x)
    for i in (0, 1):
        np.testing.assert_array_equal(together[i], compiled("cifar100")(keys[i], x[i]))


def test_none_is_in_the_table():
    assert set(augment.AUGMENTATIONS) == {"none", "cifar10", "cifar100", "office"}
    assert augment.AUGMENTATIONS["none"] is None
