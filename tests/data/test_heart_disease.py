"""Heart disease of four hospitals: small files in UCI's format."""

import numpy as np
import pytest
from inputs import complaint
from sklearn.model_selection import train_test_split

from fedjax_lab.data.sources import heart_disease


def patients(count, seed, ill=0.5):
    """Rows of 14 texts; every fourth patient lacks a value, every second one lacks thal."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        sick = int(rng.integers(1, 5)) if rng.random() < ill else 0
        numbers = [50 + i, i % 2, 1 + i % 4, 120 + i, 200 - i, i % 2, i % 3, 150, 0, i / 8, 2, 1, 3]
        cells = [*map(str, numbers), str(sick)]
        cells[12] = "?" if i % 2 else cells[12]
        cells[3] = "?" if i % 4 == 3 else cells[3]
        rows.append(cells)
    return rows


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(heart_disease.HOSPITALS):
        rows = patients(24 + 4 * seed, seed, ill=1.0 if name == "switzerland" else 0.5)
        text = "\n".join(",".join(row) for row in rows) + "\n"
        (tmp_path / f"processed.{name}.data").write_text(text)
    return tmp_path


def by_hand(name, seed):
    """Inputs, labels and test flags of a hospital, patient by patient."""
    rows = patients(24 + 4 * seed, seed, ill=1.0 if name == "switzerland" else 0.5)
    whole = [row for row in rows if "?" not in row[:10]]
    x = []
    for row in whole:
        v = [float(cell) for cell in row[:10]]
        pain, heart = [v[2] == k for k in (2, 3, 4)], [v[6] == k for k in (1, 2)]
        x.append([v[0], v[1], v[3], v[4], v[5], v[7], v[8], v[9], *pain, *heart])
    y = np.array([int(row[13] != "0") for row in whole])
    stratify = None if name == "switzerland" else y
    _, held = train_test_split(
        np.arange(len(y)), test_size=1.0 - 0.66, train_size=0.66, random_state=43, stratify=stratify
    )
    return np.array(x, float), y, np.isin(np.arange(len(y)), held)


@pytest.mark.parametrize("by_hospital", [False, True])
def test_patients_columns_and_split_are_those_of_flamby(by_hospital, folder):
    data = heart_disease.heart_disease(folder=str(folder), by_hospital=by_hospital)
    assert data.x.shape[1] == 13 and data.x.dtype == np.float32
    assert data.domains == data.users == heart_disease.HOSPITALS
    for number, name in enumerate(heart_disease.HOSPITALS):
        x, y, test = by_hand(name, number)
        rows = data.client == number
        np.testing.assert_array_equal(data.y[rows], y)
        np.testing.assert_array_equal(data.test[rows], test)
        if by_hospital:
            train = x[~test]
            center, scale = train.mean(0), train.std(0, ddof=1)
            x = np.where(scale > 0, (x - center) / np.where(scale > 0, scale, 1), 0)
        np.testing.assert_allclose(data.x[rows], x, rtol=1e-5, atol=1e-6)


def test_bad_files_are_one_line_errors(folder):
    file = folder / "processed.va.data"
    good = file.read_text()
    for line in ("1,2,3", good.splitlines()[0] + ",7", good.splitlines()[0].replace("50", "x")):
        file.write_text(good + line + "\n")
        message = complaint(heart_disease.heart_disease, folder=str(folder))
        assert f"{file}, line {len(good.splitlines()) + 1}: not 13 numbers" in message
    file.write_text(good.splitlines()[0] + "\n")
    assert "fewer than two whole" in complaint(heart_disease.heart_disease, folder=str(folder))
    file.unlink()
    assert "processed.va.data" in complaint(heart_disease.heart_disease, folder=str(folder))
