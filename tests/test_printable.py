"""Words from data: no terminal obeys them, and no spreadsheet computes them."""

import csv
import io

import numpy as np
import pytest

from fedjax_lab import errors
from fedjax_lab.analysis import formats, page, partition_tables
from fedjax_lab.commands import report
from fedjax_lab.running import interrupts
from fedjax_lab.running.progress import ProgressBar
from fedjax_lab.sweeping import sweep_status

HOSTILE = ["a\x1b[2Jb", "a\x07b", "a\nb", "a\rb", "a\x9b31mb", "a\u202eb", "a\tb", "a\x00b"]


@pytest.mark.parametrize("text", HOSTILE)
def test_unprintable_characters_are_escaped(text):
    shown = errors.printable(text)
    assert shown.isprintable() and shown[0] == "a" and shown[-1] == "b" and "\\" in shown
    assert errors.shown(text) == shown
    assert errors.shown("") == "''" and errors.shown(None) == "null" and errors.shown(1.5) == "1.5"
    assert errors.printable("café, 数字") == "café, 数字"


def closing(name):
    row = {"round": 1, "accuracy": {"mean": 50.0}, "domains": {name: 50.0}, name: 1.0}
    summary = {"seeds": [0], "last": {"per_seed": {"0": row}, "mean": row}}
    return summary | {"stopped": {"rule": name, "round": 1}}


@pytest.mark.parametrize("text", HOSTILE)
def test_no_output_of_a_command_has_them(text, capfd):
    errors.tell(errors.BadInput(f"domain {text}"))
    errors.warn(f"domain {text}")
    interrupts.tell(f"domain {text}", descriptor=2)
    bar = ProgressBar(3, 0, quiet=False)
    bar.say(text)
    bar.tell(text)
    print(report.closing_table(closing(text)))
    table = formats.Table(text, ["", text], [[text, text]])
    print(formats.terminal(table), formats.markdown(table), sep="\n")
    print(formats.latex(table))
    print(report._text([(text, [table])], [text], "latex", "tab:x"))
    print(sweep_status.aligned([[text], [text]]))
    out, err = capfd.readouterr()
    assert all(line.isprintable() for line in [*out.split("\n"), *err.split("\n")])
    assert all(line.isprintable() for line in page._table(table).split("\n"))


FORMULAS = ["=1+1", "+1+1", "-1+1", "@x", " =1+1", "=cmd|' /C calc'!A0", "＝1+1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_in_a_csv_file_is_no_formula(text):
    (line,) = csv.reader(io.StringIO(formats.csv_text([[text, 1]]), newline=""))
    assert line == [f"'{text}", "1"]


@pytest.mark.parametrize("text", ["\t=1+1", "\r@x", "\n=1", "\x00=1", *HOSTILE])
def test_a_csv_file_has_escapes_for_unprintable_characters(text):
    (line,) = csv.reader(io.StringIO(formats.csv_text([[text, 1]])))
    assert line == [errors.printable(text), "1"] and line[0][0] in "\\a"


@pytest.mark.parametrize("value", ["a=1", "-1", "+2.5", "-1e-5", "", "fedprox mu=0.1", -1.5, None])
def test_numbers_and_other_texts_are_written_as_they_are(value):
    (line,) = csv.reader(io.StringIO(formats.csv_text([[value, 1]])))
    assert line == ["" if value is None else str(value), "1"]


def test_names_of_classes_and_domains_are_no_formulas(tmp_path):
    counts = np.ones((1, 2), int)
    partition_tables.write(
        partition_tables.Held(counts, counts, 0, ["=1+1", "b"], ["@x", "-1"]), tmp_path / "a.csv"
    )
    header = (tmp_path / "a.csv").read_text().splitlines()[0]
    assert header == "client,examples,'=1+1,b,'@x,-1"
