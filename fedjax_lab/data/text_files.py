"""A user's own texts: a table with a column of texts, to be classified or to predict words of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import text_rows, text_tables
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, check_choice

TASKS = ("classify", "next_word")
VOCABULARY, LENGTH = 10_000, 64
DIGITS = 1000  # of a number; Python refuses to read ones of some thousands


class Text(NamedTuple):
    """A row of a table."""

    text: str
    label: str  # empty where words are predicted
    user: str  # empty where users are not known


class Tokens(NamedTuple):
    """How texts become examples: the settings that all sources of texts share."""

    task: str = TASKS[0]
    tokenizer: str = text_rows.BUILT_IN[0]
    vocabulary: int = VOCABULARY
    length: int = LENGTH


def text_files(
    *,
    path: str,
    test_path: str = "",
    text: str = "text",
    label: str = "label",
    client: str = "",
    header: bool = True,
    encoding: str = "utf-8",
    task: str = TASKS[0],
    tokenizer: str = text_rows.BUILT_IN[0],
    vocabulary: int = VOCABULARY,
    length: int = LENGTH,
) -> Dataset:
    """x [R, length] int16 or int32, token ids: 0 padding, which comes first, 1 an unknown word.

    path: a file .csv, .tsv, .jsonl, .ndjson, .json (an object in each line) or .parquet, or a
      folder with one named train and maybe one named test.
    test_path: a file with texts for tests; empty: the file test of the folder, if it has one.
    text: the column with the text; several, separated by commas, are joined by spaces. A column is
      named, or numbered from 1.
    label: the column with the label. Classes are in the order of their numbers or names.
    client: the column with the user; empty: users are not known.
    header: whether the first line of a .csv or .tsv has the names of its columns.
    encoding: of a .csv or .tsv, for example latin-1.
    task: classify, or next_word: each word of a text is an example, with the words before it as x
      and itself as the label. A class is then a word, and `label` is not read.
    tokenizer: hash, in which words share buckets; words, the most frequent ones of the training
      texts, as next_word needs; or a tokenizer.json of transformers, or its folder.
    vocabulary: the number of token ids, the two special ones among them; a tokenizer.json has its
      own.
    length: tokens of an example; longer texts are cut.

    Without texts for tests no example is one. Raises BadInput for what is missing or wrong.
    """
    tokens = Tokens(task, tokenizer, vocabulary, length)
    check(tokens)
    if task == "classify" and not label:
        raise BadInput(
            "config.data.label is empty: name the column of labels, or predict words with"
            " --config.data.task=next_word"
        )
    train, test = _files(path, test_path)
    columns = Columns(text, "" if task == "next_word" else label, client, header, encoding)
    texts = columns.read(train)
    others = columns.read(test) if test else []
    return dataset_of(texts, others, tokens, str(train))


class Columns(NamedTuple):
    """What a table has where."""

    text: str
    label: str
    client: str
    header: bool = True
    encoding: str = "utf-8"

    def read(self, file: Path) -> list[Text]:
        """The texts of a file."""
        parts = [name.strip() for name in self.text.split(",")]
        others = [name for name in (self.label, self.client) if name]
        rows = text_tables.read(file, [*parts, *others], self.header, self.encoding)
        made = []
        for number, row in enumerate(rows, 1):
            rest = iter(row[len(parts) :])
            label, user = (next(rest) if name else "" for name in (self.label, self.client))
            for column, cell, what in ((self.label, label, "label"), (self.client, user, "user")):
                if column and not cell:
                    raise BadInput(f"{file}: text {number} has an empty {what}")
            made.append(Text(" ".join(row[: len(parts)]), label, user))
        return made


def check(tokens: Tokens) -> None:
    """BadInput for settings that do not fit together, before any file is read."""
    check_choice("data.task", tokens.task, TASKS)
    if tokens.task == "next_word" and tokens.tokenizer == "hash":
        raise BadInput(
            "config.data.task=next_word predicts words, but config.data.tokenizer=hash knows only"
            " buckets of them; take --config.data.tokenizer=words"
        )


def dataset_of(
    train: Sequence[Text],
    test: Sequence[Text],
    tokens: Tokens,
    where: str,
    classes: tuple[str, ...] = (),
) -> Dataset:
    """The Dataset of texts to train on and texts for tests.

    classes: the labels in their order; empty: those that occur. where: what messages name.
    """
    texts = [*train, *test]
    made = text_rows.make_tokenizer(
        tokens.tokenizer, tokens.vocabulary, (each.text for each in train)
    )
    ids = [made.encode(each.text) for each in texts]
    predict = tokens.task == "next_word"
    classes = made.words if predict else classes or in_order({each.label for each in texts})
    number = {label: number for number, label in enumerate(classes)}
    labels = np.array([0 if predict else number[each.label] for each in texts], np.int32)
    x, y, row = text_rows.examples(ids, labels, predict, tokens.length, made.size)
    if not (row < len(train)).any():
        raise BadInput(f"{where} has no texts to train on")
    return Dataset(
        x=x,
        y=y,
        domain=np.zeros(len(x), np.int32),
        test=row >= len(train),
        classes=classes,
        domains=("texts",),
        origin=row.astype(np.int32) if predict else None,
        **_users([each.user for each in texts], row),
    )


def in_order(labels: set[str]) -> tuple[str, ...]:
    """Labels by their numbers where all are numbers, or else by name."""
    numbers = all(len(label) < DIGITS and label.removeprefix("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def _users(names: list[str], row: np.ndarray) -> dict[str, Any]:
    """The fields of a Dataset that say whose each example is."""
    if not any(names):
        return {}
    users, of_text = np.unique(names, return_inverse=True)
    return {"client": of_text.astype(np.int32)[row], "users": tuple(users.tolist())}


def _files(path, test_path):
    """The files to train on and, or None, for tests."""
    if not path:
        raise BadInput("data.path is empty: name a file of texts with --config.data.path")
    where = Path(path).expanduser()
    train, test = (where, None) if not where.is_dir() else (_in(where, "train"), _in(where, "test"))
    if train is None:
        ends = ", ".join(text_tables.ENDINGS)
        raise BadInput(f"{where} has no file train ({ends}); name a file by --config.data.path")
    return train, Path(test_path).expanduser() if test_path else test


def _in(folder, name):
    """The table of that name in a folder; None where there is none."""
    files = (folder / f"{name}{ending}" for ending in text_tables.ENDINGS)
    return next((file for file in files if file.exists()), None)
