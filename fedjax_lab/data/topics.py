"""Generated texts of users who each write about some topics: nothing has to be fetched.

As in latent Dirichlet allocation (Blei et al. 2003), with one topic for a text: each user has a
mixture of topics, and each topic words of its own beside those that all have. After a word its
successor in the topic follows half of the time, so that the order of words says something too.
"""

import numpy as np

from fedjax_lab.data import safe, text_rows
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.generated import check_spread
from fedjax_lab.data.text_files import TASKS
from fedjax_lab.errors import BadInput, check_choice, check_not_negative, check_positive

OWN = 0.5  # share of a topic's words that are drawn by its own ranking
FOLLOWS = 0.5  # how often a word is the successor of the one before it
SPREAD = 0.5  # of the logarithm of how many texts a user has
TESTS = 5  # every fifth text of a user is for tests


def topics(
    *,
    users: int = 100,
    texts: int = 30,
    topics: int = 8,
    alpha: float = 0.5,
    vocabulary: int = 1000,
    words: int = 20,
    length: int = 20,
    task: str = TASKS[0],
    seed: int = 0,
) -> Dataset:
    """x [R, length] int16, token ids: 0 is padding, which comes first. A class is a topic.

    users: how many there are, each a natural client.
    texts: of a user, on average; some have several times as many as others.
    topics: how many there are.
    alpha: of the Dirichlet distribution of a user's mixture of topics: the smaller, the more
      unequal are users.
    vocabulary: the number of token ids, the two special ones among them.
    words: the most words of a text; the shortest ones have half as many.
    length: tokens of an example; longer texts are cut.
    task: classify, or next_word: each word is an example, and the label is the word.
    seed: of all draws.

    Every fifth text of each user is for tests. Raises BadInput for a setting that makes no sense,
    and where memory does not suffice.
    """
    check_choice("data.task", task, TASKS)
    check_not_negative("data.seed", seed)
    _check(users=users, topics=topics, words=words, length=length, alpha=alpha)
    check_spread("alpha", alpha)
    if not text_rows.FIRST + topics <= vocabulary <= text_rows.LARGEST:
        least = f"two more than config.data.topics={topics}"
        raise BadInput(f"config.data.vocabulary must be {least}, up to 2**24, got {vocabulary}")
    if texts < TESTS:
        raise BadInput(f"config.data.texts must be at least {TESTS}, got {texts}")
    _check_memory(users * texts * (words + topics) + topics * vocabulary)
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(users, dtype=np.int32), how_many(rng, users, texts))
    mixtures = rng.dirichlet(np.full(topics, alpha), users)
    topic = drawn(rng, np.cumsum(mixtures, 1)[client])
    ids = text_rows.FIRST + written(rng, topic, topics, vocabulary - text_rows.FIRST, words)
    counts = rng.integers(-(-words // 2), words + 1, len(topic))
    rows = [row[:n].tolist() for row, n in zip(ids, counts, strict=True)]
    x, y, row = text_rows.examples(rows, topic, task == TASKS[1], length, vocabulary)
    place = np.arange(len(client)) - np.searchsorted(client, client)  # of a text among its user's
    return Dataset(
        x=x,
        y=y,
        domain=np.zeros(len(x), np.int32),
        test=(place % TESTS == TESTS - 1)[row],
        classes=names(task, topics, vocabulary),
        domains=("texts",),
        origin=row.astype(np.int32) if task == TASKS[1] else None,
        client=client[row],
        users=tuple(f"user{n}" for n in range(users)),
    )


def names(task: str, topics: int, vocabulary: int) -> tuple[str, ...]:
    """Those of the classes: topics, or words."""
    if task != TASKS[1]:
        return tuple(f"topic{n}" for n in range(topics))
    words = range(vocabulary - text_rows.FIRST)
    return (*text_rows.SPECIAL, *(f"word{n}" for n in words))


def how_many(rng: np.random.Generator, users: int, mean: int) -> np.ndarray:
    """The number of texts of each user [users], at least TESTS: log-normal."""
    raw = rng.lognormal(-(SPREAD**2) / 2, SPREAD, users)
    return np.maximum(np.rint(mean * raw), TESTS).astype(int)


def drawn(rng: np.random.Generator, cumulative: np.ndarray) -> np.ndarray:
    """One number for each row of cumulative probabilities [R, K]: [R] int32."""
    below = rng.random((len(cumulative), 1)) * cumulative[:, -1:] > cumulative
    return below.sum(1).astype(np.int32)


def written(
    rng: np.random.Generator, topic: np.ndarray, topics: int, words: int, length: int
) -> np.ndarray:
    """Words 0 .. words - 1 of texts with these topics [R]: [R, length]."""
    by_rank = 1 / (1 + np.arange(words))  # Zipf's law
    common = by_rank[rng.permutation(words)]
    by_topic = np.stack([by_rank[rng.permutation(words)] for _ in range(topics)])
    cumulative = np.cumsum(OWN * by_topic + (1 - OWN) * common, 1)
    successor = np.stack([rng.permutation(words) for _ in range(topics)])
    made = np.empty((len(topic), length), np.int32)
    for k in range(topics):
        of_topic = rng.random(((topic == k).sum(), length)) * cumulative[k, -1]
        made[topic == k] = np.searchsorted(cumulative[k], of_topic)
    follows = rng.random(made.shape) < FOLLOWS
    for t in range(1, length):
        made[:, t] = np.where(follows[:, t], successor[topic, made[:, t - 1]], made[:, t])
    return made


def _check(**positive):
    for name, value in positive.items():
        check_positive(f"data.{name}", value)


def _check_memory(numbers):
    """BadInput where so many numbers of 8 bytes do not fit in memory."""
    try:
        safe.check_memory(8 * numbers)
    except safe.TooLargeError as error:
        raise BadInput(
            f"the texts do not fit in memory: {error}; lower config.data.users, texts, words,"
            " topics or vocabulary"
        ) from error
