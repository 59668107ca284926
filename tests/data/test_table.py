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
    federation = made.simulation.seeds[0].federation
    x = (np.asarray(federation.x) - federation.center) * federation.scale
    np.testing.assert_allclose(x[:3].mean(0), 0, atol=1e-6)
    assert "stays.csv: 4 rows" in made.remarks[0] and "standard" in made.remarks[1]
    assert not any("by_client" in line for line in made.remarks)
    sections["data"]["client"] = "hospital"
    line = experiment.build(resolve(sections), [0]).remarks[-1]
    assert "partition iid makes the clients, and not the 2 users" in line and "by_client" in line


def write(folder, header, rows, name="own.csv"):
    """Writes a table; returns its path."""
    (folder / name).write_text(
        "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"
    )
    return str(folder / name)


NAMES = [str(12345678901234567890 + i) for i in range(6)]
NAMES += ["07", "7", "1.1", "1.10", "12e4", "12e5", "NA", "nan", "2020-01-01", "true"]


@pytest.mark.parametrize("role", ["client", "domain"])
def test_names_are_the_text_of_their_cells(role, tmp_path):
    rows = [(i % 7, i % 2, f"{NAMES[i % len(NAMES)]}{' ' * (i % 3)}") for i in range(80)]
    made = table(path=write(tmp_path, "age,sick, site", rows), target="sick", **{role: "site"})
    names, number = (made.users, made.client) if role == "client" else (made.domains, made.domain)
    assert names == tuple(sorted(NAMES))
    assert [names[each] for each in number] == [NAMES[i % len(NAMES)] for i in range(80)]


def test_names_of_parquet_files_are_not_rounded(tmp_path):
    columns = {"age": [1, 2, 3] * 4, "sick": [0, 1] * 6, "site": [2**62 + i % 3 for i in range(12)]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "own.parquet")
    made = table(path=str(tmp_path / "own.parquet"), target="sick", client="site")
    assert made.users == tuple(str(2**62 + i) for i in range(3))
    columns["site"] = [float(each) for each in columns["site"]]
    parquet.write_table(pyarrow.table(columns), tmp_path / "own.parquet")
    message = complaint(table, path=str(tmp_path / "own.parquet"), target="sick", client="site")
    assert "'site' has real numbers of at least 2**53" in message


def test_blanks_around_cells_do_not_count(tmp_path):
    rows = []
    for i in range(60):
        blank = " " * (i % 3 == 0)
        rows.append((f"{'ab'[i % 2]}{blank}", f"{blank}{i % 9}", f"{'yn'[i % 4 < 2]}{blank}"))
    made = table(path=write(tmp_path, "ward , age,sick", rows), target="sick")
    assert made.classes == ("n", "y") and made.x.shape == (60, 3)
    np.testing.assert_array_equal(made.x[:, 2], np.arange(60) % 9)


def test_text_that_is_mostly_numbers_is_refused_with_its_other_cells(tmp_path):
    for odd in (
        "?",
        "1,200",
        "5 %",
        "<5",
        ".",
        "1 200",
        "n.a.",
        "1_0",
        "+-3",
    ):
        rows = [(i % 2, f'"{odd if i % 20 == 7 else 100 + i}"') for i in range(60)]
        message = complaint(table, path=write(tmp_path, "sick,chol", rows), target="sick")
        assert (
            f"the column 'chol' is text: most of its cells are numbers, but not '{odd}'" in message
        )
        assert "(3 times, first in row 8)" in message
        is_mark = odd in (
            "?",
            ".",
            "n.a.",
            "1_0",
        )  # 1,200 would be two marks, of the numbers 1 and 200
        assert ("config.data.missing" in message) == is_mark
        reverse = complaint(table, path=str(tmp_path / "own.csv"), target="chol")
        assert "the column 'chol' is text" in reverse
    grades = [("abc1"[i % 4], i % 2) for i in range(60)]
    assert table(path=write(tmp_path, "grade,sick", grades), target="sick").x.shape[1] == 4


def test_marks_of_missing_values(tmp_path):
    rows = [(i % 2, ["?", "-999", "NA", ""][i] if i < 4 else i, "?n"[i % 2]) for i in range(40)]
    path = write(tmp_path, "sick,age,ward", rows)
    made = table(path=path, target="sick", missing=("?", -999))
    training = ~made.test
    assert made.x.shape[1] == 3  # age, whether it is missing, and ward n
    assert made.x[:, 1].tolist() == [1] * 4 + [0] * 36
    mean = np.arange(4, 40)[training[4:]].mean()
    np.testing.assert_allclose(made.x[:4, 0], np.float32(mean))
    assert "4 in age, 20 in ward" in made.remarks[0]
    message = complaint(table, path=path, target="sick", missing=("?",), client="ward")
    assert "row 1 has no value in the column 'ward'; fill it in, or leave out the row" in message
    config = {"data": {"name": "table", "path": path, "target": "sick"}}
    for text in ("?,-999", "('?', -999)"):
        resolved = resolve(config, [("data.missing", text)])
        assert experiment.load_data(resolved.data).x.shape[1] == 3


def test_a_target_among_the_categories_is_one_of_classes(tmp_path):
    rows = [(i % 5, [2019, 2023, 98][i % 3]) for i in range(60)]
    path = write(tmp_path, "age,year", rows)
    made = table(path=path, target="year", categories=("year",))
    assert made.classes == ("98", "2019", "2023") and made.y.tolist() == [1, 2, 0] * 20
    sections = {"data": {"name": "table", "path": path, "target": "year"}, "model": {"width": 4}}
    sections["partition"] = {"name": "iid", "num_clients": 2}
    line = experiment.build(resolve(sections), [0]).remarks[-1]
    assert "2021 of 2024 classes occur in no example: 0, 1, 2" in line and "without gaps" in line


def test_every_client_and_class_has_its_share_of_test_rows(tmp_path):
    rows = [(i % 9, int(i % 40 == 0), f"h{i // 5}") for i in range(200)]
    path = write(tmp_path, "age,rare,hospital", rows)
    made = table(path=path, target="rare", client="hospital")
    assert np.bincount(made.client[made.test], minlength=40).tolist() == [1] * 40
    alone = table(path=path, target="rare", drop=("hospital",))
    assert np.bincount(alone.y[alone.test]).tolist() == [39, 1]
    more = table(path=path, target="rare", client="hospital", test=0.4, test_seed=1)
    assert np.bincount(more.client[more.test]).tolist() == [2] * 40


def test_a_group_is_never_divided(tmp_path):
    rows = [(i % 9, i % 2, i * 7 % 31, "test" if i % 5 == 0 else "train") for i in range(200)]
    path = write(tmp_path, "age,sick,patient,part", rows)
    made = table(path=path, target="sick", group="patient", drop=("part",))
    patients = np.array(rows)[:, 2]
    assert made.test.any() and not set(patients[made.test]) & set(patients[~made.test])
    section = {"name": "table", "path": path, "target": "sick", "group": "patient", "split": "part"}
    message = complaint(experiment.load_data, resolve({"data": section}).data)
    assert "31 of 31 groups have training and test examples" in message


def test_ids_that_predict_the_target_are_named(tmp_path):
    rows = [(100 + i, i * 37 % 200, i // 100) for i in range(200)]
    made = table(path=write(tmp_path, "id,number,sick", rows), target="sick")
    assert "no two rows have the same value of 'id', which predicts" in made.remarks[1]
    assert made.remarks[1].endswith("(data.drop)")


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
        ("h.csv", "a,b\n" + f"1,{10**18}\n2,{10**18 + 1}\n" * 9, "most of its cells"),
        ("i.csv", "b,a\n" + "1,1700000000.5\n2,1700000001.5\n" * 9, "y are numbers that float32"),
        ("c.csv", "a,b\n1,2\n1,2,3\n", "cannot be read"),
        ("k.csv", "a;b\n1,5;2\n", "separated by ';'"),
        ("k.tsv", "a,b\n1,2\n", "separated by ','"),
        (
            "i.csv",
            "a,b\n" + "".join(f"{i % 2},{10**18 + i}\n" for i in range(9)),
            "too long to be told apart",
        ),
        ("j.csv", "a,b\n" + "1,12:30\n" * 9, "neither numbers nor text"),
        ("d.csv", "a,b\n" + "1,2020-01-01\n" * 9, "neither numbers nor text"),
        ("e.csv", "a,b\n" + "1,\n" * 9, "has no values"),
        ("f.parquet", "x", "f.parquet"),
    ):
        (tmp_path / name).write_text(content)
        assert expected in complaint(table, path=str(tmp_path / name), target="a"), name


def test_marks_and_missing_values_of_typed_columns(tmp_path):
    columns = {
        "y": [0, 1, 0, 1],
        "id": pyarrow.array([2**60, 2**60 + 1, 2**60, 2**60 + 1]),
        "score": pyarrow.array([1, -99.9, 3, 5], pyarrow.float32()),
        "grade": [1.0, 2.0, float("nan"), 1.0],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "stays.parquet")
    given = {"target": "y", "client": "id", "categories": ("grade",), "missing": ("-99.9",)}
    made = table(path=str(tmp_path / "stays.parquet"), **given)
    assert made.users == (str(2**60), str(2**60 + 1))
    assert made.x.shape[1] == 2 + 2 and made.x[1, 1] == 1  # -99.9 is missing in float32, too
    np.testing.assert_array_equal(made.x[:, 2:], [[1, 0], [0, 1], [0, 0], [1, 0]])
    assert "1 in score, 1 in grade" in made.remarks[0]


def test_rows_in_messages_are_counted_from_one(tmp_path):
    file = tmp_path / "stays.csv"
    file.write_text("y,age,part\n0,,train\n1,inf,Test\n0,3,train\n")
    assert "row 2 has inf in the column 'age'" in complaint(
        table, path=str(file), target="y", drop=("part",)
    )
    assert "split is 'Test' in row 2" in complaint(table, path=str(file), target="y", split="part")


def test_an_open_quotation_mark_is_refused(tmp_path):
    for name, separator in (("stays.csv", ","), ("stays.tsv", "\t")):
        lines = ["y,note", "0,a", '1,"b', "0,c", '1,"d"', "0,e", "1,f"]  # two rows are in one cell
        (tmp_path / name).write_text("\n".join(lines).replace(",", separator))
        said = complaint(table, path=str(tmp_path / name), target="y")
        assert "quotation mark" in said and "stays" in said


def test_quoted_lines_may_be_anywhere_in_a_long_file(tmp_path):
    rows = [f'{row % 2},"a note\nof {row % 3}"' for row in range(80_000)]  # more than a megabyte
    (tmp_path / "stays.csv").write_text("\n".join(["y,note", *rows]))
    made = table(path=str(tmp_path / "stays.csv"), target="y")
    np.testing.assert_array_equal(made.x, np.eye(3)[np.arange(80_000) % 3])
