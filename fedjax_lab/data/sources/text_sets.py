"""Published data sets of texts, AG News and Sentiment140, read from the published files."""

from pathlib import Path

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import text_rows
from fedjax_lab.data.formats.text_rows import TextTask, Vocabulary
from fedjax_lab.data.places import fetched, locate
from fedjax_lab.data.sources.text_files import Columns, Text, dataset_of
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.ranges import Positive

AG_NEWS = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}
AG_NEWS_FILES = ("train.csv", "test.csv")
SENTIMENT140 = {"0": "negative", "4": "positive"}
SENTIMENT140_FILES = (
    "training.1600000.processed.noemoticon.csv",
    "testdata.manual.2009.06.14.csv",
)


@source(
    fetched(
        "ag_news",
        "fetch train.csv and test.csv from https://github.com/mhjabreel/CharCnn_Keras (folder"
        " data/ag_news_csv) and name their folder with --config.data.folder",
    )
)
def ag_news(
    *,
    folder: str = "",
    tokenizer: str = "hash",
    vocabulary: Vocabulary = 10_000,
    length: Positive[int] = 64,
) -> Dataset:
    """AG News (Zhang et al. 2015, arXiv 1509.01626): 120,000 + 7,600 titles with descriptions.

    The published train.csv and test.csv, without headers, have four classes.

    folder: the folder with the files; empty: ~/.cache/fedjax_lab and data/ are searched.
    tokenizer, vocabulary, length: as in `text_files`.
    """
    tokens = text_rows.checked("classify", tokenizer, vocabulary, length)
    files = [find("ag_news", file, folder) for file in AG_NEWS_FILES]
    columns = Columns("2,3", "1", "", header=False)
    train, test = (_labeled(file, columns.read(file), AG_NEWS) for file in files)
    return dataset_of(train, test, tokens, str(files[0]), tuple(AG_NEWS.values()))


@source(
    fetched(
        "sentiment140",
        "unpack trainingandtestdata.zip of http://help.sentiment140.com/for-students and name the"
        " folder of its files with --config.data.folder",
    )
)
def sentiment140(
    *,
    folder: str = "",
    task: TextTask = "classify",
    tokenizer: str = "hash",
    vocabulary: Vocabulary = 10_000,
    length: Positive[int] = 32,
) -> Dataset:
    """Sentiment140 (Go et al. 2009): 1,600,000 tweets, negative or positive, by 659,775 users.

    The two published files have six columns without headers, in latin-1. The 359 test tweets are
    from other users; neutral test tweets are left out, because no training tweet is neutral.

    folder: the folder with the files; empty: ~/.cache/fedjax_lab and data/ are searched.
    task, tokenizer, vocabulary, length: as in `text_files`.
    """
    tokens = text_rows.checked(task, tokenizer, vocabulary, length)
    files = [find("sentiment140", file, folder) for file in SENTIMENT140_FILES]
    columns = Columns("6", "1", "5", header=False, encoding="latin-1")
    train, test = (
        _labeled(file, [text for text in columns.read(file) if text.label != "2"], SENTIMENT140)
        for file in files
    )
    return dataset_of(train, test, tokens, str(files[0]), tuple(SENTIMENT140.values()))


def find(name: str, file: str, folder: str) -> Path:
    """The path of a file of the data set `name`."""
    return locate(folder, (file, f"{name}/{file}") if folder else (f"{name}/{file}",))


def _labeled(file: Path, texts: list[Text], classes: dict[str, str]) -> list[Text]:
    """The texts with class names as labels."""
    for text in texts:
        if text.label not in classes:
            raise BadInput(
                f"{file}: label {quoted(text.label)} is not one of {', '.join(classes)}; this is"
                " not the published file"
            )
    return [text._replace(label=classes[text.label]) for text in texts]
