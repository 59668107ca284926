"""Accuracy against megabytes: the table and the figure."""

import measure
from inputs import complaint
from records import Record

TABLE = measure.load("compression")


def record(name, seed, first, last):
    """The record of a cell whose accuracies are `first`, and `last` from round 20 on."""
    values = {f"megabytes/{r}": r / 10 for r in TABLE.ROUNDS}
    values |= {f"global/{r}": last if r >= 20 else first for r in TABLE.ROUNDS}
    return Record(name, seed, "", "abc", "0.2.0", "1 x cpu", values)


def test_the_table_and_the_figure_of_accuracy_by_megabytes():
    records = [record("none", 0, 70.0, 79.0), record("none", 1, 72.0, 83.0)]
    records.append(record("sign, with feedback", 0, 60.0, 75.0))
    (table,) = TABLE.tables(records)
    rows = {row[0]: row[1:] for row in table.cells}
    assert rows["none"] == ["30", "81.0 (2.0)", "2"]
    assert rows["sign, with feedback"] == ["30", "75.0", "never"]
    assert rows["random_k, 1 %"] == ["-", "-", "-"]
    (axes,) = TABLE.picture(records).axes
    low, high = axes.get_xlim()
    assert axes.get_xscale() == "log" and low < 1 and high > 30
    assert [text.get_text() for text in axes.texts] == ["none", "sign"]


def test_a_table_without_a_figure_says_so():
    attacks = measure.load("attacks")
    assert "attacks has no figure" in complaint(measure.draw, "attacks", attacks, [], None)
