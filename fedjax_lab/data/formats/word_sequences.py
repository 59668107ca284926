"""Sequences of words that are already split, by natural users, for next-word prediction."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import text_rows
from fedjax_lab.data.formats.user_rows import UserRows, assembled


class Words:
    """Numbers words in the order in which they are first seen.

    So sequences can be kept as numbers before the most frequent words are known.
    """

    def __init__(self) -> None:
        """Starts without words."""
        self.numbers: dict[str, int] = {}

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """The numbers [n] int32 of these words."""
        numbers = self.numbers
        return np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int32)

    def most_frequent(self, sequences: Sequence[np.ndarray], count: int) -> list[int]:
        """The numbers of the most frequent words in these sequences, at most `count`.

        Ties are in alphabetical order.
        """
        names = list(self.numbers)
        counts = np.bincount(np.concatenate([*sequences, []]).astype(int), minlength=len(names))
        order = sorted(np.flatnonzero(counts), key=lambda number: (-counts[number], names[number]))
        return [int(number) for number in order[:count]]


def next_word(
    words: Words, parts: Sequence[UserRows], vocabulary: int, length: int, name: str
) -> Dataset:
    """Makes an example of each word in each sequence: the words before it, and the word itself.

    Args:
      words: the numbering of the words in the sequences.
      parts: the users' sequences; x is a list of arrays of word numbers [n], and y has any label
        for each of them.
      vocabulary: the number of token ids: padding, the unknown word, and then the most frequent
        words of the training sequences.
      length: the number of preceding words that an example has.
      name: the name of the data set.
    """
    first, names = text_rows.FIRST, list(words.numbers)
    training = [sequence for part in parts if not part.test for sequence in part.x]
    kept = words.most_frequent(training, vocabulary - first)
    ids = np.full(len(names), text_rows.UNKNOWN)
    ids[kept] = np.arange(first, first + len(kept))
    sequences = [ids[sequence].tolist() for part in parts for sequence in part.x]
    classes = (*text_rows.SPECIAL, *(names[number] for number in kept))
    made, task = assembled(parts, None, (), name), "next_word"
    return text_rows.token_dataset(made, sequences, task, length, len(classes), classes)
