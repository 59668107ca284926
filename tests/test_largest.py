"""What does not fit in memory: the largest array and the setting behind it."""

import numpy as np
import pytest

from fedjax_lab.data import from_arrays
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.experiment import build
from fedjax_lab.running import largest

X = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
Y = X[:, :3].argmax(1)
HUGE = 10**8


def made(x=X, **sections):
    """The experiment of four clients whose config has these sections."""
    data = from_arrays(x, Y, client=np.arange(80) % 4)
    partition = {"name": "by_client", "num_clients": 0}
    return build(resolve({"data": data, "partition": partition, **sections}))


@pytest.mark.parametrize(
    "name, key",
    [
        ("fedgkt", "server_width"),
        ("adcol", "hidden"),
        ("fedcross", "models"),
        ("cfl", "max_clusters"),
        ("fedgen", "noise"),
        ("fedgen", "hidden"),
        ("hfedf", "embedding_dim"),
        ("pefll", "embedding_dim"),
    ],
)
def test_the_setting_behind_the_largest_array_of_a_method_is_named(name, key):
    words = largest.describe(made(method={"name": name, key: HUGE}))
    assert words.startswith("the largest array is server/") and "float32 [" in words
    assert words.endswith(f" GiB: lower config.method.{key}={HUGE}")


def test_the_setting_of_a_model_is_named_also_where_an_axis_is_a_multiple_of_it():
    words = largest.describe(made(model={"name": "mlp", "width": HUGE}))
    assert words.endswith(f"lower config.model.width={HUGE}")
    config = {"method": {"alpha": 3}, "adapter": {}, "partition": {}, "data": {"size": 2}}
    config["model"] = {"width": 100, "depth": 10, "norm": True, "name": "b"}
    assert largest.responsible(config, (100, 400)) == "config.model.width=100"
    assert largest.responsible(config, (100, 4000)) == ""
    assert largest.responsible(config, ()) == ""


def test_the_number_of_examples_does_not_follow_from_a_model():
    words = largest.describe(made(method={"name": "fedavg"}, model={"name": "mlp", "width": 64}))
    assert words.startswith("the largest array is examples,") and "lower" not in words


def test_a_high_token_id_is_named():
    ids = np.where(np.arange(480).reshape(80, 6) == 7, HUGE, 1)
    words = largest.describe(made(ids, model={"name": "fasttext"}))
    assert "[100000001, 64]" in words
    assert words.endswith(f"the examples have token ids up to {HUGE}")


def test_only_errors_about_memory_are_changed():
    one = made()
    with pytest.raises(MemoryError, match=r"^a round needs 9 GiB; the largest array is examples,"):
        with largest.named(one):
            raise MemoryError("a round needs 9 GiB\nmore")
    with pytest.raises(BadInput, match="^other$"), largest.named(one):
        raise BadInput("other")


def test_images_that_do_not_fit_name_the_setting(tmp_path):
    section = {"name": "digit_domains", "train_per_domain": HUGE, "cache": str(tmp_path)}
    with pytest.raises(BadInput, match=f"config.data.train_per_domain={HUGE} do not fit"):
        build(resolve({"data": section}))
