"""Checks that the transforms in docs/transforms.md work."""

import re
from pathlib import Path
from types import ModuleType

import naive
import numpy as np
import pytest
import toys

PAGE = (Path(__file__).parents[2] / "docs" / "transforms.md").read_text()
(CODE,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture(scope="module")
def page():
    """The Python file on the page, as a module."""
    module = ModuleType("own_transforms")
    exec(compile(CODE, "docs/transforms.md", "exec"), vars(module))
    return module


def moved(method):
    """How far one round moves each weight of the server's model."""
    first = method.init(naive.KEYS.init, toys.C).server
    state, _ = toys.player(method)(naive.KEYS, 0, 1)
    return np.abs(naive.vector(state.server) - naive.vector(first))


@pytest.mark.slow
def test_the_transforms_of_the_page_bound_how_far_a_round_moves_the_model(page):
    """The majority vote moves each weight by one step; the other bounds the distance."""
    plain = toys.make("fedavg", toys.TASK)
    distance = moved(page.majority_vote(plain, toys.TASK, step=0.5))
    np.testing.assert_allclose(distance[distance > 1e-3], 0.5, rtol=1e-4)
    assert np.mean(distance > 1e-3) > 0.5
    assert 0.0005 < moved(page.dampened(plain, toys.TASK, limit=0.001)).max() < 0.0011
