"""Texts of your own in a table, for classification or next-word prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import leaks
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import text_rows, text_tables
from fedjax_lab.data.formats.columns import as_name, numbered, positions
from fedjax_lab.data.formats.text_rows import TextTask, Vocabulary
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import Positive, checked

DIGITS = 1000  # largest length of a number; Python refuses to parse several thousand digits


class Text(NamedTuple):
    """A row of a table."""

    text: str
    label: str  # empty for next-word prediction
    user: str  # empty if unknown
    group: str = ""


@checked("data")
def text_files(
    *,
    path: str,
    test_path: str = "",
    text: str = "text",
    label: str = "label",
    client: str = "",
    group: str = "",
    header: bool = True,
    encoding: str = "utf-8",
    task: TextTask = "classify",
    tokenizer: str = "hash",
    vocabulary: Vocabulary = 10_000,
    length: Positive[int] = 64,
) -> Dataset:
    """x [R, length] int16 or int32, token ids: 0 is padding, which comes first, 1 unknown words.

    path: a file .csv, .tsv, .jsonl, .ndjson, .json (one object per line) or .parquet, or a folder
      with a file named train and optionally one named test.
    test_path: a file with test texts; empty: the file test in the folder, if there is one.
    text: the column with the text; several, separated by commas, are joined by spaces. Columns are
      given by name, or by number from 1.
    label: the column with the label. Classes are sorted, by number or else by name.
    client: the column with the user; empty: users are not known.
    group: the column with groups of texts that config.data.test never divides; empty: none.
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
    tokens = text_rows.checked(task, tokenizer, vocabulary, length)
    if task == "classify" and not label:
        raise BadInput(
            "config.data.label is empty: name the column of labels, or predict words with"
            " --config.data.task=next_word"
        )
    train, test = text_tables.splits(path, test_path, text_tables.ENDINGS)
    label = "" if task == "next_word" else label
    columns = Columns(text, label, client, header, encoding, group)
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
    group: str = ""

    def read(self, file: Path) -> list[Text]:
        """The texts of a file."""
        parts = [name.strip() for name in self.text.split(",")]
        named = {"label": self.label, "user": self.client, "group": self.group}
        others = [name for name in named.values() if name]
        rows = text_tables.read(file, [*parts, *others], self.header, self.encoding)
        made = []
        for number, row in enumerate(rows, 1):
            rest = map(as_name, row[len(parts) :])
            names = {what: next(rest) if column else "" for what, column in named.items()}
            for what, column in named.items():
                if column and not names[what]:
                    raise BadInput(f"{file}: text {number} has an empty {what}")
            made.append(Text(" ".join(row[: len(parts)]), *names.values()))
        return made


def dataset_of(
    train: Sequence[Text],
    test: Sequence[Text],
    tokens: text_rows.Tokens,
    where: str,
    classes: tuple[str, ...] = (),
) -> Dataset:
    """The Dataset of training texts and test texts.

    classes: the labels in their order; empty: the labels that occur.
    where: the data set, for messages.
    """
    texts = [*train, *test]
    classes = classes or in_order({each.label for each in texts})
    dataset = Dataset(
        x=None,
        y=positions([each.label for each in texts], classes),
        domain=np.zeros(len(texts), np.int32),
        test=np.arange(len(texts)) >= len(train),
        classes=classes,
        domains=("texts",),
    )
    if any(each.user for each in texts):
        client, users = numbered([each.user for each in texts], where)
        dataset = dataset._replace(client=client, users=users)
    if any(each.group for each in texts):
        dataset = dataset._replace(origin=numbered([each.group for each in texts], where)[0])
    dataset = text_rows.text_dataset(dataset, [each.text for each in texts], tokens)
    if dataset.test.all():
        raise BadInput(f"{where} has no training texts")
    leaks.report(dataset)
    return dataset


def in_order(labels: set[str]) -> tuple[str, ...]:
    """The labels in numerical order if all are numbers, else in alphabetical order."""
    numbers = all(len(label) < DIGITS and label.removeprefix("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))
