"""TensorFlow Federated's data sets in HDF5: FEMNIST, CIFAR-100, Shakespeare, Stack Overflow.

A file has the group `examples`, with a group for each user that has one array for each field:
tff.simulation.datasets, https://github.com/google-parfait/tensorflow-federated.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.cache import checksum
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import user_rows
from fedjax_lab.data.formats.text_rows import Vocabulary
from fedjax_lab.data.formats.user_rows import UserRows
from fedjax_lab.data.formats.word_sequences import Words, next_word
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.places import folder_of
from fedjax_lab.data.safe import Fault
from fedjax_lab.data.sources import leaf, shakespeare
from fedjax_lab.errors import (
    BadInput,
    check_choice,
    quoted,
)
from fedjax_lab.ranges import NotNegative, Positive

REMEDY = (
    "run tff.simulation.datasets.emnist.load_data() (or cifar100, shakespeare, stackoverflow) of"
    " TensorFlow Federated, which fetches PREFIX_train.h5 and PREFIX_test.h5 into"
    " ~/.keras/datasets, or unpack https://storage.googleapis.com/tff-datasets-public/"
    "fed_emnist.tar.bz2; name their folder with --config.data.folder"
)
CIFAR = (
    "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009. Its clients: S."
    " Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan."
    " Adaptive Federated Optimization. ICLR 2021, arXiv:2003.00295."
)
STACK_OVERFLOW = "The TensorFlow Federated Authors. Stack Overflow dataset. 2019.", "CC BY-SA 3.0"
PUBLIC_DOMAIN = "public domain (Project Gutenberg)"


class Kind(NamedTuple):
    """How examples of one kind are read."""

    fields: tuple[str, ...]  # the fields by which the kind is recognized
    encode: Callable[..., tuple[Any, np.ndarray]]  # fields of a user -> examples and labels
    finish: Callable[[list[UserRows], str], Dataset]  # (all examples, name) -> dataset
    citation: str
    license: str = ""
    same_users: bool = True  # whether both files have the same users


@source(REMEDY)
def tff_hdf5(
    *,
    folder: str,
    dataset: str = "",
    max_users: NotNegative[int] = 0,
    task: Literal["tags", "next_word"] = "tags",
    vocabulary: Vocabulary = 10_000,
    tags: Positive[int] = 500,
    length: Positive[int] = 20,
) -> Dataset:
    """The examples and users in TensorFlow Federated's HDF5 files.

    The fields of the files determine how they are read. `pixels` is FEMNIST: [28, 28, 1] on a white
    background, 62 characters or 10 digits. `image` is CIFAR-100, whose test users differ from the
    training users. `snippets` is Shakespeare: the joined lines of a role, as windows of 80
    characters and the next one, in the alphabet of the data source shakespeare. `tokens` is Stack
    Overflow: see task.

    folder: the folder with PREFIX_train.h5 and PREFIX_test.h5, such as ~/.keras/datasets.
    dataset: PREFIX, such as fed_emnist; may be empty if the folder has only one.
    max_users: the number of users of the training file, drawn at random (the same at every call),
        with their test examples; 0: all.
    task: tags predicts the tag of a question from the share of each word in a sentence and the
        title; of several tags, the one that is most frequent in training is the label, so that
        accuracies are not comparable with published recalls of all tags. next_word predicts each
        word of a sentence.
    vocabulary: the number of words, the most frequent ones in training; for next_word this includes
        padding and the unknown word.
    tags: the number of classes, the most frequent tags in training; sentences without any of them
        are left out.
    length: the number of words before the next one that an example has.
    """
    prefix, train, test = files_of(folder, dataset)
    words = tag_kind(vocabulary, tags) if task == "tags" else sentence_kind(vocabulary, length)
    parts, kind = parts_of(train, test, (*KINDS, words), max_users)
    return kind.finish(parts, prefix)._replace(license=kind.license, citation=kind.citation)


def files_of(folder: str, dataset: str) -> tuple[str, Path, Path]:
    """The name of the data set, and its training and test file."""
    where = folder_of(folder)
    ends = "_train.h5", "_test.h5"
    names = [file.name.removesuffix(ends[0]) for file in safe.glob(where, f"*{ends[0]}")]
    if not names:
        raise Fault(f"no *_train.h5 in {where}")
    if len(names) > 1 and not dataset:
        raise BadInput(f"{where} has {', '.join(names)}: choose one with --config.data.dataset")
    check_choice("data.dataset", dataset or names[0], names)
    name = dataset or names[0]
    return name, where / f"{name}{ends[0]}", where / f"{name}{ends[1]}"


def parts_of(
    train: Path, test: Path, kinds: Sequence[Kind], max_users: int
) -> tuple[list[UserRows], Kind]:
    """The examples of all chosen users, training examples first, and their kind."""
    room = user_rows.Room()
    with safe.reading(train, extra="hdf5"), opened(train) as users:
        kind = kind_of(users, kinds)
        chosen = sorted(users)
        if max_users:
            order = np.random.default_rng(0).permutation(len(chosen))
            chosen = sorted(chosen[place] for place in order[:max_users])
        parts = list(read(users, chosen, kind, room, "", False))
    if not parts:
        raise Fault(f"{train} has no examples")
    with safe.reading(test), opened(test) as users:
        if kind.same_users:
            parts += read(users, sorted(set(users) & set(chosen)), kind, room, "", True)
        else:
            parts += read(users, sorted(users), kind, room, "test ", True)
    return parts, kind


def read(
    users: Mapping, names: Sequence[str], kind: Kind, room: user_rows.Room, prefix: str, test: bool
) -> Iterator[UserRows]:
    """The examples of the named users who have any; the prefix is put before each name."""
    for name in tqdm(names, "test" if test else "train", unit=" users", delay=2):
        fields = [content(member(users, name), field) for field in kind.fields]
        if len({len(field) for field in fields}) > 1:
            raise ValueError(f"user {quoted(name, 60)} has fields of different lengths")
        part = UserRows(prefix + name, test, *kind.encode(*fields))
        room.take(part.x)
        if len(part.y):
            yield part


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Mapping]:
    """The groups of the users in an HDF5 file, by name."""
    import h5py

    safe.check_regular(file)
    with h5py.File(file, "r") as group:
        yield member(group, "examples")


def member(group: Any, name: str) -> Any:
    """A member of an HDF5 group. Raises ValueError if it is a link, maybe to another file."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"there is no {quoted(name, 60)}")
    return group[name]


def content(group: Mapping, field: str) -> np.ndarray:
    """The array of a field in a user's group. Raises an error if the file cannot hold its size."""
    stored = member(group, field)
    if stored.is_virtual or stored.external:
        raise ValueError(f"the content of {quoted(field, 60)} is in other files")
    safe.check_claim(stored.nbytes, Path(stored.file.filename).stat().st_size)
    return np.atleast_1d(stored[()])


def kind_of(users: Mapping, kinds: Sequence[Kind]) -> Kind:
    """The kind that fits the fields of the first user."""
    fields = set(member(users, min(users, default="")))
    for kind in kinds:
        if fields.issuperset(kind.fields):
            return kind
    wanted = "; ".join(", ".join(kind.fields) for kind in kinds)
    raise ValueError(f"a user has the fields {quoted(sorted(fields))}, not {wanted}")


def pictures(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels; uint8 arrays are gray levels or colors."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x if x.ndim == 4 else x[..., None]
    else:
        x = user_rows.images_or_vectors(x)
    return x, user_rows.labels(y.ravel())


def texts_of(values: np.ndarray) -> list[str]:
    """The texts of a field."""
    if not all(isinstance(value, bytes) for value in values.tolist()):
        raise ValueError("a field does not hold texts")
    return [value.decode("utf-8", "replace") for value in values.tolist()]


# Shakespeare


def speech(snippets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Windows of the lines of a role, and the character after each window."""
    numbers = shakespeare.numbers(["\n".join(texts_of(snippets))])
    if len(numbers) <= shakespeare.LENGTH:
        return np.zeros((0, shakespeare.LENGTH), np.int8), np.zeros(0, np.int32)
    x = np.lib.stride_tricks.sliding_window_view(numbers[:-1], shakespeare.LENGTH)
    return x.copy(), numbers[shakespeare.LENGTH :].astype(np.int32)


def finish_speech(parts: list[UserRows], name: str) -> Dataset:
    """The dataset of all windows."""
    x = np.concatenate([part.x for part in parts])
    made = user_rows.assembled(parts, x, shakespeare.ALPHABET, name)
    return made._replace(overlap=shakespeare.LENGTH - 1)


KINDS = (
    Kind(("pixels", "label"), pictures, user_rows.numbers, leaf.CITATION),
    Kind(("image", "label"), pictures, user_rows.numbers, CIFAR, same_users=False),
    Kind(("snippets",), speech, finish_speech, leaf.CITATION, PUBLIC_DOMAIN),
)


# Stack Overflow


def sentence_kind(vocabulary: int, length: int) -> Kind:
    """The kind of sentences, to predict each word from those before it, and the end."""
    words = Words()

    def encode(tokens):
        sentences = [words.encode([*text.split(), leaf.END]) for text in texts_of(tokens)]
        return sentences, np.zeros(len(sentences), np.int32)

    def finish(parts, name):
        return next_word(words, parts, vocabulary, length, name)

    return Kind(("tokens",), encode, finish, *STACK_OVERFLOW)


def tag_kind(vocabulary: int, count: int) -> Kind:
    """The kind of sentences with the titles and tags of their questions, to predict the tag."""
    words, tags = Words(), Words()

    def encode(tokens, title, tag):
        texts = zip(texts_of(tokens), texts_of(title), strict=True)
        sentences = [words.encode(f"{text} {of}".split()) for text, of in texts]
        named = [tags.encode(filter(None, text.split("|"))) for text in texts_of(tag)]
        return list(zip(sentences, named, strict=True)), np.zeros(len(named), np.int32)

    def finish(parts, name):
        parts, classes = labeled(parts, tags, count)
        x = bags(words, parts, vocabulary)
        return user_rows.assembled(parts, x, classes, name)

    return Kind(("tokens", "title", "tags"), encode, finish, *STACK_OVERFLOW)


def labeled(
    parts: Sequence[UserRows], tags: Words, count: int
) -> tuple[list[UserRows], tuple[str, ...]]:
    """The sentences that have one of the most frequent tags; the most frequent one is the label."""
    training = [named for part in parts if not part.test for _, named in part.x]
    kept, names = tags.most_frequent(training, count), list(tags.numbers)
    rank = np.full(len(names), len(kept))
    rank[kept] = np.arange(len(kept))
    made = []
    for part in parts:
        y = np.array([rank[named].min(initial=len(kept)) for _, named in part.x], np.int32)
        x = [words for (words, _), label in zip(part.x, y, strict=True) if label < len(kept)]
        made += [part._replace(x=x, y=y[y < len(kept)])] if x else []
    if not made:
        raise Fault("no training sentence has a tag")
    return made, tuple(names[number] for number in kept)


def bags(words: Words, parts: Sequence[UserRows], vocabulary: int) -> LazyArray:
    """Bags of words: the share of each frequent word in each sentence, lazy [R, words]."""
    training = [sentence for part in parts if not part.test for sentence in part.x]
    kept = words.most_frequent(training, vocabulary)
    place = np.full(len(words.numbers), len(kept))
    place[kept] = np.arange(len(kept))
    sentences = [place[sentence] for part in parts for sentence in part.x]

    def rows_of(rows):
        x = np.zeros((len(rows), len(kept) + 1), np.float32)
        for made, row in zip(x, rows, strict=True):
            np.add.at(made, sentences[row], 1 / max(1, len(sentences[row])))
        return x[:, :-1]

    lengths = np.array([len(sentence) for sentence in sentences])
    digest = checksum({"words": np.concatenate(sentences), "lengths": lengths})
    return LazyArray(rows_of, (len(sentences), len(kept)), np.float32, digest)
