"""Generated texts of users with different mixtures of topics; no files are needed.

As in latent Dirichlet allocation (Blei et al. 2003), but with one topic for each text: each user
has a mixture of topics, and each topic has its own distribution of words, mixed with a common one.
Half of the time a word is followed by its successor in the topic, so that the order of words is
informative, too.
"""

from typing import Annotated

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import text_rows
from fedjax_lab.data.formats.text_rows import TextTask, Vocabulary
from fedjax_lab.data.sources._generated import Concentration
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, Positive, Within

OWN = 0.5  # weight of a topic's own word distribution; the rest is common to all topics
FOLLOWS = 0.5  # probability that a word is the successor of the previous one
SPREAD = 0.5  # standard deviation of the logarithm of a user's number of texts
TESTS = 5  # every fifth text of a user is for testing
REMEDY = "lower config.data.users, texts, words, topics or vocabulary"


@source()
def topics(
    *,
    users: Positive[int] = 100,
    texts: Annotated[int, Within(TESTS)] = 30,
    topics: Positive[int] = 8,
    alpha: Concentration = 0.5,
    vocabulary: Vocabulary = 1000,
    words: Positive[int] = 20,
    length: Positive[int] = 20,
    task: TextTask = "classify",
    seed: NotNegative[int] = 0,
) -> Dataset:
    """Topics: token ids x [R, length] int16; 0 is padding, which comes first. Classes are topics.

    users: the number of users, each a natural client.
    texts: the average number of texts of a user; some have several times as many as others.
    topics: the number of topics.
    alpha: the concentration of the Dirichlet distribution of the users' mixtures of topics; a
      smaller one makes users differ more.
    vocabulary: the number of token ids, including the two special ones.
    words: the largest number of words of a text; the smallest is half of it.
    length: the number of tokens of an example; longer texts are truncated.
    task: classify, or next_word: each word is an example, and the label is the word.
    seed: the random seed.

    Every fifth text of each user is for testing. Raises BadInput for an invalid setting, or if the
    texts do not fit in memory.
    """
    if vocabulary < text_rows.FIRST + topics:
        least = f"at least two more than config.data.topics={topics}"
        raise BadInput(f"config.data.vocabulary must be {least}, got {vocabulary}")
    size = 8 * (users * texts * (words + topics) + topics * vocabulary)
    safe.check_fits(size, "the texts", REMEDY)
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(users, dtype=np.int32), how_many(rng, users, texts))
    mixtures = rng.dirichlet(np.full(topics, alpha), users)
    topic = drawn(rng, np.cumsum(mixtures, 1)[client])
    ids = text_rows.FIRST + written(rng, topic, topics, vocabulary - text_rows.FIRST, words)
    counts = rng.integers(-(-words // 2), words + 1, len(topic))
    rows = [row[:n].tolist() for row, n in zip(ids, counts, strict=True)]
    place = np.arange(len(client)) - np.searchsorted(client, client)  # of a text within its user
    made = Dataset(
        x=None,
        y=topic,
        domain=np.zeros(len(rows), np.int32),
        test=place % TESTS == TESTS - 1,
        classes=tuple(f"topic{n}" for n in range(topics)),
        domains=("texts",),
        client=client,
        users=tuple(f"user{n}" for n in range(users)),
    )
    return text_rows.token_dataset(made, rows, task, length, vocabulary, _words(vocabulary))


def _words(vocabulary):
    """The word of each token id."""
    yield from text_rows.SPECIAL
    yield from (f"word{n}" for n in range(vocabulary - text_rows.FIRST))


def how_many(rng: np.random.Generator, users: int, mean: int) -> np.ndarray:
    """The number of texts of each user [users], log-normal and at least TESTS."""
    raw = rng.lognormal(-(SPREAD**2) / 2, SPREAD, users)
    return np.maximum(np.rint(mean * raw), TESTS).astype(int)


def drawn(rng: np.random.Generator, cumulative: np.ndarray) -> np.ndarray:
    """Draws an index for each row of cumulative weights [R, K]: [R] int32."""
    below = rng.random((len(cumulative), 1)) * cumulative[:, -1:] > cumulative
    return below.sum(1).astype(np.int32)


def written(
    rng: np.random.Generator, topic: np.ndarray, topics: int, words: int, length: int
) -> np.ndarray:
    """Draws the words of texts with these topics [R]: numbers in 0 .. words - 1, [R, length]."""
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
