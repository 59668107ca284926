"""Data sets in LEAF's JSON format: FEMNIST, CelebA, Sent140, Reddit, Synthetic and your own.

The kind of data is recognized by the content of the files. Shakespeare has its own data source.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import Side, source
from fedjax_lab.data.fetching import catalog
from fedjax_lab.data.formats import leaf_json, text_rows, user_rows
from fedjax_lab.data.formats.images import Look, Split, decoded, image_dataset
from fedjax_lab.data.formats.leaf_json import User
from fedjax_lab.data.formats.text_rows import Vocabulary
from fedjax_lab.data.formats.user_rows import UserRows
from fedjax_lab.data.formats.word_sequences import Words, next_word
from fedjax_lab.data.places import folder_of
from fedjax_lab.data.safe import Fault
from fedjax_lab.data.sources import image_folders
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.ranges import POSITIVE, NotNegative

VERSION = 1  # of the pixels of image files; increment it with every change that alters a pixel
END = "<EOS>"  # marks the end of a comment
TWEET, COMMENT = 25, 10  # numbers of words, as in LEAF's models
PICTURES = ("img_align_celeba", "raw/img_align_celeba", "data/raw/img_align_celeba")
REMEDY = (
    "run preprocess.sh in data/NAME of https://github.com/TalwalkarLab/leaf (`-s niid --sf 1.0 -k 0"
    " -t sample` splits the examples of each user) and name its output folder data/, with train/"
    " and test/ or all_data/, with --config.data.folder"
)
CITATION = catalog.PUBLISHED["shakespeare"].citation


class Kind(NamedTuple):
    """How examples of one kind are read."""

    encode: Callable[[User], tuple[Any, np.ndarray]]  # user -> (examples, labels)
    finish: Callable[[list[UserRows]], Dataset]  # all users' examples -> dataset


@decoded
@source(REMEDY)
def leaf(
    *,
    folder: str,
    images: str = "",
    size: Side = 84,
    tokenizer: str = "hash",
    vocabulary: Vocabulary = 10_000,
    length: NotNegative[int] = 0,
) -> Dataset:
    """The examples and users in LEAF's JSON files.

    The content of x determines how it is read. Numbers are vectors; 784 numbers are an image
    [28, 28, 1] of FEMNIST (62 characters, or 10 digits), on a white background as in LEAF. Names of
    image files (CelebA) become images [size, size, 3]. Texts, or rows that end with a text
    (Sent140), become token ids. Comments (Reddit), cut into sequences or not, become examples of
    next-word prediction: each word of a comment with the words before it, padded at the beginning.

    folder: LEAF's data/NAME/data, or its parent. The split in train/ and test/ is used, and val/ is
        left out; all_data/ alone has no test examples.
    images: the folder of the image files; empty: raw/img_align_celeba or img_align_celeba.
    size: the side of an image in pixels.
    tokenizer: of texts: hash or words, which need no files, or a tokenizer.json of transformers.
    vocabulary: the number of token ids; for Reddit, the most frequent training words.
    length: the number of words of a text that an example has, or the number of words before the
        word to predict; 0: LEAF's values, 25 and 10.
    """
    where = Path(folder).expanduser()
    kinds = {
        "comments": partial(comment_kind, vocabulary, length or COMMENT),
        "pictures": partial(picture_kind, where, images, size),
        "texts": partial(text_kind, tokenizer, vocabulary, length or TWEET),
        "numbers": partial(Kind, numbers, partial(user_rows.numbers, name="leaf")),
    }
    parts: list[UserRows] = []
    room, kind = user_rows.Room(), None
    for user, test in tqdm(users_of(where), "leaf", unit=" users", delay=2):
        if user.x:
            kind = kind or kinds[kind_of(user)]()
            with safe.reading(user.file, part=f"user {quoted(user.name, 60)}"):
                parts.append(UserRows(user.name, test, *kind.encode(user)))
                room.take(parts[-1].x)
    if kind is None or all(part.test for part in parts):
        raise Fault(f"{where} has no training examples")
    return kind.finish(parts)._replace(citation=CITATION)


def users_of(folder: Path) -> Iterator[tuple[User, bool]]:
    """All users with their training examples, then all with their test examples.

    Yields pairs of a user and whether its examples are test examples.
    """
    folder_of(folder)
    places = [place for place in (folder, folder / "data") if place.is_dir()]
    for place in places:
        names = [name for name in ("train", "test") if leaf_json.has_files(place / name)]
        if "train" in names:
            for name in names:
                yield from ((user, name == "test") for user in leaf_json.users_in(place / name))
            return
    for place in (folder / name for name in ("all_data", "data/all_data", "")):
        if leaf_json.has_files(place):
            yield from ((user, False) for user in leaf_json.users_in(place))
            return
    raise Fault(f"no train/*.json or all_data/*.json in {folder}")


def kind_of(user: User) -> str:
    """The name of the kind of the first example of the first user."""
    x, y = user.x[0], user.y[0]
    first = x[0] if isinstance(x, list) and x else None
    is_nested = isinstance(first, list) and isinstance(first[0] if first else None, str)
    if is_nested or isinstance(y, dict):
        return "comments"
    if isinstance(x, str) and isinstance(y, str):
        raise BadInput(
            f"{user.file} has characters as labels of texts; read it with"
            " --config.data.name=shakespeare"
        )
    if isinstance(x, str) and PurePath(x).suffix.lower() in image_folders.ENDINGS:
        return "pictures"
    return "texts" if isinstance(x, str) or isinstance(first, str) else "numbers"


def numbers(user: User) -> tuple[np.ndarray, np.ndarray]:
    """Vectors, or images of FEMNIST, and labels."""
    return user_rows.images_or_vectors(user.x), user_rows.labels(user.y)


# Names of image files


def picture_kind(folder: Path, images: str, size: int) -> Kind:
    """The kind of names of image files; the images are decoded on demand."""
    named = [Path(images).expanduser()] if images else []
    places = named or [folder / name for name in PICTURES]
    where = next((place for place in places if place.is_dir()), None)
    if where is None:
        looked = " or ".join(map(str, places))
        raise BadInput(f"no images in {looked}: name their folder with --config.data.images")

    def encode(user):
        if not all(isinstance(name, str) and _is_plain(name) for name in user.x):
            raise ValueError("some x is not the name of an image file without a folder")
        return [where / name for name in user.x], user_rows.labels(user.y)

    def finish(parts):
        splits: list[Split] = [[], []]
        for part in parts:
            splits[part.test] += zip(part.x, part.y.tolist(), strict=True)
        remedy = f"move all images to {where}, or name their folder with --config.data.images"
        with safe.remedied(remedy):
            made = image_dataset(f"leaf-v{VERSION}", splits[:1], splits[1:], Look(size), (), ())
        made.x.read = safe.remedied(remedy)(made.x.read)
        data = user_rows.assembled(parts, made.x, user_rows.numbered(parts), "leaf")
        return data._replace(files=made.files)

    return Kind(encode, finish)


def _is_plain(name):
    return PurePath(name).name == name and name.isprintable() and "\\" not in name


# Texts


def text_kind(tokenizer: str, vocabulary: int, length: int) -> Kind:
    """The kind of texts, or of rows whose last entry is the text, as in Sent140."""
    text_rows.make_tokenizer(tokenizer, vocabulary, [])  # checks its name
    POSITIVE.check("data.length", length)

    def encode(user):
        last = [row[-1] if isinstance(row, list) and row else row for row in user.x]
        if not all(isinstance(text, str) for text in last):
            raise ValueError("some x is neither a text nor a row that ends with one")
        return [leaf_json.plain(text) for text in last], user_rows.labels(user.y)

    def finish(parts):
        made = user_rows.assembled(parts, None, user_rows.numbered(parts), "leaf")
        texts = [text for part in parts for text in part.x]
        tokens = text_rows.Tokens("classify", tokenizer, vocabulary, length)
        return text_rows.text_dataset(made, texts, tokens)

    return Kind(encode, finish)


def comment_kind(vocabulary: int, length: int) -> Kind:
    """The kind of comments, for next-word prediction within each comment."""
    words = Words()
    POSITIVE.check("data.length", length)

    def encode(user):
        comments = [words.encode(_words(comment)) for comment in user.x]
        return comments, np.zeros(len(comments), np.int32)

    def finish(parts):
        return next_word(words, parts, vocabulary, length, "leaf")

    return Kind(encode, finish)


def _words(comment: Any) -> list[str]:
    """The words of a comment and its end mark, without marks of its beginning and padding.

    A comment is a text, or a list of words or of sequences of words.
    """
    if isinstance(comment, str):
        comment = comment.split()
    parts = comment if isinstance(comment, list) else [comment]
    words = [w for part in parts for w in (part if isinstance(part, list) else [part])]
    if not all(isinstance(word, str) for word in words):
        raise ValueError("some x is neither a text nor a list of words or of lists of words")
    words = [leaf_json.plain(word) for word in words if word not in ("<BOS>", "<PAD>")]
    return words if words[-1:] == [END] else [*words, END]
