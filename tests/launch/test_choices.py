"""Tests choices with settings, which are arguments of the launch scripts."""

import choices
import pytest


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", {"a.name": "none"}),
        ("top_k:share=0.1", {"a.name": "top_k", "a.share": "0.1"}),
        ("x:p=1:q=2", {"a.name": "x", "a.p": "1", "a.q": "2"}),
        ("dir/own.py:vote:step=1", {"a.name": "dir/own.py:vote", "a.step": "1"}),
    ],
)
def test_a_choice_is_a_name_and_its_settings(choice, expected):
    assert choices.point("a", choice) == expected


def test_a_choice_maps_to_the_name_of_a_single_folder():
    assert "/" not in choices.folder("dir/own.py:vote:step=1")
