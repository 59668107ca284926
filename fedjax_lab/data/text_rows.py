"""Texts as rows of token ids, of one length: 0 is padding, 1 an unknown word, words begin at 2.

Padding comes first, so that the last place of every row is the last word that was read.
"""

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput, check_positive, nearest, quoted

SPECIAL = ("<padding>", "<unknown>")  # the names of ids 0 and 1
UNKNOWN, FIRST = 1, len(SPECIAL)  # the first word
LARGEST = 2**24  # up to which a float32 tells whole numbers apart
WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")  # punctuation marks are words
MODEL_FILE = "tokenizer.json"
BUILT_IN = ("hash", "words")
OTHER = "name another one with --config.data.tokenizer"


class Tokenizer(NamedTuple):
    """How texts become token ids."""

    encode: Callable[[str], list[int]]
    size: int  # all ids are below it
    words: tuple[str, ...] = ()  # the name of each id; empty where an id stands for several words


def examples_of_texts(
    texts: Sequence[str], tokenizer: str, vocabulary: int, length: int
) -> np.ndarray:
    """Texts as token ids x [R, length], int16 or int32; the arguments are those of the settings.

    Of a longer text the first `length` tokens are kept.
    """
    made = make_tokenizer(tokenizer, vocabulary, texts)
    return padded([made.encode(text) for text in texts], length, made.size)


def make_tokenizer(name: str, vocabulary: int, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer of that name; BadInput where there is none.

    Args:
      name: "hash": words in lower case, each in one of so many buckets; "words": the most frequent
        words of `texts`, the others are unknown; or a tokenizer.json of transformers, or the
        folder that has one, which has a vocabulary of its own.
      vocabulary: the number of ids, the two special ones among them.
      texts: those whose words are counted.
    """
    check_vocabulary(vocabulary)
    if name == "hash":
        return Tokenizer(_hashing(vocabulary), vocabulary)
    if name == "words":
        return _frequent(vocabulary, texts)
    return _of_file(name)


def check_vocabulary(size: int) -> None:
    """BadInput where a vocabulary of so many token ids has no words, or too many to be exact."""
    if not FIRST < size <= LARGEST:
        raise BadInput(f"config.data.vocabulary must be from {FIRST + 1} to 2**24, got {size}")


def are_words(classes: Sequence[str]) -> bool:
    """Whether classes are words, which a model predicts: the first of them are then SPECIAL."""
    return tuple(classes[: len(SPECIAL)]) == SPECIAL


def padded(rows: Sequence[Sequence[int]], length: int, size: int) -> np.ndarray:
    """Rows of token ids below `size` as x [R, length]: their first tokens, padded in front."""
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
    """Each word of each row is an example: the words before it, and the word itself.

    Args:
      rows: token ids below `size`.
      length: how many of the words before it an example has; padded in front.
      size: the number of token ids.

    Returns:
      x [R, length], y [R] int32, and the number of the row that each is from [R].
    """
    counts = [len(row) for row in rows]
    kind = id_type(size)
    _check_room(sum(counts), length, kind)
    row = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(row)) + length * row  # where the words before it begin
    flat = np.zeros(len(row) + length * (len(rows) + 1), kind)  # padding before each of the rows
    flat[place + length] = np.fromiter(itertools.chain.from_iterable(rows), kind, len(row))
    windows = np.lib.stride_tricks.sliding_window_view(flat, length)
    return windows[place], flat[place + length].astype(np.int32), row


def _check_room(count, length, kind):
    """BadInput unless so many examples of this length can be, and fit in memory."""
    check_positive("data.length", length)
    with safe.reading("the array of token ids", "take fewer with --config.data.length"):
        safe.check_memory(count * length * kind.itemsize)


def examples(
    rows: Sequence[Sequence[int]], labels: np.ndarray, predict: bool, length: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The examples of rows of token ids: x, y and the row that each is from, as of `next_words`.

    predict: whether each word is an example; otherwise each row is one, and has its label.
    """
    if predict:
        return next_words(rows, length, size)
    return padded(rows, length, size), np.asarray(labels, np.int32), np.arange(len(rows))


def id_type(size: int) -> np.dtype:
    """The smallest type of token ids below `size`: int16 or int32."""
    return np.dtype(np.int16 if size <= 2**15 else np.int32)


def _hashing(vocabulary):
    """Words in buckets by CRC-32, which is the same on every machine."""
    seen: dict[str, int] = {}

    def encode(text):
        words = WORD.findall(text.lower())
        for word in words:
            if word not in seen:
                content = word.encode(errors="surrogatepass")  # half of an emoji is a word too
                seen[word] = FIRST + zlib.crc32(content) % (vocabulary - FIRST)
        return [seen[word] for word in words]

    return encode


def _frequent(vocabulary, texts):
    """The most frequent words of texts; of equally frequent ones those first in the alphabet."""
    counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST]
    ids = {word: id for id, word in enumerate(ranked, FIRST)}

    def encode(text):
        return [ids.get(word, UNKNOWN) for word in WORD.findall(text.lower())]

    return Tokenizer(encode, FIRST + len(ranked), (*SPECIAL, *ranked))


def _of_file(name):
    """The tokenizer of a tokenizer.json; its ids begin at 2 here, and its unknown word is 1."""
    path = Path(name).expanduser()
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.exists():
        raise BadInput(
            f"config.data.tokenizer={quoted(name)} is neither a {MODEL_FILE} of transformers nor a"
            f" folder that has one; {nearest(name, BUILT_IN)}"
        )
    try:
        import tokenizers
    except ImportError as error:
        raise BadInput(f"{file} needs tokenizers: pip install 'fedjax_lab[text]'") from error
    with safe.reading(file, OTHER, "is no tokenizer"):
        made = tokenizers.Tokenizer.from_str(safe.content(file).decode())
        made.no_padding()
        made.no_truncation()
        size = max(made.get_vocab().values(), default=-1) + 1
        if not 0 < size <= LARGEST - FIRST:
            raise ValueError(f"it has {size} tokens, there must be 1 to 2**24 - 2")
        unknown = made.token_to_id(str(getattr(made.model, "unk_token", None)))
        words = tuple(made.id_to_token(id) or f"<{id}>" for id in range(size))

    def encode(text):
        with safe.reading(file, OTHER, "fails"):
            ids = made.encode(text, add_special_tokens=False).ids
        return [UNKNOWN if id == unknown else FIRST + id for id in ids]

    return Tokenizer(encode, FIRST + size, (*SPECIAL, *words))
