"""Tests the stand-in for CLIP embeddings."""

import numpy as np
import pytest
from inputs import complaint
from sklearn.linear_model import RidgeClassifier
from small_dataset import SMALL

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.sources import digit_domains
from fedjax_lab.data.sources.shakespeare import ALPHABET
from fedjax_lab.data.sources.topics import topics
from fedjax_lab.models.embeddings import _prompts as prompts
from fedjax_lab.models.embeddings import stand_in


@pytest.fixture(scope="module")
def digits():
    made = digit_domains.generate(28, 120, 10, 0)
    return Dataset(**made, classes=digit_domains.CLASSES, domains=digit_domains.DOMAINS)


@pytest.fixture(scope="module")
def embedded(digits):
    return stand_in.stand_in(digits)


def probe(features: np.ndarray, target: np.ndarray) -> float:
    """Returns the accuracy of a linear classifier trained on three quarters of the rows."""
    order = np.random.default_rng(0).permutation(len(features))
    train, test = np.split(order, [len(order) * 3 // 4])
    fitted = RidgeClassifier(30.0).fit(features[train], target[train])
    return fitted.score(features[test], target[test])


def check_shape(made, dataset, size: int):
    """Checks shapes, types, zero rows for test examples, zero mean and mean length 10."""
    assert made.examples.shape == (len(dataset.y), size)
    assert made.labels.shape == (len(dataset.classes), size)
    assert made.examples.dtype == made.labels.dtype == np.float32
    assert not made.examples[dataset.test].any()
    rows = made.examples[~dataset.test]
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1).mean(), 10, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(made.labels, axis=1), 10, rtol=1e-4)


def test_digit_embeddings_predict_class_and_domain(digits, embedded):
    """They are reproducible bit for bit."""
    check_shape(embedded, digits, 512)
    rows, train = embedded.examples[~digits.test], ~digits.test
    assert probe(rows, digits.y[train]) > 0.4  # chance: 0.1
    assert probe(rows, digits.domain[train]) > 0.8  # chance: 0.2
    shuffled = np.random.default_rng(0).permutation(digits.y[train])
    assert probe(rows, shuffled) < 0.2
    again = stand_in.stand_in(digits)
    assert np.array_equal(embedded.examples, again.examples)
    assert np.array_equal(embedded.labels, again.labels)


def test_label_embeddings_are_means_of_domain_means_plus_a_direction(digits, embedded):
    """A class's examples in a large domain do not outweigh those in a small one."""
    y, domain = digits.y[~digits.test], digits.domain[~digits.test]
    rows = embedded.examples[~digits.test]
    few = (domain != 0) | (np.arange(len(y)) % 4 == 0)
    made = stand_in.label_embeddings(rows[few], y[few], domain[few], 11)
    directions = np.random.default_rng(1).standard_normal(made.shape)
    for label in range(10):
        of_domains = [rows[few & (y == label) & (domain == z)].mean(0) for z in range(5)]
        mean = np.mean(of_domains, 0, dtype=np.float64)
        both = mean / np.linalg.norm(mean) + 0.1 * directions[label] / np.linalg.norm(
            directions[label]
        )
        np.testing.assert_allclose(made[label], 10 * both / np.linalg.norm(both), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(made[10]), 10, rtol=1e-5)  # no example has this class


def test_convolution_against_loops():
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 10, 3)).astype(np.uint8)
    filters = stand_in.random_filters(3)
    kernels = filters.reshape(3, 5, 5, 64)
    np.testing.assert_allclose(kernels.sum((1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose((kernels**2).sum((0, 1, 2)), 1, rtol=1e-5)
    assert np.array_equal(kernels[0, ..., :32], kernels[2, ..., :32])
    assert not np.array_equal(kernels[0, ..., 32:], kernels[2, ..., 32:])
    made = stand_in.convolved(images, filters)
    assert made.shape == (2, 4 * 4 * 64 + 6)
    for image, row in zip(images, made, strict=True):
        answers = np.zeros((5, 6, 64))
        for i in range(5):
            for j in range(6):
                part = image[i : i + 5, j : j + 5].astype(float)
                answers[i, j] = np.maximum(np.einsum("abc,cabf->f", part, kernels), 0)
        corner = answers[:2, :2].mean((0, 1))  # 5 rows are 2 + 1 + 1 + 1, 6 columns 2 + 2 + 1 + 1
        np.testing.assert_allclose(row[:64], corner, rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(row[-7 - 64 : -6][1:], answers[4, 5], rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(row[-6:-3], image.mean((0, 1)), rtol=1e-5)
        np.testing.assert_allclose(row[-3:], image.std((0, 1)), rtol=1e-5)


def test_text_embeddings_predict_the_next_character_and_the_user():
    """A user prefers some letters; the next character follows from the last one."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(4), 250).astype(np.int32)
    x = np.stack([rng.choice(27 + 12 * u + np.arange(16), 80) for u in user]).astype(np.int8)
    y = (x[:, -1] % 5).astype(np.int32)
    test = np.arange(1000) % 10 == 0
    data = Dataset(x, y, user, test, tuple(ALPHABET), tuple("abcd"))
    assert prompts.is_text(data)
    made = stand_in.stand_in(data, size=96)
    check_shape(made, data, 96)
    rows = made.examples[~test]
    assert probe(rows, user[~test]) > 0.9  # chance: 0.25
    assert probe(rows, y[~test]) > 0.5  # chance: 0.2


def test_embeddings_of_words_predict_the_topic_and_ignore_padding():
    data = topics(users=40, texts=10, topics=3, vocabulary=60, length=12)
    assert not prompts.is_text(data)
    made = stand_in.stand_in(data, size=96)
    assert probe(made.examples[~data.test], data.y[~data.test]) > 0.6  # chance: 0.33
    wider = data._replace(x=np.pad(data.x, ((0, 0), (3, 0))))
    np.testing.assert_array_equal(stand_in.stand_in(wider, size=96).examples, made.examples)


@pytest.mark.parametrize("shape", [(6,), (3, 3, 1)])
def test_other_examples_are_projected(shape):
    rng = np.random.default_rng(0)
    y, domain = rng.integers(0, 4, 400).astype(np.int32), rng.integers(0, 3, 400).astype(np.int32)
    width = int(np.prod(shape))
    x = 2 * rng.normal(size=(4, width))[y] + 2 * rng.normal(size=(3, width))[domain]
    x = (x + rng.normal(size=x.shape)).astype(np.float32).reshape(-1, *shape)
    x[:, 0] = 7  # a constant column
    data = Dataset(x, y, domain, np.arange(400) > 350, tuple("abcd"), tuple("xyz"))
    made = stand_in.stand_in(data, size=32)
    check_shape(made, data, 32)
    rows = made.examples[~data.test]
    assert np.linalg.matrix_rank(rows, 1e-3) == int(np.prod(shape)) - int(np.prod(shape[1:]))
    assert probe(rows, y[~data.test]) > 0.6 and probe(rows, domain[~data.test]) > 0.6


def test_sizes_must_be_positive_multiples_of_32():
    for size, limit in {0: "above 0", -32: "above 0", 31: "a multiple", 48: "a multiple"}.items():
        message = complaint(stand_in.stand_in, SMALL, size=size)
        assert f"config.embedding.size must be {limit}" in message
    images = np.random.default_rng(0).random((2, 65, 70, 3), np.float32)
    made = stand_in.shrunk(images)  # large images are shrunk
    assert made.shape == (2, 32, 35, 3)
    np.testing.assert_allclose(made[1, 31, 34], images[1, 62:64, 68:70].mean((0, 1)), rtol=1e-6)
    assert np.array_equal(stand_in.shrunk(images[:, :63]), images[:, :63])
