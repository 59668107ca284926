"""Tests the source of generated texts with topics."""

import numpy as np
import pytest
from inputs import complaint

import fedjax_lab
from fedjax_lab.data.topics import topics
from fedjax_lab.testing import check_source

SMALL = {"users": 20, "texts": 12, "topics": 3, "vocabulary": 60, "words": 8, "length": 8}


def test_users_have_mixtures_of_topics_and_test_texts():
    made = check_source(topics, **SMALL)
    assert made.x.dtype == np.int16 and made.x.max() < 60 and len(made.users) == 20
    assert np.isin(np.count_nonzero(made.x, 1), range(4, 9)).all()
    for user in range(20):
        of_user = made.test[made.client == user]
        assert of_user.sum() == len(of_user) // 5 > 0
    shares = [np.bincount(made.y[made.client == user], minlength=3) for user in range(20)]
    assert max(n.max() / n.sum() for n in shares) > 0.8  # chance: a third
    assert not np.array_equal(made.x, topics(**SMALL, seed=1).x)


def test_naive_bayes_predicts_the_topic_from_the_words():
    made = topics(**{**SMALL, "users": 60})
    counts = (made.x[:, :, None] == np.arange(2, 60)).sum(1)
    rows = [~made.test & (made.y == topic) for topic in range(3)]
    share = np.stack([(1 + counts[of].sum(0)) / (1 + counts[of]).sum() for of in rows])
    score = counts @ np.log(share).T + np.log([of.sum() for of in rows])  # naive Bayes
    assert (score.argmax(1) == made.y)[made.test].mean() > 0.6  # chance: 0.33


def test_words_depend_on_the_word_before_them():
    """Half of the words are the successor, in their topic, of the word before them."""
    made = topics(**{**SMALL, "topics": 1}, task="next_word")
    assert len(made.classes) == 60 and made.classes[:3] == ("<padding>", "<unknown>", "word0")
    before = made.x[:, -1]
    table = np.zeros((60, 60), int)
    np.add.at(table, (before, made.y), 1)
    assert 0.45 < table[2:].max(1).sum() / table[2:].sum() < 0.75


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"users": 0}, "config.data.users must be above 0, got 0"),
        ({"alpha": 0.0}, "config.data.alpha must be above 0, got 0.0"),
        ({"texts": 4}, "config.data.texts must be at least 5, got 4"),
        ({"vocabulary": 9}, "must be at least two more than config.data.topics=8, at most"),
        ({"alpha": 1e300}, "config.data.alpha must be from 0 to 1,000,000, got 1e+300"),
        ({"seed": -1}, "config.data.seed must not be negative, got -1"),
        ({"texts": 10**9}, "the texts do not fit in memory"),
        ({"words": 10**9}, "lower config.data.users, texts, words, topics or vocabulary"),
        ({"topics": 10**5, "vocabulary": 10**7}, "the texts do not fit in memory"),
        ({"task": "next"}, "config.data.task cannot be 'next'; did you mean 'next_word'?"),
    ],
)
def test_invalid_settings_are_rejected(settings, said):
    assert said in complaint(topics, **settings)


def score_of(**sections):
    """Returns the last metrics of a short run on generated topics with one client per user."""
    config = {
        "data": {"name": "topics", "users": 60, "topics": 4, "vocabulary": 400, "length": 12},
        "partition": {"name": "by_client"},
        "model": {"name": "fasttext", "width": 16, "buckets": 500},
        "local": {"optimizer": "adam", "lr": 0.02, "batch_size": 16, "epochs": 2},
        "run": {"rounds": 10, "cohort": 20, "eval_every": 10},
    }
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    return fedjax_lab.run(config).metrics[-1]


@pytest.mark.slow
def test_a_run_on_topics_is_far_above_chance():
    """Chance is 25 %, and the most frequent topic is little more."""
    assert score_of()["global"] > 70


@pytest.mark.slow
def test_streamed_token_ids_give_the_same_metrics():
    """The ids go above 256, so they do not fit in a byte and would be rounded in bfloat16."""
    placed, streamed = (score_of(engine={"data": way}) for way in ("replicated", "stream"))
    assert placed["accuracy"] == streamed["accuracy"] and placed["loss"] == streamed["loss"]


@pytest.mark.slow
def test_next_word_prediction_is_better_than_by_frequency():
    """The most frequent word is right in a fifth of the cases, the successor in half."""
    row = score_of(
        data={"topics": 1, "vocabulary": 50, "task": "next_word", "length": 1},
        model={"width": 32, "buckets": 0},
        run={"metrics": ("perplexity", "word_accuracy")},
    )
    assert row["global_word_accuracy"] > 30 and row["global_perplexity"] < 25


def test_word_accuracy_is_rejected_if_the_classes_are_not_words():
    message = complaint(score_of, run={"metrics": ("word_accuracy",)})
    assert "config.run.metrics: word_accuracy is for data whose classes are words" in message
