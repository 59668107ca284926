"""Every method compiles for four TPU chips; a round of FedAvg sends little more than its model.

The tests need libtpu (the extra aot-tpu), but no device.
"""

import absent
import hlo
import pytest
import targets
import toys

from fedjax_lab import registry, tree
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config

pytestmark = [
    pytest.mark.compilers,
    pytest.mark.skipif(not targets.installed("v5e:2x2"), reason="libtpu is not installed"),
]


@pytest.fixture(scope="module")
def chips(as_users_compile):
    return targets.topology("v5e:2x2", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy")
    toys.write_examples(path / "data.npz")
    return path


def config_of(folder, name, **sections):
    return resolve(load_config(f"{toys.write_config(folder, **sections)}:{name}"))


@pytest.mark.parametrize("name", sorted(registry.METHODS))
def test_every_method_compiles_for_four_chips(folder, chips, small_network, name):
    validation = {"validation": 0.2} if name == "fedfomo" else {}
    config = config_of(folder, name, local={"batch_size": 8}, partition=validation)
    for engine in absent.engines(config, chips):
        (programs,) = engine.lower().values()
        assert programs.play.compile().as_text()
        assert programs.score.compile().as_text()


def test_a_round_of_fedavg_sends_little_more_than_the_model(folder, chips):
    config = config_of(folder, "fedavg", model={"width": 4096})
    (engine,) = absent.engines(config, chips)
    (programs,) = engine.lower().values()
    cost = hlo.cost(programs.play.compile().as_text(), lambda depth: 1)
    model = tree.num_bytes(engine.states[0].server)
    assert model <= sum(cost.collectives.values()) <= 1.1 * model
