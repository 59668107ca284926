"""Tests tables of texts: file formats, columns by name and by number, users and next words."""

import json

import numpy as np
import optional
import pytest
from inputs import complaint
from token_rows import examples_of_texts

from fedjax_lab.data.sources import text_sets
from fedjax_lab.data.sources.text_files import text_files

ROWS = [("Good, really", "pos", "ann"), ('say "no"\nnow', "neg", "bob"), ("good", "pos", "ann")]
NAMES = ("text", "label", "user")


def write_rows(file, rows=ROWS, names=NAMES, encoding="utf-8"):
    """Writes a table in the format of the file's suffix; without names it has no header."""
    columns = dict(zip(names, zip(*rows, strict=True), strict=False))
    if file.suffix == ".parquet":
        table = optional.module("pyarrow").Table.from_pydict(columns)
        optional.module("pyarrow.parquet").write_table(table, file)
    elif file.suffix == ".jsonl":
        objects = (dict(zip(names, row, strict=True)) for row in rows)
        file.write_text("".join(f"{json.dumps(row)}\n" for row in objects))
    else:
        mark = "\t" if file.suffix == ".tsv" else ","
        lines = [names, *rows] if names else rows
        quoted = (mark.join('"' + c.replace('"', '""') + '"' for c in row) for row in lines)
        file.write_text("".join(f"{line}\n" for line in quoted), encoding=encoding)
    return str(file)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_each_format_gives_the_same_examples(tmp_path, ending):
    path = write_rows(tmp_path / f"some.{ending}")
    made = text_files(path=path, client="user", tokenizer="words", length=4)
    assert made.classes == ("neg", "pos") and made.y.tolist() == [1, 0, 1]
    assert made.users == ("ann", "bob") and made.client.tolist() == [0, 1, 0]
    good = made.x[2, 3]
    assert made.x[2].tolist() == [0, 0, 0, good] and made.x[0, 1] == good
    assert np.count_nonzero(made.x, 1).tolist() == [3, 4, 1] and made.x.dtype == np.int16
    assert not made.test.any()


def test_columns_without_names_are_numbered_from_one(tmp_path):
    path = write_rows(tmp_path / "train.csv", names=())
    made = text_files(path=path, header=False, text="1,3", label="2", length=4)
    assert np.count_nonzero(made.x, 1).tolist() == [4, 4, 2] and made.users == ()
    named = text_files(path=write_rows(tmp_path / "b.csv"), text="text,3", label="2", length=4)
    assert np.array_equal(named.x, made.x)


def test_groups_of_texts_are_numbered(tmp_path):
    path = write_rows(tmp_path / "some.csv")
    made = text_files(path=path, group="user")
    assert made.origin.tolist() == [0, 1, 0] and made.client is None
    words = text_files(path=path, group="user", task="next_word", tokenizer="words")
    assert words.origin.tolist() == [0] * 3 + [1] * 5 + [0]
    blank = write_rows(tmp_path / "more.csv", names=("text ", " label", "user"))
    assert text_files(path=blank, client="user").users == ("ann", "bob")


MARKED = {  # {file that begins with a byte order mark: (content, settings)}
    "a.csv": ("text,label\ngood,1\n", {}),
    "b.csv": ("1,good\n", {"header": False, "text": "2", "label": "1"}),
    "c.jsonl": ('{"text": "good", "label": 1}\n', {}),
}


@pytest.mark.parametrize("name", MARKED)
def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path, name):
    content, settings = MARKED[name]
    (tmp_path / name).write_text(f"\ufeff{content}", encoding="utf-8")
    made = text_files(path=str(tmp_path / name), length=2, **settings)
    assert made.classes == ("1",) and np.count_nonzero(made.x) == 1


def test_an_unpaired_surrogate_becomes_a_valid_word_and_label(tmp_path):
    (tmp_path / "a.jsonl").write_text(r'{"text": "so \ud83d", "label": "\ud83d"}')
    made = text_files(path=str(tmp_path / "a.jsonl"), length=3)
    assert made.classes == ("\ufffd",) and np.count_nonzero(made.x) == 2
    assert examples_of_texts(["so \ud83d"], "hash", 50, 2).all()


def test_numeric_labels_are_sorted_by_value_even_with_thousands_of_digits(tmp_path):
    path = write_rows(tmp_path / "a.csv", [("a", "9" * 5000, "ann"), ("b", "10", "ann")])
    assert [len(label) for label in text_files(path=path).classes] == [2, 5000]
    rows = [("a", 10), ("b", 9), ("c", -1)]
    made = text_files(path=write_rows(tmp_path / "t.parquet", rows, NAMES[:2]))
    assert made.classes == ("-1", "9", "10") and made.y.tolist() == [2, 1, 0]


def test_a_folder_has_a_training_file_and_a_test_file(tmp_path):
    write_rows(tmp_path / "train.csv")
    write_rows(tmp_path / "test.jsonl", [("unheard good", "odd", "eve")])
    made = text_files(path=str(tmp_path), client="user", tokenizer="words", length=3)
    assert made.test.tolist() == [False] * 3 + [True] and made.classes == ("neg", "odd", "pos")
    assert made.users == ("ann", "bob", "eve")
    assert made.x[3].tolist() == [0, 1, made.x[2, 2]]  # only words of training texts have ids
    files = {"path": str(tmp_path / "train.csv"), "test_path": str(tmp_path / "test.jsonl")}
    assert text_files(**files, length=3).test.tolist() == made.test.tolist()


def test_each_next_word_is_an_example_of_its_user(tmp_path):
    path = write_rows(tmp_path / "train.csv")
    settings = {"client": "user", "task": "next_word", "vocabulary": 6, "length": 2}
    made = text_files(path=path, label="", tokenizer="words", **settings)
    assert made.classes[:2] == ("<padding>", "<unknown>") and len(made.classes) == 6
    assert made.classes[made.y[0]] == "good" and made.x[1].tolist() == [0, made.y[0]]
    assert made.client.tolist() == [0] * 3 + [1] * 5 + [0]
    assert made.origin.tolist() == [0] * 3 + [1] * 5 + [2]  # a test share has whole texts
    message = complaint(text_files, path=path, **settings)
    assert "use --config.data.tokenizer=words" in message


WRONG = [  # (settings, words of the error)
    ({"text": "txet"}, "has no column 'txet'; did you mean 'text'?"),
    ({"header": False, "text": "1", "label": "4"}, "3 columns without names, but no column '4'"),
    ({"encoding": "uft-8"}, "cannot be read (unknown encoding: uft-8)"),
    ({"task": "clasify"}, "config.data.task cannot be 'clasify'; did you mean 'classify'?"),
    ({"vocabulary": 2}, "config.data.vocabulary must be from 3 to 16,777,216, got 2"),
    ({"length": 0}, "config.data.length must be above 0, got 0"),
    ({"label": ""}, "config.data.label is empty: name the column of labels"),
    ({"path": "."}, "has no file train (.csv, .tsv"),
]
FILES = [  # (name, content, words of the error)
    ("other.txt", "", "a table of texts must end in .csv, .tsv"),
    ("short.csv", "text,label\na,b\nc\n", "short.csv: row 3 has 1 columns, not 2"),
    ("header.csv", "text,label\n", "header.csv has no training texts"),
    ("unsaid.csv", "text,label,user\na,1,ann\nb,0,\n", "unsaid.csv: text 2 has an empty user"),
    ("list.json", '[{"text": "a", "label": 1}]', "cannot be read (line 1 is not a JSON object"),
    ("null.jsonl", '{"text": null, "label": 1}', "'text' of row 1 is not text but None"),
    ("lacks.jsonl", '{"texts": "a", "label": 1}', "row 1 has no 'text'; did you mean 'texts'?"),
]


def test_invalid_files_and_settings_are_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv", [("né", "a", "u")])
    for settings, said in WRONG:
        assert said in complaint(text_files, **{"path": "rows.csv", **settings})
    for name, content, said in FILES:
        (tmp_path / name).write_text(content)
        client = "user" if "user" in content else ""
        assert said in complaint(text_files, path=name, client=client)


def test_ag_news_is_read_in_its_published_format(tmp_path):
    rows = [("3", "Wall St. Bears", "Claw back"), ("1", "Peace", "Talks")]
    for name in text_sets.AG_NEWS_FILES:
        write_rows(tmp_path / name, rows, ())
    made = text_sets.ag_news(folder=str(tmp_path), length=8)
    assert made.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert made.y.tolist() == [2, 0, 2, 0] and made.test.tolist() == [False, False, True, True]
    assert np.count_nonzero(made.x, 1).tolist() == [6, 2, 6, 2]
    write_rows(tmp_path / "test.csv", [("5", "a", "b")], ())
    message = complaint(text_sets.ag_news, folder=str(tmp_path))
    assert "label '5' is not one of 1, 2, 3, 4" in message


def test_sentiment140_is_read_in_its_published_format(tmp_path):
    rows = [
        ("4", "1", "Mon", "NO_QUERY", "ann", "schön"),
        ("0", "2", "Mon", "NO_QUERY", "bob", "sad"),
        ("2", "3", "Mon", "NO_QUERY", "eve", "neutral"),
    ]
    for name in text_sets.SENTIMENT140_FILES:
        write_rows(tmp_path / name, rows, (), "latin-1")
    made = text_sets.sentiment140(folder=str(tmp_path), tokenizer="words")
    assert made.classes == ("negative", "positive") and made.users == ("ann", "bob")
    assert made.y.tolist() == [1, 0, 1, 0] and made.client.tolist() == [0, 1, 0, 1]
    words = text_sets.sentiment140(folder=str(tmp_path), task="next_word", tokenizer="words")
    assert "schön" in words.classes
