"""Published instructions with responses, read from the published files."""

from pathlib import Path
from typing import Annotated, NamedTuple

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.fetching import catalog
from fedjax_lab.data.formats.conversations import Length, Template, TrainOn
from fedjax_lab.data.places import fetched, fetched_by_hand, locate
from fedjax_lab.data.sources.instructions import instructions
from fedjax_lab.ranges import NotNegative, OneOf


class Release(NamedTuple):
    """The published files of a set."""

    train: str
    test: str = ""
    fields: str = ""  # if they are not those that `instructions` expects


SETS = {
    "alpaca": Release("alpaca_data.json"),
    "code_alpaca": Release("code_alpaca_20k.json"),
    "dolly": Release("databricks-dolly-15k.jsonl"),
    "fingpt_sentiment": Release("train-00000-of-00001-dabab110260ac909.parquet"),
    "gsm8k": Release("train.jsonl", "test.jsonl"),
    # All instructions are the same, and `input` has the question.
    "medical_flashcards": Release(
        "medical_meadow_wikidoc_medical_flashcards.json", fields="input,output"
    ),
}


@source()
def instruction_set(
    *,
    dataset: Annotated[str, OneOf(SETS)] = "alpaca",
    folder: str = "",
    tokenizer: str = "bytes",
    template: Template = "chat",
    train_on: TrainOn = "response",
    join_input: bool = False,
    length: Length = 512,
    vocabulary: NotNegative[int] = 0,
    packing: bool = False,
) -> Dataset:
    """Instructions dataset: x [R, T] token ids, y [R, T] the token after each one, or -1.

    dataset: alpaca, code_alpaca, dolly (with categories), fingpt_sentiment, gsm8k (with test
      records) or medical_flashcards.
    folder: the folder with the files; empty: ~/.cache/fedjax_lab and data/ are searched.
    tokenizer, template, train_on, join_input, length, vocabulary, packing: as in
      `instructions`.
    """
    release = SETS[dataset]
    with safe.remedied(_remedy(dataset)):
        train = find(dataset, folder)
        return instructions(
            path=str(train),
            test_path=str(train.with_name(release.test)) if release.test else "",
            fields=release.fields,
            tokenizer=tokenizer,
            template=template,
            train_on=train_on,
            join_input=join_input,
            length=length,
            vocabulary=vocabulary,
            packing=packing,
        )


def find(dataset: str, folder: str) -> Path:
    """The path of the training file of a set."""
    name = SETS[dataset].train
    return locate(folder, (name, f"{dataset}/{name}") if folder else (f"{dataset}/{name}",))


def _remedy(dataset):
    """What to do if a file is missing, for messages."""
    if catalog.PUBLISHED[dataset].by_hand:
        return fetched_by_hand(dataset)
    return fetched(dataset, "name the folder of the files with --config.data.folder")
