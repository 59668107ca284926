"""Texts of your own in a table, for classification or next-word prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import leaks
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import text_rows, text_tables
from fedjax_lab.errors import BadInput, check_choice

TASKS = ("classify", "next_word")
VOCABULARY, LENGTH = 10_000, 64
DIGITS = 1000  # largest length of a number; Python refuses to parse several thousand digits


class Text(NamedTuple):
    """A row of a table."""

    text: str
    label: str  # empty for next-word prediction
    user: str  # empty if unknown


class Tokens(NamedTuple):
    """The settings of the conversion of texts to examples, common to all sources of texts."""

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
    """x [R, length] int16 or int32, token ids: 0 is padding, which comes first, 1 unknown words.

    path: a file .csv, .tsv, .jsonl, .ndjson, .json (one object per line) or .parquet, or a folder
      with a file named train and optionally one named test.
    test_path: a file with test texts; empty: the file test in the folder, if there is one.
    text: the column with the text; several, separated by commas, are joined by spaces. Columns are
      given by name, or by number from 1.
    label: the column with the label. Classes are sorted, by number or else by name.
    client: the column with the user; empty: users are not known.
    header: whether the first line of a .csv or .tsv file has the names of its columns.
    encoding: the encoding of a .csv or .tsv file, for example latin-1.
    task: classify, or next_word: each word of a text is an example, with the words before it as x
      and the word itself as the label. The classes are then the words, and `label` is not used.
    tokenizer: hash (words in shared buckets); words (the most frequent words of the training texts,
      for next_word); or a tokenizer.json of transformers, or the folder that has it.
    vocabulary: the number of token ids, including the two special ones; a tokenizer.json has its
      own.
    length: the number of tokens of an example; longer texts are truncated.

    Without test texts, the dataset has no test examples. Raises BadInput if anything is missing or
    invalid.
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
    """The columns of a table, and the format of its file."""

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
            label, user = (next(rest).strip() if name else "" for name in (self.label, self.client))
            for column, cell, what in ((self.label, label, "label"), (self.client, user, "user")):
                if column and not cell:
                    raise BadInput(f"{file}: text {number} has an empty {what}")
            made.append(Text(" ".join(row[: len(parts)]), label, user))
        return made


def check(tokens: Tokens) -> None:
    """Raises BadInput for settings that do not fit together; called before any file is read."""
    check_choice("data.task", tokens.task, TASKS)
    if tokens.task == "next_word" and tokens.tokenizer == "hash":
        raise BadInput(
            "config.data.task=next_word cannot predict words with config.data.tokenizer=hash, which"
            " maps several words to one token; use --config.data.tokenizer=words"
        )


def dataset_of(
    train: Sequence[Text],
    test: Sequence[Text],
    tokens: Tokens,
    where: str,
    classes: tuple[str, ...] = (),
) -> Dataset:
    """The Dataset of training texts and test texts.

    classes: the labels in their order; empty: the labels that occur.
    where: the data set, for messages.
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
        raise BadInput(f"{where} has no training texts")
    dataset = Dataset(
        x=x,
        y=y,
        domain=np.zeros(len(x), np.int32),
        test=row >= len(train),
        classes=classes,
        domains=("texts",),
        origin=row.astype(np.int32) if predict else None,
        **_users([each.user for each in texts], row),
    )
    leaks.report(dataset)
    return dataset


def in_order(labels: set[str]) -> tuple[str, ...]:
    """The labels in numerical order if all are numbers, else in alphabetical order."""
    numbers = all(len(label) < DIGITS and label.removeprefix("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def _users(names: list[str], row: np.ndarray) -> dict[str, Any]:
    """The fields of a Dataset that hold the users."""
    if not any(names):
        return {}
    users, of_text = np.unique(names, return_inverse=True)
    return {"client": of_text.astype(np.int32)[row], "users": tuple(users.tolist())}


def _files(path, test_path):
    """The files with the training texts and with the test texts (None if there are none)."""
    if not path:
        raise BadInput("data.path is empty: name a file of texts with --config.data.path")
    where = Path(path).expanduser()
    train, test = (where, None) if not where.is_dir() else (_in(where, "train"), _in(where, "test"))
    if train is None:
        ends = ", ".join(text_tables.ENDINGS)
        raise BadInput(f"{where} has no file train ({ends}); name a file with --config.data.path")
    return train, Path(test_path).expanduser() if test_path else test


def _in(folder, name):
    """The table of that name in a folder; None if there is none."""
    files = (folder / f"{name}{ending}" for ending in text_tables.ENDINGS)
    return next((file for file in files if file.exists()), None)
