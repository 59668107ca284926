"""The source `table`: columns of numbers and categories, missing values, clients and targets."""

import numpy as np
import optional
import pytest
from inputs import complaint

from fedjax_lab.data.sources.table import table
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve

pyarrow = optional.module("pyarrow")
parquet = optional.module("pyarrow.parquet")

CSV = """age,ward,stay,hospital,smokes,sex,split
10,a,1.5,north,true,f,train
20,b,2.5,north,false,m,train
,a,3.5,south,true,,train
60,c,4.5,south,false,f,test
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "stays.csv").write_text(CSV)
    return str(tmp_path / "stays.csv")


def test_numbers_stay_and_categories_are_those_of_the_training_rows(path):
    made = table(path=path, target="stay", client="hospital", split="split")
    # age, whether it is missing, ward a, ward b (c is new in the test row), smokes, sex
    expected = [
        [10, 0, 1, 0, 0, 1, 1, 0],
        [20, 0, 0, 1, 1, 0, 0, 1],
        [15, 1, 1, 0, 0, 1, 0, 0],
        [60, 0, 0, 0, 1, 0, 1, 0],
    ]
    np.testing.assert_array_equal(made.x, np.float32(expected))
    np.testing.assert_array_equal(made.y, np.float32([1.5, 2.5, 3.5, 4.5]))
    assert made.users == ("north", "south") and made.client.tolist() == [0, 0, 1, 1]
    assert made.test.tolist() == [False] * 3 + [True] and made.classes == ()
    (line,) = made.remarks
    assert "4 rows; 1 columns of numbers, ward as 2 categories" in line
    assert "1 in age, 1 in sex" in line


def test_targets_are_classes_numbers_or_several_columns(path):
    of_text = table(path=path, target="hospital", drop=("split",), test=0.25)
    assert of_text.classes == ("north", "south") and of_text.y.tolist() == [0, 0, 1, 1]
    assert of_text.remarks[1] == "hospital: the classes are north, south, numbered from 0"
    assert of_text.test.sum() == 1 and of_text.test_is_drawn
    flags = table(path=path, target="smokes", categories=("stay",), split="split")
    assert flags.classes == ("False", "True") and flags.y.tolist() == [1, 0, 1, 0]
    assert flags.x.shape[1] == 2 + 2 + 3 + 2 + 2  # age, ward, stay, hospital, sex
    several = table(path=path, target="stay, smokes", split="split")
    np.testing.assert_array_equal(several.y, [[1.5, 1], [2.5, 0], [3.5, 1], [4.5, 0]])


def test_parquet_and_tsv_give_the_table_of_a_csv_file(path, tmp_path):
    expected = table(path=path, target="stay", split="split")
    (tmp_path / "stays.tsv").write_text(CSV.replace(",", "\t"))
    columns = {
        "age": [10, 20, None, 60],
        "ward": list("abac"),
        "stay": [1.5, 2.5, 3.5, 4.5],
        "hospital": ["north", "north", "south", "south"],
        "smokes": [True, False, True, False],
        "sex": ["f", "m", None, "f"],
        "split": ["train"] * 3 + ["test"],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "stays.parquet")
    for name in ("stays.tsv", "stays.parquet"):
        made = table(path=str(tmp_path / name), target="stay", split="split")
        np.testing.assert_array_equal(made.x, expected.x)
        np.testing.assert_array_equal(made.y, expected.y)


def test_a_run_standardizes_by_training_rows_and_says_what_was_done(path):
    sections = {
        "data": {"name": "table", "path": path, "target": "stay", "split": "split"},
        "task": {"name": "regression"},
        "partition": {"name": "iid", "num_clients": 2},
    }
    made = experiment.build(resolve(sections), [0])
    (federation,) = made.simulation.federations
    x = (np.asarray(federation.x) - federation.center) * federation.scale
    np.testing.assert_allclose(x[:3].mean(0), 0, atol=1e-6)
    assert "stays.csv: 4 rows" in made.remarks[0] and "standard" in made.remarks[1]
    assert not any("by_client" in line for line in made.remarks)
    sections["data"]["client"] = "hospital"
    line = experiment.build(resolve(sections), [0]).remarks[-1]
    assert "partition iid makes the clients, and not the 2 users" in line and "by_client" in line


def test_unusable_tables_are_refused(path, tmp_path):
    for settings, expected in (
        ({"target": "days"}, "no column 'days'"),
        ({"target": "stay", "client": "hopsital"}, "did you mean 'hospital'"),
        ({"target": "age"}, "row 3 has no value in the column 'age'"),
        ({"target": "stay, ward"}, "several targets must be columns of numbers"),
        ({"target": "stay", "test": 1.5}, "data.test"),
        ({"target": "stay", "client": "stay"}, "is named for two purposes"),
        ({"target": "stay", "unseen": "x"}, "needs config.data.domain"),
        ({"target": "stay", "drop": tuple("age ward hospital smokes sex split".split())}, "some"),
    ):
        assert expected in complaint(table, path=path, **settings), settings
    for name, content, expected in (
        ("a.txt", CSV, "must end in .csv, .tsv, .parquet"),
        ("a.csv", "a,b\n", "no rows"),
        ("b.csv", "a,a\n1,2\n", "two columns 'a'"),
        ("g.csv", "a, a,b\n1,2,3\n", "two columns 'a'"),
        ("h.csv", "a,b\n" + f"1,{10**18}\n2,{10**18 + 1}\n" * 9, "too large for float64"),
        ("i.csv", "b,a\n" + "1,1700000000.5\n2,1700000001.5\n" * 9, "y are numbers that float32"),
        ("c.csv", "a,b\n1,2\n1,2,3\n", "cannot be read"),
        ("d.csv", "a,b\n" + "1,2020-01-01\n" * 9, "neither numbers nor text"),
        ("e.csv", "a,b\n" + "1,\n" * 9, "has no values"),
        ("f.parquet", "x", "f.parquet"),
    ):
        (tmp_path / name).write_text(content)
        assert expected in complaint(table, path=str(tmp_path / name), target="a"), name
