"""Generated data: users of Synthetic(alpha, beta), writers of digits, and texts with topics."""

import numpy as np
import pytest
from inputs import complaint

import fedjax_lab
from fedjax_lab.data.partitions.partitioning import skew
from fedjax_lab.data.sources import writers as made
from fedjax_lab.data.sources.synthetic import synthetic
from fedjax_lab.data.sources.topics import topics
from fedjax_lab.data.sources.writers import PLAIN, writers
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.testing import check_source

TOPICS = {"users": 20, "texts": 12, "topics": 3, "vocabulary": 60, "words": 8, "length": 8}
FEW = 12


@pytest.mark.parametrize("source", [synthetic, writers])
def test_users_depend_on_the_seed_but_not_on_their_number(source):
    few, many, other = source(num_users=3), source(num_users=9), source(num_users=3, seed=1)
    for a, b in zip((few.x, few.y, few.test), (many.x, many.y, many.test), strict=True):
        assert np.array_equal(a, b[: len(a)])
    assert not np.array_equal(other.x[:50], few.x[:50])


# {source: {words of the error: settings}}
WRONG = {
    synthetic: {
        "alpha must be from 0 to 1,000,000": {"alpha": -1.0},
        "beta must be from 0 to 1,000,000": {"beta": 1e300},
        "dimension must be above 0": {"dimension": 0},
        "num_classes must be from 2 to 10,000": {"num_classes": 1},
        "test_share must be at least 0 and below 1": {"test_share": 1.0},
        "num_users=30 do not fit in memory": {"dimension": 2**31 - 1},
    },
    writers: {
        "alpha must be above 0": {"alpha": 0.0},
        "style must be from 0 to 1,000,000": {"style": -1.0},
        "seed must be at least 0": {"seed": -1},
        "num_users must be above 0": {"num_users": -3},
        "num_users=2147483647 do not fit in memory": {"num_users": 2**31 - 1},
    },
    topics: {
        "alpha must be above 0 and at most 1,000,000, got 0.0": {"alpha": 0.0},
        "texts must be at least 5, got 4": {"texts": 4},
        "must be at least two more than config.data.topics=8, got 9": {"vocabulary": 9},
        "texts do not fit in memory": {"texts": 10**9},
        "task cannot be 'next'; did you mean 'next_word'?": {"task": "next"},
    },
}


@pytest.mark.parametrize("source", WRONG)
def test_invalid_settings_are_named_in_the_error(source):
    for said, settings in WRONG[source].items():
        message = complaint(source, **settings)
        assert said in message and "config.data." in message


def user_examples(data, user):
    return data.x[data.client == user], data.y[data.client == user]


def test_users_splits_and_inputs_follow_the_paper():
    data = synthetic()
    assert data.x.shape[1:] == (60,) and (data.x.dtype, data.y.dtype) == (np.float32, np.int32)
    assert len(data.users) == len(set(data.users)) == 30 and len(data.classes) == 10
    sizes, tests = np.bincount(data.client), np.bincount(data.client, data.test)
    assert sizes.min() >= 50
    assert tests.tolist() == [n - int(0.9 * n) for n in sizes.tolist()]
    x, _ = user_examples(data, np.argmax(sizes))
    covariance = np.cov(x, rowvar=False)
    assert np.diag(covariance) == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.3)
    correlation = np.corrcoef(x, rowvar=False) - np.eye(60)
    assert np.abs(correlation).max() < 0.2


def test_sizes_are_log_normal_above_50():
    data = synthetic(num_users=400, dimension=1)
    logs = np.log(np.bincount(data.client) - 50 + 0.5)
    assert np.median(logs) == pytest.approx(4, abs=0.3) and logs.std() == pytest.approx(2, abs=0.3)


def test_beta_spreads_the_means_of_the_users_inputs():
    def means(**settings):
        data = synthetic(**settings)
        return np.array([user_examples(data, k)[0].mean() for k in range(30)])  # about B_k

    assert means(beta=0.0).std() < 0.25
    assert means(beta=3.0).std() == pytest.approx(3, rel=0.35)
    assert np.abs(means(iid=True)).max() < 0.1


def emd(**settings):
    """Returns the distance of the users' label distributions from the overall one, 0 to 2."""
    data = synthetic(**settings)
    counts = np.zeros((30, 10), int)
    np.add.at(counts, (data.client, data.y), 1)
    return skew(counts).emd


def test_only_iid_users_have_the_same_classifier():
    assert emd(iid=True) < 0.4
    assert emd(alpha=0.0, beta=0.0) > 1  # the same distribution of inputs does not suffice
    assert np.array_equal(synthetic(alpha=0.0).y, synthetic(alpha=5.0).y)


@pytest.mark.exhaustive
def test_fedprox_has_a_lower_loss_than_fedavg_as_in_its_paper():
    """Figure 2 of the paper: the loss on Synthetic(1, 1) with mu = 1 is below that with mu = 0."""
    losses = {}
    for method in ("fedavg", "fedprox"):
        config = resolve(load_config(f"synthetic:{method}"), [("run.rounds", "40")])
        result = fedjax_lab.run(config, seeds=[0, 1, 2], quiet=True)
        losses[method] = [row["global_loss"] for row in result.metrics if row["round"] == 40]
    assert max(losses["fedprox"]) < min(losses["fedavg"])


@pytest.fixture(scope="module")
def few():
    return writers(num_users=FEW)


def test_writers_have_images_and_natural_users(few):
    assert few.x.shape[1:] == (28, 28, 1)
    assert (few.x.dtype, few.y.dtype, few.client.dtype) == (np.uint8, np.int32, np.int32)
    assert len(few.users) == FEW and few.classes == tuple("0123456789")
    sizes, tests = np.bincount(few.client), np.bincount(few.client, few.test)
    assert tests.tolist() == [n - int(0.9 * n) for n in sizes.tolist()]
    assert few.x[:, 0].mean() > 245  # white paper in the top row


def test_test_shapes_are_not_training_shapes():
    training, tests = made.split_shapes(np.random.default_rng(0))
    assert len(training.ink) + len(tests.ink) == 1797
    assert tests.counts.tolist() == [n // 5 for n in (training.counts + tests.counts).tolist()]
    assert not {shape.tobytes() for shape in training.ink} & {s.tobytes() for s in tests.ink}


def darkest(data):
    return np.array([data.x[data.client == k].min() for k in range(FEW)])


def test_the_style_setting_controls_how_writers_differ(few):
    assert len(set(darkest(few))) > FEW / 2
    assert set(darkest(writers(num_users=FEW, style=0.0))) == {round(255 * (1 - PLAIN.ink))}
    much = [made.draw_style(np.random.default_rng(k), 100.0) for k in range(20)]
    for style in much:
        assert np.all(np.array(style) >= made.LOWEST) and np.all(np.array(style) <= made.HIGHEST)


def test_a_small_alpha_gives_unequal_labels(few):
    def most_frequent(data):
        return np.mean([np.bincount(data.y[data.client == k]).max() for k in range(FEW)])

    assert most_frequent(writers(num_users=FEW, alpha=0.1)) > 2 * most_frequent(few)


def test_test_digits_look_like_training_digits_of_their_class(few):
    dark = 255.0 - few.x.reshape(len(few.x), -1)
    means = np.stack([dark[~few.test & (few.y == label)].mean(0) for label in range(10)])
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    assert (np.argmax(dark[few.test] @ unit.T, axis=1) == few.y[few.test]).mean() > 0.6


def test_users_have_mixtures_of_topics_and_test_texts():
    data = check_source(topics, **TOPICS)
    assert data.x.dtype == np.int16 and data.x.max() < 60 and len(data.users) == 20
    assert np.isin(np.count_nonzero(data.x, 1), range(4, 9)).all()
    for user in range(20):
        of_user = data.test[data.client == user]
        assert of_user.sum() == len(of_user) // 5 > 0
    shares = [np.bincount(data.y[data.client == user], minlength=3) for user in range(20)]
    assert max(n.max() / n.sum() for n in shares) > 0.8  # chance: a third
    assert not np.array_equal(data.x, topics(**TOPICS, seed=1).x)


def test_naive_bayes_predicts_the_topic_from_the_words():
    data = topics(**{**TOPICS, "users": 60})
    counts = (data.x[:, :, None] == np.arange(2, 60)).sum(1)
    rows = [~data.test & (data.y == topic) for topic in range(3)]
    share = np.stack([(1 + counts[of].sum(0)) / (1 + counts[of]).sum() for of in rows])
    score = counts @ np.log(share).T + np.log([of.sum() for of in rows])  # naive Bayes
    assert (score.argmax(1) == data.y)[data.test].mean() > 0.6  # chance: 0.33


def test_words_depend_on_the_word_before_them():
    """Half of the words are the successor, in their topic, of the word before them."""
    data = topics(**{**TOPICS, "topics": 1}, task="next_word")
    assert len(data.classes) == 60 and data.classes[:3] == ("<padding>", "<unknown>", "word0")
    before = data.x[:, -1]
    table = np.zeros((60, 60), int)
    np.add.at(table, (before, data.y), 1)
    assert 0.45 < table[2:].max(1).sum() / table[2:].sum() < 0.75


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


@pytest.mark.exhaustive
def test_streamed_token_ids_give_the_same_metrics():
    """The ids go above 256, so they do not fit in a byte and would be rounded in bfloat16."""
    placed, streamed = (score_of(engine={"data": way}) for way in ("replicated", "stream"))
    assert placed["accuracy"] == streamed["accuracy"] and placed["loss"] == streamed["loss"]


def test_word_accuracy_is_rejected_if_the_classes_are_not_words():
    message = complaint(score_of, run={"metrics": ("word_accuracy",)})
    assert "config.run.metrics: word_accuracy is for data whose classes are words" in message
