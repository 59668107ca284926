"""A substitute for CLIP if its weights are not available: fixed random features."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.models.embeddings._prompts import is_text, is_tokens
from fedjax_lab.ranges import Positive, checked

NORM = 10.0  # mean length of CLIP's raw features
FILTERS, WIDTH, GRID = 64, 5, 4  # for images; averages over GRID x GRID parts of the image
SIDE = 32  # larger images are shrunk to about this many pixels
NGRAMS, BUCKETS = (1, 3), 2**12  # for texts
LAST, END = 3, "\x03"  # the last characters of a text are hashed again, followed by an end mark
BATCH = 256
RANDOM_PART = 0.1  # length of a label's random part, relative to the mean of its class


@checked("embedding")
def stand_in(dataset: Dataset, *, size: Positive[int] = 512) -> Embeddings:
    """Random-feature embeddings in which classes and domains can be distinguished.

    This is not CLIP. Nothing is trained on other data, so that examples that look alike are close,
    not examples with the same meaning. The labels' embeddings use the training labels of all
    clients, which CLIP never sees. Results show that the method works, not its published accuracy.

    For images, the features are the outputs of random 5 x 5 filters of zero mean (half of them on
    gray and half on color), rectified and averaged on a 4 x 4 grid, and the mean and deviation of
    each channel. For texts, they are hashed n-grams of one to three characters, of the whole text
    and again of its end; for token ids, the frequencies of words. Other examples are used directly.

    All features are projected to `size` dimensions by a fixed Gaussian matrix, centered over the
    training examples and scaled to a mean length of 10. A label has the direction of the mean of
    its class (averaged in each domain, then over domains), plus a small random direction. The same
    dataset gives the same embeddings, bit for bit on a machine with the same number of CPU cores;
    with another number they differ by rounding.

    size: the size of an embedding, a multiple of 32 (the width of Client2Vec's tokens).

    Raises BadInput for another size.
    """
    if size % 32:
        raise BadInput(f"config.embedding.size must be a multiple of 32, got {size}")
    train = np.flatnonzero(~dataset.test)
    embedded = centered(features(dataset, train, size))
    embedded *= NORM / np.linalg.norm(embedded, axis=1).mean()
    examples = np.zeros((len(dataset.y), size), np.float32)
    examples[train] = embedded
    y, domain = dataset.y[train], dataset.domain[train]
    return Embeddings(examples, label_embeddings(embedded, y, domain, len(dataset.classes)))


def features(dataset: Dataset, rows: np.ndarray, size: int) -> np.ndarray:
    """The random features [rows, size] float32 of these examples."""
    x = dataset.x[rows]
    if is_text(dataset):
        alphabet = np.array(dataset.classes)
        table = gaussian(2 * BUCKETS, size)
        return in_batches(lambda part: hashed(alphabet[part]) @ table, x)
    if is_tokens(dataset):
        table = gaussian(BUCKETS, size)
        return in_batches(lambda part: counted(part) @ table, x)
    if x.ndim == 4 and min(x.shape[1:3]) >= WIDTH + GRID - 1:
        filters = random_filters(x.shape[3])
        raw = in_batches(lambda part: convolved(part, filters), x)
    else:
        raw = x.reshape(len(x), -1).astype(np.float32)
    raw = centered(raw)
    deviation = raw.std(0)
    raw /= np.where(deviation > 0, deviation, 1)
    return raw @ gaussian(raw.shape[1], size)


def label_embeddings(
    embedded: np.ndarray, y: np.ndarray, domain: np.ndarray, classes: int
) -> np.ndarray:
    """The labels' embeddings [K, E] of length 10, from the examples' embeddings [R, E]."""
    cells, cell = np.unique(domain * classes + y, return_inverse=True)
    of_class = means(means(embedded, cell, len(cells)), cells % classes, classes)
    directions = np.random.default_rng(1).standard_normal(of_class.shape)
    return (NORM * unit(unit(of_class) + RANDOM_PART * unit(directions))).astype(np.float32)


def random_filters(channels: int) -> np.ndarray:
    """Filters [channels * WIDTH * WIDTH, FILTERS] float32; the first half treat channels alike."""
    filters = np.random.default_rng(2).standard_normal((channels, WIDTH**2, FILTERS))
    filters[..., : FILTERS // 2] = filters[:1, :, : FILTERS // 2]
    filters -= filters.mean(1, keepdims=True)
    return unit(filters.reshape(-1, FILTERS).T).T.astype(np.float32)


def convolved(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Features [B, GRID * GRID * FILTERS + 2 * channels] float32 of images [B, H, W, channels]."""
    x = shrunk(images.astype(np.float32))
    windows = np.lib.stride_tricks.sliding_window_view(x, (WIDTH, WIDTH), (1, 2))
    batch, height, width, channels = windows.shape[:4]
    answers = windows.reshape(-1, channels * WIDTH**2) @ filters
    answers = np.maximum(answers, 0).reshape(batch, height, width, FILTERS)
    maps = [
        part.mean((1, 2))
        for band in np.array_split(answers, GRID, 1)
        for part in np.array_split(band, GRID, 2)
    ]
    return np.concatenate([*maps, x.mean((1, 2)), x.std((1, 2))], 1)


def shrunk(images: np.ndarray) -> np.ndarray:
    """Images [B, H, W, channels], averaged over squares so that the shorter side is near SIDE."""
    batch, height, width, channels = images.shape
    step = max(1, min(height, width) // SIDE)
    rows, columns = height // step, width // step
    cut = images[:, : rows * step, : columns * step]
    return cut.reshape(batch, rows, step, columns, step, channels).mean((2, 4))


def hashed(texts: np.ndarray) -> Any:
    """Hashed n-grams, a sparse matrix [B, 2 * BUCKETS] float32, of texts [B, length]."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        analyzer="char",
        ngram_range=NGRAMS,
        n_features=BUCKETS,
        lowercase=False,
        dtype=np.float32,
    )
    whole = ["".join(text) for text in texts]
    ends = [text[-LAST:] + END for text in whole]
    return hstack([vectorizer.transform(whole), vectorizer.transform(ends)], "csr")


def counted(texts: np.ndarray) -> Any:
    """Frequencies of words in buckets, a sparse [B, BUCKETS] float32, of token ids [B, length]."""
    from scipy.sparse import csr_matrix

    row, place = np.nonzero(texts)
    share = (1 / np.maximum(np.count_nonzero(texts, 1), 1)).astype(np.float32)[row]
    where = row, texts[row, place].astype(np.int64) % BUCKETS
    return csr_matrix((share, where), (len(texts), BUCKETS))


def in_batches(function: Callable, x: np.ndarray) -> np.ndarray:
    """The concatenated rows of `function` applied to batches of x."""
    starts = range(0, len(x), BATCH)
    return np.concatenate([function(x[start : start + BATCH]) for start in starts])


def gaussian(rows: int, columns: int) -> np.ndarray:
    """A fixed random matrix that preserves lengths on average."""
    table = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    return table / np.float32(np.sqrt(columns))


def means(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """The mean [count, E] of the rows in each group; 0 for an empty group."""
    from scipy.sparse import csr_matrix

    member = csr_matrix((np.ones(len(group)), (group, np.arange(len(group)))), (count, len(group)))
    return member @ values / np.maximum(np.bincount(group, minlength=count), 1)[:, None]


def centered(values: np.ndarray) -> np.ndarray:
    """The rows minus their mean."""
    return values - values.mean(0, dtype=np.float64).astype(np.float32)


def unit(rows: np.ndarray) -> np.ndarray:
    """The rows scaled to length 1; a row of zeros stays as it is."""
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
