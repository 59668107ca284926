"""Handwritten digits of thousands of writers, generated on this machine: a substitute for FEMNIST.

The shapes are scikit-learn's 1,797 handwritten digits (UCI optdigits) of 8 x 8 pixels. Each writer
has an individual style (slant, width, rotation, size and pen) and writes some digits more often
than others. The numbers of writers and of examples are similar to LEAF's FEMNIST (3,550 writers;
227 examples on average, standard deviation 89), but there are only the ten digits. Shapes of test
examples are never used for training.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.fetching import catalog
from fedjax_lab.data.sources._generated import (
    Concentration,
    Spread,
    draw_sizes,
    training_counts,
    user_dataset,
)
from fedjax_lab.data.sources.digit_domains import CLASSES, split_digits
from fedjax_lab.ranges import BelowOne, NotNegative, Positive

SIDE, SHAPE_SIDE = 28, 8  # sides of an image and of a shape, in pixels
MEAN, DEVIATION, LEAST = 227, 89, 10  # of the number of examples of a writer
POSES = 5  # number of poses in which a writer draws a digit
UNIT = 2**12  # resampling weights are multiples of 1 / UNIT, so that sums of them are exact


class Style(NamedTuple):
    """A writer's style: the geometry of the digits, then the pen."""

    slant: float  # to the right, as a fraction of the height
    width: float  # as a multiple of the shape's width
    height: float  # in pixels
    turn: float  # in radians, clockwise
    thickness: float  # of strokes, from 0 to 1
    sharpness: float  # of the edges of strokes
    ink: float  # darkness, from 0 to 1


PLAIN = Style(slant=0.0, width=1.0, height=20.0, turn=0.0, thickness=0.6, sharpness=12.0, ink=0.9)
SPREAD = Style(slant=0.2, width=0.15, height=2.0, turn=0.1, thickness=0.08, sharpness=4.0, ink=0.15)
LOWEST = Style(slant=-0.6, width=0.6, height=12.0, turn=-0.4, thickness=0.4, sharpness=4.0, ink=0.3)
HIGHEST = Style(slant=0.6, width=1.4, height=25.0, turn=0.4, thickness=0.8, sharpness=25.0, ink=1.0)


class Shapes(NamedTuple):
    """Shapes of digits, ordered by class."""

    ink: np.ndarray  # [N, 64] float32, integers from 0 to 16
    starts: np.ndarray  # [10] the index of the first shape of each class
    counts: np.ndarray  # [10] the number of shapes of each class


@source()
def writers(
    *,
    num_users: Positive[int] = 3500,
    alpha: Concentration = 10.0,
    style: Spread = 1.0,
    test_share: BelowOne = 0.1,
    seed: NotNegative[int] = 0,
) -> Dataset:
    """Writers: images [R, 28, 28, 1] uint8, dark on white, of users, for partition by_client.

    num_users: the number of writers; the first ones are the same for any number.
    alpha: the concentration of the Dirichlet distribution of each writer's labels; a smaller one
        makes writers differ more.
    style: how much styles differ, as a multiple of the default; 0: all writers have the same style.
    test_share: the fraction of each writer's examples that is for testing.
    seed: the random seed.
    """
    draw = partial(_draw_sizes, np.random.default_rng([seed, 0]))
    sizes = draw_sizes(draw, num_users, least=LEAST, example_bytes=SIDE * SIDE)
    splits = split_shapes(np.random.default_rng([seed, 1]))
    training, stops = training_counts(sizes, test_share), np.cumsum(sizes)
    x = np.empty((sizes.sum(), SIDE, SIDE, 1), np.uint8)
    y = np.empty(len(x), np.int32)
    with threadpool_limits(1):  # for products of this size, more threads are slower on busy CPUs
        for k in tqdm(range(num_users), desc="writing", unit=" writers", delay=2, disable=None):
            rng, rows = np.random.default_rng([seed, 2, k]), slice(stops[k] - sizes[k], stops[k])
            drawn = draw_style(rng, style)
            digits, y[rows] = _copy(rng, alpha, training[k], sizes[k] - training[k], splits)
            x[rows] = write(rng, drawn, digits)
    citation = catalog.GENERATED["digit_domains"]["citation"]  # of scikit-learn's digits
    return user_dataset(
        x, y, sizes, training, classes=CLASSES, domains=("writers",), citation=citation
    )


def _draw_sizes(rng, count):
    """The numbers of examples of `count` writers: log-normal, with FEMNIST's mean and deviation."""
    variance = np.log1p((DEVIATION / MEAN) ** 2)
    drawn = rng.lognormal(np.log(MEAN) - variance / 2, np.sqrt(variance), count)
    return np.maximum(LEAST, np.round(drawn))


def draw_style(rng: np.random.Generator, strength: float) -> Style:
    """Draws a writer's style; at strength 0 it is PLAIN."""
    drawn = np.array(PLAIN) + strength * np.array(SPREAD) * rng.standard_normal(len(PLAIN))
    return Style(*np.clip(drawn, LOWEST, HIGHEST))


def split_shapes(rng: np.random.Generator) -> tuple[Shapes, Shapes]:
    """scikit-learn's digits, divided into training and test shapes (a fifth of each class)."""
    from sklearn.datasets import load_digits

    ink, labels = load_digits(return_X_y=True)
    training, tests = split_digits(rng, labels)
    return _shapes(ink, training), _shapes(ink, tests)


def _shapes(ink, rows):
    """The shapes in these rows of each class."""
    counts = np.array([len(r) for r in rows])
    return Shapes(ink[np.concatenate(rows)].astype(np.float32), np.cumsum(counts) - counts, counts)


def _copy(rng, alpha, training, tests, splits):
    """The shapes [n, 64] and labels [n] that a writer draws, training examples first."""
    prior = rng.dirichlet(np.full(len(CLASSES), alpha))
    labels = rng.choice(len(CLASSES), training + tests, p=prior)
    which, digits = rng.random(len(labels)), []
    for shapes, rows in zip(splits, (slice(training), slice(training, None)), strict=True):
        place = (which[rows] * shapes.counts[labels[rows]]).astype(int)
        digits.append(shapes.ink[shapes.starts[labels[rows]] + place])
    return np.concatenate(digits), labels


def write(rng: np.random.Generator, style: Style, digits: np.ndarray) -> np.ndarray:
    """Images [n, 28, 28, 1] uint8 of shapes [n, 64], each in one of the writer's poses."""
    pose = rng.integers(POSES, size=len(digits))
    level = np.empty((len(digits), SIDE * SIDE), np.uint8)
    for number in range(POSES):
        turn, slant, growth, *shift = rng.standard_normal(5)
        posed = style._replace(
            turn=style.turn + 0.05 * turn,
            slant=style.slant + 0.05 * slant,
            height=style.height * (1 + 0.04 * growth),
        )
        coverage = digits[pose == number] @ resampling(posed, np.array(shift))
        level[pose == number] = np.clip(coverage / (16 * UNIT / 256), 0, 255)
    return shades(style)[level].reshape(-1, SIDE, SIDE, 1)


def resampling(style: Style, shift: np.ndarray) -> np.ndarray:
    """The weight of each pixel of a shape in each pixel of an image, [64, 784], times UNIT.

    shift: the offset (x, y) of the digit from the middle, in pixels.
    """
    sine, cosine = np.sin(style.turn), np.cos(style.turn)
    turned = np.array([[cosine, -sine], [sine, cosine]])
    stretched = np.array([[style.width, -style.slant], [0, 1]]) * style.height / SHAPE_SIDE
    pixels = np.indices((SIDE, SIDE))[::-1].reshape(2, -1) - (SIDE - 1) / 2  # (x, y) of each
    at = np.linalg.inv(turned @ stretched) @ (pixels - shift[:, None]) + (SHAPE_SIDE - 1) / 2
    across, down = _cubic(at[:, None] - np.arange(SHAPE_SIDE)[:, None])  # each [8, 784]
    share = np.round(UNIT * down[:, None] * across)
    return share.reshape(-1, SIDE * SIDE).astype(np.float32)


def _cubic(distance: np.ndarray) -> np.ndarray:
    """The Catmull-Rom interpolation kernel."""
    d = np.minimum(np.abs(distance), 2)
    near, far = (1.5 * d - 2.5) * d * d + 1, ((2.5 - 0.5 * d) * d - 4) * d + 2
    return np.where(d < 1, near, far)


def shades(style: Style) -> np.ndarray:
    """The gray value, 0 to 255, of a pixel with ink coverage level / 255, for each level [256]."""
    level = np.arange(256) / 255
    edge = 1 / (1 + np.exp(style.sharpness * (1 - style.thickness - level)))
    edge = (edge - edge[0]) / (edge[-1] - edge[0])
    return np.round(255 * (1 - style.ink * edge)).astype(np.uint8)
