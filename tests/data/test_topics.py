"""Generated texts of topics."""

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data.topics import topics
from fedjax_lab.testing import check_source

SMALL = {"users": 20, "texts": 12, "topics": 3, "vocabulary": 60, "length": 8}


def test_users_have_mixtures_of_topics_and_texts_for_tests():
    made = check_source(topics, **SMALL)
    assert made.x.dtype == np.int16 and made.x.max() < 60 and len(made.users) == 20
    assert np.isin(np.count_nonzero(made.x, 1), range(4, 9)).all()
    for user in range(20):
        of_user = made.test[made.client == user]
        assert of_user.sum() == len(of_user) // 5 > 0
    shares = [np.bincount(made.y[made.client == user], minlength=3) for user in range(20)]
    assert max(n.max() / n.sum() for n in shares) > 0.8  # chance: a third
    assert not np.array_equal(made.x, topics(**SMALL, seed=1).x)


def test_topics_can_be_told_apart_by_their_words():
    made = topics(**{**SMALL, "users": 60})
    counts = (made.x[:, :, None] == np.arange(2, 60)).sum(1)
    rows = [~made.test & (made.y == topic) for topic in range(3)]
    share = np.stack([(1 + counts[of].sum(0)) / (1 + counts[of]).sum() for of in rows])
    score = counts @ np.log(share).T + np.log([of.sum() for of in rows])  # naive Bayes
    assert (score.argmax(1) == made.y)[made.test].mean() > 0.6  # chance: 0.33


def test_words_follow_each_other():
    """Each second word is the successor of the one before it, in its topic."""
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
        ({"vocabulary": 9}, "must be two more than config.data.topics=8, up to 2**24, got 9"),
        ({"task": "next"}, "config.data.task cannot be 'next'; did you mean 'next_word'?"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    assert said in complaint(topics, **settings)
