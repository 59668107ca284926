"""Texts of language models: what becomes of prompts, and what is refused."""

import numpy as np
import pytest
import toys
from inputs import complaint

import fedjax_lab
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.experiment.config import resolve
from fedjax_lab.running import generation

PLAYS = resolve({"data": {"name": "plays", "form": "sequences"}}).data
CLASSES = ("<pad>", "<bos>", "<eos>", "a", "b", " ")


def dataset(classes):
    zeros = np.zeros(2, np.int32)
    return Dataset(np.zeros((2, 3), np.int8), zeros, zeros, zeros > 0, classes, ("",))


def test_characters_are_spelled_by_the_names_of_their_ids():
    spelled = generation.speller(PLAYS, dataset(CLASSES), raw=False)
    assert spelled.prompt("ab?") == [1, 3, 4, 5]
    assert spelled.decode([1, 3, 5, 4, 2]) == "a b"
    assert spelled.stops == {2}
    said = complaint(generation.speller, PLAYS, dataset(("zero", "one")), False)
    assert "neither a tokenizer's nor characters" in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("classification", 0.0, 5), "has no language model, but the task classification"),
        (("tokens", -1.0, 5), "temperature must be"),
        (("tokens", 0.0, 0), "tokens must be from 1"),
    ],
)
def test_what_cannot_be_written_is_refused(settings, said):
    assert said in complaint(generation.check, *settings)


@pytest.mark.slow
def test_a_run_without_a_language_model_is_refused_in_one_line(tmp_path):
    run = fedjax_lab.run(toys.config(tmp_path, run={"rounds": 1}), quiet=True)
    assert "config.task.name=tokens" in complaint(run.generate, "hello")
