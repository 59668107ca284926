"""Draws a test set from data that have none, stratified by user, domain and class.

All sources draw by this rule. Examples of one `Dataset.origin`, such as a text or a patient, are
never divided between training and test examples.
"""

import numpy as np

from fedjax_lab.data.dataset import Dataset, are_numerals
from fedjax_lab.data.formats.text_rows import are_words
from fedjax_lab.errors import BadInput

FIFTH = 0.2  # the share of examples that sources draw if data have no test set


def with_test(dataset: Dataset, source: str, share: float, seed: int) -> Dataset:
    """The dataset with a random share of its examples as test examples.

    If examples are cut from texts (`Dataset.origin`), a share of the texts is drawn instead: words
    of a training text cannot test a model.

    Args:
      dataset: a dataset without test examples, or whose source has drawn them at random.
      source: the name of the data source, for messages.
      share: the fraction of examples that become test examples, above 0 and below 1.
      seed: the seed of the draw; the same seed draws the same examples in every run.

    Raises:
      BadInput: the dataset has its own test set, has too few examples, or has an example for each
        word without saying which text it is from.
    """
    present = int(np.sum(dataset.test))
    if present and not dataset.test_is_drawn:
        raise BadInput(
            f"config.data.test={share} is for data without a test set, but {source} has {present}"
            " test examples; set config.data.test=0"
        )
    if dataset.origin is None and are_words(dataset.classes):
        raise BadInput(
            f"config.data.test={share} would divide the words of one text between training and test"
            f" set, because each word is an example and {source} does not say from which text;"
            " provide a file of test texts (config.data.test_path of text_files)"
        )
    test = drawn(dataset, share, seed)
    if not test.any():
        raise BadInput(
            f"config.data.test={share} of {len(test)} examples gives no test example; increase it"
        )
    return dataset._replace(test=test, test_is_drawn=True)


def with_share(dataset: Dataset, share: float = FIFTH, seed: int = 0) -> Dataset:
    """The dataset with a random share of its examples as its test set, if there are enough."""
    test = drawn(dataset, share, seed)
    return dataset._replace(test=test, test_is_drawn=True) if test.any() else dataset


def check_whole(dataset: Dataset) -> None:
    """Raises BadInput if examples of one origin are both training and test examples."""
    if dataset.origin is None:
        return
    _, number = np.unique(dataset.origin, return_inverse=True)
    test = np.asarray(dataset.test) != 0
    divided = (np.bincount(number, test) > 0) & (np.bincount(number, ~test) > 0)
    if divided.any():
        rows = divided[number]
        train, tested = (int(np.argmax(rows & side)) for side in (~test, test))
        raise BadInput(
            f"{divided.sum()} of {len(divided)} groups have training and test examples, such as"
            f" examples {train} and {tested}; divide the data by groups, or give no split and draw"
            " the test set with --config.data.test=0.2"
        )


def remark(dataset: Dataset) -> str:
    """A line on a test set that was drawn at random."""
    line = (
        f"no test set is given: {np.sum(dataset.test)} of {len(dataset.test)} examples, drawn at"
        " random from each user, domain and class, are the test set (data.test, data.test_seed)"
    )
    if dataset.client is None:
        return line
    tested = np.bincount(dataset.client[dataset.test], minlength=len(dataset.users)) > 0
    return line + f"; {np.sum(~tested)} of {len(tested)} users have none" * (not tested.all())


def drawn(dataset: Dataset, share: float, seed: int) -> np.ndarray:
    """Flags [R] bool of the examples that are drawn; x is not read."""
    if dataset.origin is not None:
        return _draw_origins(dataset, dataset.origin, share, seed)
    return draw(_classes(dataset), dataset.domain, dataset.client, share, seed)


def _classes(dataset: Dataset) -> np.ndarray:
    """The class of each example [R]; 0 for all if the labels are amounts or not one class.

    Whole numbers without names, some of which are missing between others, are taken as amounts,
    such as days. Each amount that occurs once would be a training example if it were a class.
    """
    y = dataset.strata
    present = np.unique(y)
    is_amount = are_numerals(dataset.classes) and len(present) <= np.ptp(present)
    return np.zeros(len(y), np.int32) if is_amount else y


def _draw_origins(dataset: Dataset, origin: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Flags [R] bool of the examples whose texts, images or groups are drawn.

    They are stratified by label if all examples of each of these have the same one.
    """
    _, first, number = np.unique(origin, return_index=True, return_inverse=True)
    client = None if dataset.client is None else np.asarray(dataset.client)[first]
    domain = np.asarray(dataset.domain)[first]
    classes = _classes(dataset)
    labels = classes[first]
    if not np.array_equal(labels[number], classes):
        labels = np.zeros(len(first), np.int32)
    return draw(labels, domain, client, share, seed)[number]


def draw(
    y: np.ndarray, domain: np.ndarray, client: np.ndarray | None, share: float, seed: int
) -> np.ndarray:
    """Draws test examples, stratified by user, domain and class; returns their flags [R] bool.

    The examples are sorted by user, domain and class, and every 1/share-th of them is taken. So
    each user, each domain of a user and each class of such a domain gives the fraction `share` of
    its examples, rounded up or down. Without users, this holds for each domain and each class of a
    domain. The classes of a domain are in random order, so that rounding favors none. At least one
    training example remains for each user and for each class of a domain.

    Args:
      y: the labels [R].
      domain: the domains [R].
      client: the users [R]; None if there are none.
      share: the fraction of examples to draw.
      seed: the seed of the draw.
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
    """A number, counting from 0, for each distinct pair of numbers, [R]."""
    first, second = np.asarray(first, np.int64), np.asarray(second, np.int64)
    pairs = first * (second.max() + 1) + second
    return np.unique(pairs, return_inverse=True)[1]


def _firsts_of_emptied(test: np.ndarray, group: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The first row of each group whose examples have all been drawn as test examples."""
    keeps = np.bincount(group, weights=~test) > 0
    _, first = np.unique(group, return_index=True)
    return row[first[~keeps[group[first]]]]
