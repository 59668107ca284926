"""Tables with users of their own, in small files of their form."""

import numpy as np
import optional
import pytest
from inputs import complaint

from fedjax_lab.data import natural_tables
from fedjax_lab.data.sources.user_tables import natural

parquet = optional.module("pyarrow.parquet")
pyarrow = optional.module("pyarrow")


@pytest.fixture
def folder(tmp_path):
    """Chemistry scores of two schools, and flights to one airport."""
    made = {
        "chemistry": {
            "school": [1, 1, 1, 12, 12],
            "score": [4, 10, 8, 2, 0],
            "gender": ["F", "F", "M", "F", "M"],
            "age": [3, -3, 0, 5, 1],
            "gcsescore": [6.6, 7.6, 7.2, 5.5, 4.8],
        },
        "flights": {
            "dest": ["IAH"] * 5,
            "late": [False, True, False, False, True],
            **{name: [1, 2, 3, 4, 5] for name in ("month", "day", "sched_dep_time")},
            "sched_arr_time": [819, 830, 850, 1022, 837],
            "carrier": ["UA", "UA", "AA", "B6", "DL"],
            "origin": ["EWR", "LGA", "JFK", "JFK", "LGA"],
            "distance": [1400, 1416, 1089, 1576, 762],
        },
    }
    for name, columns in made.items():
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    return str(tmp_path)


def test_users_targets_and_inputs_come_from_their_columns(folder):
    data = natural(dataset="chemistry", folder=folder, test=0.34)
    assert data.users == ("1", "12")
    assert data.x.shape == (5, 4)  # two genders, the age, and the mean of earlier scores
    np.testing.assert_array_equal(data.y, [4, 10, 8, 2, 0])
    flights = natural(dataset="flights", folder=folder, test=0.2)
    np.testing.assert_array_equal(flights.y, [0, 1, 0, 0, 1])


def test_a_missing_file_is_answered_with_the_command_that_makes_it(folder):
    said = complaint(natural, dataset="loans", folder=folder)
    assert "no loans.parquet" in said and "fedjax_lab.data.natural_tables" in said


def test_flights_that_never_arrived_are_left_out():
    pandas = optional.module("pandas")
    frame = pandas.DataFrame({"arr_delay": [3.0, None, 16.0]})
    rows = natural_tables.TABLES["flights"].rows(frame)
    assert rows["late"].tolist() == [False, True]
