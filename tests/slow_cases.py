"""Marks the parameters of a test that only the slow or the exhaustive tests include.

A parameter is chosen if it, or its first element, is named. A name that no parameter has is an
error, because its case would silently leave the intended tests.
"""

import pytest

# Models whose logits are not [B, K], so that tests of classifiers leave them out.
OF_POSITIONS = {"causal_lstm", "causal_transformer", "decoder", "gpt2", "unet"}


def slow_but(fast, values):
    """Returns the parameters `values`, marked slow except for those that `fast` names."""
    return _marked(fast, values, [], [pytest.mark.slow])


def exhaustive_but(slow, values):
    """Returns the parameters `values`, marked slow if `slow` names them, and else exhaustive."""
    return _marked(slow, values, [pytest.mark.slow], [pytest.mark.exhaustive])


def in_ci(chosen, values):
    """Returns the parameters `values`, marked exhaustive except for those that `chosen` names."""
    return _marked(chosen, values, [], [pytest.mark.exhaustive])


def _marked(chosen, values, marks, other_marks):
    values = list(values)
    names = [*values, *(_elements(value)[0] for value in values)]
    unknown = [name for name in chosen if name not in names]
    assert not unknown, f"no parameter is {unknown}"
    is_chosen = [value in chosen or _elements(value)[0] in chosen for value in values]
    return [
        pytest.param(*_elements(value), marks=marks if of_chosen else other_marks)
        for value, of_chosen in zip(values, is_chosen, strict=True)
    ]


def _elements(value):
    return value if isinstance(value, tuple) else (value,)
