"""Texts as rows of token ids of equal length: 0 is padding, 1 an unknown word, words begin at 2.

Padding comes first, so that the last position of every row is the last word that was kept.
"""

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import tokenizer_files
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import Within

SPECIAL = ("<padding>", "<unknown>")  # the names of ids 0 and 1
UNKNOWN, FIRST = 1, len(SPECIAL)  # ids of the unknown word and of the first word
LARGEST = 2**24  # up to this number, float32 represents every integer exactly
# Thai to Tibetan, Burmese, Khmer, and the characters of Chinese and Japanese: without spaces.
UNSPACED = (
    "\u0e00-\u109f\u1780-\u17ff\u2e80-\u30ff\u31f0-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
# Punctuation marks are words, too, and so is each character of a script without spaces.
WORD = re.compile(rf"[^\W{UNSPACED}]+(?:'[^\W{UNSPACED}]+)*|(?!\s)[{UNSPACED}]|[^\w\s]")
BUILT_IN = ("hash", "words")

TextTask = Literal["classify", "next_word"]
Vocabulary = Annotated[int, Within(FIRST + 1, LARGEST)]


class Tokens(NamedTuple):
    """The settings of the conversion of texts to examples, common to all sources of texts."""

    task: str
    tokenizer: str
    vocabulary: int
    length: int


def checked(task: str, tokenizer: str, vocabulary: int, length: int) -> Tokens:
    """The settings. Raises BadInput if task and tokenizer do not fit together."""
    if task == "next_word" and tokenizer == "hash":
        raise BadInput(
            "config.data.task=next_word cannot predict words with config.data.tokenizer=hash, which"
            " maps several words to one token; use --config.data.tokenizer=words"
        )
    return Tokens(task, tokenizer, vocabulary, length)


class Tokenizer(NamedTuple):
    """A conversion of texts to token ids."""

    encode: Callable[[str], list[int]]
    size: int  # all ids are below it
    words: tuple[str, ...] = ()  # the word of each id; () if an id stands for several words


def make_tokenizer(name: str, vocabulary: int, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer of this name. Raises BadInput if there is none.

    Args:
      name: "hash": lower-case words, each in one of `vocabulary` buckets; "words": the most
        frequent words of `texts`, all others are unknown; or a tokenizer.json of transformers, or
        the folder that has it, with a vocabulary of its own.
      vocabulary: the number of ids, including the two special ones.
      texts: the texts whose words are counted.
    """
    if name == "hash":
        return Tokenizer(_hashing(vocabulary), vocabulary)
    if name == "words":
        return _frequent(vocabulary, texts)
    return _file_tokenizer(name)


def are_words(classes: Sequence[str]) -> bool:
    """Whether the classes are words to predict; they then begin with SPECIAL."""
    return tuple(classes[: len(SPECIAL)]) == SPECIAL


def padded(rows: Sequence[Sequence[int]], length: int, size: int) -> np.ndarray:
    """Rows of token ids below `size` as x [R, length]: truncated to length, or padded in front."""
    kind = id_type(size)
    _check_room(len(rows), length, kind)
    x = np.zeros((len(rows), length), kind)
    for made, ids in zip(x, rows, strict=True):
        kept = ids[:length]
        made[length - len(kept) :] = kept
    return x


def next_words(
    rows: Sequence[Sequence[int]], length: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes an example of each word in each row: the words before it, and the word itself.

    Args:
      rows: token ids below `size`.
      length: the number of preceding words that an example has; padded in front.
      size: the number of token ids.

    Returns:
      x [R, length], y [R] int32, and the number of the row of each example [R].
    """
    counts = [len(row) for row in rows]
    kind = id_type(size)
    _check_room(sum(counts), length, kind)
    row = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(row)) + length * row  # start of the window before each word
    flat = np.zeros(len(row) + length * (len(rows) + 1), kind)  # with padding before each row
    flat[place + length] = np.fromiter(itertools.chain.from_iterable(rows), kind, len(row))
    windows = np.lib.stride_tricks.sliding_window_view(flat, length)
    return windows[place], flat[place + length].astype(np.int32), row


def _check_room(count, length, kind):
    """Raises BadInput if the examples do not fit in memory."""
    size = count * length * kind.itemsize
    safe.check_fits(size, "the token ids", "lower --config.data.length")


def text_dataset(dataset: Dataset, texts: Sequence[str], tokens: Tokens) -> Dataset:
    """The examples of these texts; the vocabulary is that of the training texts.

    dataset: the facts about the texts, without x.
    """
    training = (text for text, test in zip(texts, dataset.test, strict=True) if not test)
    made = make_tokenizer(tokens.tokenizer, tokens.vocabulary, training)
    rows = [made.encode(text) for text in texts]
    return token_dataset(dataset, rows, tokens.task, tokens.length, made.size, made.words)


def token_dataset(
    dataset: Dataset,
    rows: Sequence[Sequence[int]],
    task: str,
    length: int,
    size: int,
    words: Iterable[str],
) -> Dataset:
    """The examples of texts, given as rows of token ids: each text is one, or each of its words.

    Args:
      dataset: the facts about the texts, without x.
      rows: token ids below `size`.
      task: a `TextTask`.
      length: the number of tokens of an example.
      size: the number of token ids.
      words: the word of each token id, which are the classes if words are predicted.
    """
    if task == "classify":
        return dataset._replace(x=padded(rows, length, size))
    x, y, row = next_words(rows, length, size)
    return dataset._replace(
        x=x,
        y=y,
        domain=dataset.domain[row],
        origin=row.astype(np.int32) if dataset.origin is None else dataset.origin[row],
        test=dataset.test[row],
        client=None if dataset.client is None else dataset.client[row],
        classes=tuple(words),
    )


def id_type(size: int) -> np.dtype:
    """The smallest type for token ids below `size`: int16 or int32."""
    return np.dtype(np.int16 if size <= 2**15 else np.int32)


def _hashing(vocabulary):
    """Maps words to buckets by CRC-32, which is the same on every machine."""
    seen: dict[str, int] = {}

    def encode(text):
        words = WORD.findall(text.lower())
        for word in words:
            if word not in seen:
                content = word.encode(errors="surrogatepass")  # allows unpaired surrogates
                seen[word] = FIRST + zlib.crc32(content) % (vocabulary - FIRST)
        return [seen[word] for word in words]

    return encode


def _frequent(vocabulary, texts):
    """A tokenizer of the most frequent words of texts; ties are in alphabetical order."""
    counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST]
    ids = {word: id for id, word in enumerate(ranked, FIRST)}

    def encode(text):
        return [ids.get(word, UNKNOWN) for word in WORD.findall(text.lower())]

    return Tokenizer(encode, FIRST + len(ranked), (*SPECIAL, *ranked))


def _file_tokenizer(name):
    """The tokenizer of a file; ids are shifted to begin at 2, the unknown word is 1."""
    made = tokenizer_files.read(name, BUILT_IN, extra="text")

    def encode(text):
        ids, _ = made.encode(text)
        return [UNKNOWN if id == made.unknown else FIRST + id for id in ids]

    return Tokenizer(encode, FIRST + len(made.tokens), (*SPECIAL, *made.tokens))
