"""The figures of hFedF: the calibration error."""

import numpy as np
import pytest

from fedjax_lab.analysis.figures.hfedf import calibration_error


def test_calibration_error_against_a_computation_by_hand():
    largest = np.array([0.95, 0.97, 0.95, 0.5, 0.51])
    right = np.array([True, True, False, True, False])
    high, low = abs(2 / 3 - largest[:3].mean()), abs(1 / 2 - largest[3:].mean())
    assert calibration_error(largest, right) == pytest.approx(0.6 * high + 0.4 * low)
    assert calibration_error(np.ones(4), np.ones(4, bool)) == 0
