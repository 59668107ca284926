"""Generated instructions of users with different mixtures of tasks; no files are needed.

The tasks are short and have one right answer: to copy, reverse, sort and count words, to add two
numbers, to name opposites, and to name the first of several words.
"""

from collections.abc import Callable
from typing import Annotated

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats.conversations import Form, Length, Message, Template, TrainOn
from fedjax_lab.data.sources._generated import Concentration
from fedjax_lab.data.sources.instructions import Record, dataset_of
from fedjax_lab.data.sources.topics import TESTS, drawn, how_many
from fedjax_lab.ranges import NotNegative, Positive, Within

WORDS = (
    "apple ball bird book bread chair clock cloud cup desk door egg fish flower fork glass gold"
    " hand hat horse house ice jam king lake lamp leaf milk moon nest oil pen rain river road salt"
    " ship sun tree wheel"
).split()
OPPOSITES = (
    "hot cold|big small|fast slow|up down|day night|open closed|old new|wet dry|high low|full empty"
    "|happy sad|left right|light dark|hard soft|early late|rich poor|strong weak|first last"
)
PAIRS = [pair.split() for pair in OPPOSITES.split("|")]
LARGEST = 100  # numbers of a sum are below it


def _asked(what: str, answer: Callable[[list[str]], str]) -> Callable:
    """The task to answer something about three to five different words."""

    def make(rng):
        words = rng.choice(WORDS, rng.integers(3, 6), replace=False).tolist()
        return f"{what}: {' '.join(words)}", answer(words)

    return make


def _sum(rng):
    a, b = rng.integers(0, LARGEST, 2).tolist()
    return f"Add {a} and {b}", str(a + b)


def _opposites(rng):
    chosen = [rng.permutation(PAIRS[n]) for n in rng.choice(len(PAIRS), 3, replace=False)]
    words, answer = (" ".join(side) for side in zip(*chosen, strict=True))
    return f"Name the opposites: {words}", answer


TASKS: dict[str, Callable[[np.random.Generator], tuple[str, str]]] = {
    "copy": _asked("Copy", " ".join),
    "reverse": _asked("Reverse", lambda words: " ".join(words[::-1])),
    "sort": _asked("Sort", lambda words: " ".join(sorted(words))),
    "count": _asked("Count the words", lambda words: str(len(words))),
    "first": _asked("Name the first word", lambda words: words[0]),
    "sum": _sum,
    "opposites": _opposites,
}


@source()
def generated_instructions(
    *,
    users: Positive[int] = 50,
    records: Annotated[int, Within(TESTS)] = 40,
    alpha: Concentration = 0.5,
    seed: NotNegative[int] = 0,
    tokenizer: str = "bytes",
    template: Template = "chat",
    train_on: TrainOn = "response",
    length: Length = 128,
    vocabulary: NotNegative[int] = 0,
    packing: bool = False,
) -> Dataset:
    """Generated instructions: x [R, T] int32, token ids; y [R, T], the next token, or -1.

    Rows are padded at the end.

    The tasks are the domains, and each user is a natural client.

    users: the number of users.
    records: the average number of records of a user; some have several times as many as others.
    alpha: the concentration of the Dirichlet distribution of the users' mixtures of tasks; a
      smaller one makes users differ more.
    seed: the random seed.
    tokenizer, template, train_on, length, vocabulary, packing: as in `instructions`.

    Every fifth record of each user is for testing. Raises BadInput for an invalid setting.
    """
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(users), how_many(rng, users, records))
    mixtures = rng.dirichlet(np.full(len(TASKS), alpha), users)
    task = drawn(rng, np.cumsum(mixtures, 1)[client])
    names, width = list(TASKS), len(str(users - 1))
    made = []
    for user, number in zip(client, task, strict=True):
        asked, answer = TASKS[names[number]](rng)
        messages = [Message("user", asked), Message("assistant", answer)]
        made.append(Record(messages, f"user{user:0{width}d}", names[number]))
    place = np.arange(len(client)) - np.searchsorted(client, client)  # within its user
    form = Form(tokenizer, template, train_on, False, length, vocabulary, packing)
    return dataset_of(made, place % TESTS == TESTS - 1, form, "generated_instructions")
