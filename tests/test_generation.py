"""Texts of language models: what becomes of prompts, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from slow_cases import exhaustive_but

import fedjax_lab
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.experiment.config import resolve
from fedjax_lab.models.gpt2 import gpt2
from fedjax_lab.running import generation

PLAYS = resolve({"data": {"name": "plays", "form": "sequences"}}).data
CLASSES = ("<pad>", "<bos>", "<eos>", "a", "b", " ")


def dataset(classes):
    zeros = np.zeros(2, np.int32)
    return Dataset(np.zeros((2, 3), np.int8), zeros, zeros, zeros > 0, classes, ("",))


def test_characters_are_spelled_by_the_names_of_their_ids():
    spelled = generation.speller(PLAYS, dataset(CLASSES), raw=False)
    assert spelled.prompt("ab ") == [1, 3, 4, 5]
    assert "characters that the data lack: '?é'" in complaint(spelled.prompt, "éa??")
    assert spelled.decode([1, 3, 5, 4, 2]) == "a b"
    assert spelled.stops == {2}
    said = complaint(generation.speller, PLAYS, dataset(("zero", "one")), False)
    assert "neither a tokenizer's nor characters" in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("classification", 0.0, 5), "has no language model, but the task classification"),
        (("tokens", -1.0, 5), "temperature must be"),
        (("tokens", 0.0, 0), "tokens must be from 1 to 10,000"),
        (("tokens", 0.0, 10_001), "tokens must be from 1 to 10,000"),
    ],
)
def test_what_cannot_be_written_is_refused(settings, said):
    assert said in complaint(generation.check, *settings)


@pytest.mark.parametrize(
    ("positions", "row", "count"),
    exhaustive_but([16, 64], [(0, 40, 9), (16, 12, 9), (64, 40, 20)]),
)
def test_a_cache_is_used_only_within_the_learned_positions(positions, row, count):
    """The table of positions has as many rows as the data, or as `positions`."""
    model = gpt2(9, width=8, depth=1, heads=2, positions=positions)
    weights = model.init(jax.random.key(0), jnp.zeros((1, row)))

    def logits_of(weights, ids):
        return model.apply(weights, ids)[0]

    options = {"count": count, "row": row, "stops": frozenset()}
    with_cache, without = (
        generation.write(logits_of, weights, [1, 2, 3], **options, cached=cached)
        for cached in (True, False)
    )
    assert with_cache == without and len(without) == count
    message = complaint(generation.write, logits_of, weights, [1], **{**options, "count": 60})
    assert f"more than the {row} tokens of a row" in message


@pytest.mark.slow
def test_a_method_that_maps_over_models_writes_without_a_cache():
    model = gpt2(9, width=8, depth=1, heads=2, positions=64)
    weights = model.init(jax.random.key(0), jnp.zeros((1, 12)))
    two = jax.tree.map(lambda a: jnp.stack([a, a]), weights)

    def logits_of(weights, ids):
        return jax.vmap(lambda each: model.apply(each, ids)[0])(weights).mean(0)

    made = generation.write(logits_of, two, [1, 2, 3], 5, 12, frozenset())
    alone = generation.write(
        lambda w, ids: model.apply(w, ids)[0], weights, [1, 2, 3], 5, 12, frozenset()
    )
    assert made == alone and len(made) == 5


@pytest.mark.slow
def test_a_run_without_a_language_model_is_refused_in_one_line(tmp_path):
    run = fedjax_lab.run(toys.config(tmp_path, run={"rounds": 1}), quiet=True)
    assert "config.task.name=tokens" in complaint(run.generate, "hello")
