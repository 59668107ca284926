"""A test set for data that have none: a share of all examples, drawn by class, domain and user."""

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.text_rows import are_words
from fedjax_lab.errors import BadInput


def with_test(dataset: Dataset, source: str, share: float, seed: int) -> Dataset:
    """The dataset with a share of its examples as test examples.

    Of examples that are cut from texts (`Dataset.origin`), a share of the texts: words of one that
    is trained on would be no test.

    Args:
      dataset: one without test examples, or with such that its source has drawn.
      source: its name, for messages.
      share: the fraction of the examples that become test examples, above 0 and below 1.
      seed: of the draw; the same seed draws the same examples in every run.

    Raises:
      BadInput: the dataset has test examples, or has too few examples for any, or each word of its
        texts is an example.
    """
    present = int(np.sum(dataset.test))
    if present and not dataset.test_is_drawn:
        raise BadInput(
            f"config.data.test={share} is for data without a test set, but {source} has {present}"
            " test examples; set config.data.test=0"
        )
    if dataset.origin is not None:
        test = _of_origins(dataset, dataset.origin, share, seed)
    elif are_words(dataset.classes):
        raise BadInput(
            f"config.data.test={share} would divide the words of one text between training and"
            f" tests, as each word is an example and {source} does not say of which text; give the"
            " tests texts of their own (config.data.test_path of text_files)"
        )
    else:
        test = draw(dataset.y, dataset.domain, dataset.client, share, seed)
    if not test.any():
        raise BadInput(
            f"config.data.test={share} of {len(test)} examples leaves none to test on; take more"
        )
    return dataset._replace(test=test)


def _of_origins(dataset: Dataset, origin: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Which examples [R] bool are of the texts that are drawn; their labels do not matter."""
    _, first, number = np.unique(origin, return_index=True, return_inverse=True)
    client = None if dataset.client is None else np.asarray(dataset.client)[first]
    domain = np.asarray(dataset.domain)[first]
    return draw(np.zeros(len(first), np.int32), domain, client, share, seed)[number]


def draw(
    y: np.ndarray, domain: np.ndarray, client: np.ndarray | None, share: float, seed: int
) -> np.ndarray:
    """Which examples [R] bool are drawn: stratified by user, domain and class.

    The examples are put in an order by user, domain and class, in which the draw takes one at even
    distances. So each user, each domain of a user and each class of these give `share` of their
    examples, rounded up or down. Where there are no users, that holds for each domain and each
    class of a domain. The classes of a domain are in random order, so that the rounding favors
    none. A user, or a class of a domain, keeps one training example at least.

    Args:
      y: the labels [R].
      domain: the domains [R].
      client: the users [R]; None where there are none.
      share: the fraction that is drawn.
      seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    owner = np.zeros(len(y), np.int64) if client is None else np.asarray(client, np.int64)
    of_class = _numbers(domain, y)
    stratum = _numbers(owner, of_class)
    place = rng.permutation(stratum.max() + 1)
    order = np.lexsort((rng.random(len(y)), place[stratum], domain, owner))
    taken = np.floor(rng.random() + share * np.arange(len(y) + 1))
    test = np.empty(len(y), bool)
    test[order] = np.diff(taken) > 0
    for group in (of_class, owner) if client is not None else (of_class,):
        test[_firsts_of_emptied(test[order], group[order], order)] = False
    return test


def _numbers(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A number from 0 for each pair of numbers that there is, [R]."""
    first, second = np.asarray(first, np.int64), np.asarray(second, np.int64)
    pairs = first * (second.max() + 1) + second
    return np.unique(pairs, return_inverse=True)[1]


def _firsts_of_emptied(test: np.ndarray, group: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The row of the first example of each group whose examples are all test examples."""
    keeps = np.bincount(group, weights=~test) > 0
    _, first = np.unique(group, return_index=True)
    return row[first[~keeps[group[first]]]]
