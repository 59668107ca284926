"""Configs of papers have the papers' settings."""

from pathlib import Path

import pytest

from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config

ROOT = Path(__file__).parents[2]


def test_configs_have_the_settings_of_their_papers():
    def config(text):
        return resolve(load_config(str(ROOT / "configs" / text)))

    fedrep = config("fedpick_digits.py:fedrep")
    assert (fedrep.method.head_epochs, fedrep.method.body_epochs) == (4, 1)
    assert fedrep.method.head_layers == config("fedpick_digits.py:fedper").method.head_layers == 2
    for text, weight in (("digits", 10.0), ("office", 1.0), ("domainnet", 1.0)):
        pick = config(f"fedpick_{text}.py:fedpick").method
        assert pick.tau == pick.lam_lce == pick.lam_dis == weight and pick.lam_ent == 0.001
    assert config("fedpick_digits.py:lg_fedavg").method.head_layers == 1
    local = config("fedpick_digits.py").local
    assert (local.lr, local.momentum, local.batch_size, local.epochs) == (0.01, 0.5, 64, 1)
    assert config("fedpick_digits.py").run.rounds == 300
    c2i = config("fedc2i_digits.py:fedprox")
    assert (c2i.local.optimizer, c2i.local.lr, c2i.local.batch_size) == ("adam", 1e-3, 32)
    assert (c2i.local.epochs, c2i.run.rounds, c2i.method.mu) == (2, 20, 0.01)
    large = config("fedconcat_large.py:fedconcat")
    assert (large.partition.num_clients, large.run.cohort, large.run.rounds) == (200, 40, 500)
    decay = large.method.encoder_decay + large.local.weight_decay
    assert decay == pytest.approx(1e-3) and large.method.balanced
    cifar = config("client2vec_cifar10.py")
    assert (cifar.partition.alpha, cifar.partition.num_clients, cifar.run.cohort) == (0.1, 100, 10)
    local = cifar.local
    assert (local.lr, local.momentum, local.weight_decay, local.epochs) == (0.01, 0.0, 5e-5, 5)
    domains = config("client2vec_domainnet.py:moon")
    assert (domains.data.classes, domains.data.size, domains.partition.num_clients) == (50, 64, 60)
    assert (domains.local.momentum, domains.run.cohort, domains.run.rounds) == (0.9, 6, 100)
    assert domains.method.projection == "mlp256"
    skew = config("fmnist_label_skew.py:moon")
    assert (skew.partition.num_clients, skew.local.epochs, skew.run.rounds) == (40, 10, 50)
    assert (skew.local.lr, skew.local.momentum, skew.local.weight_decay) == (0.01, 0.9, 1e-5)
    assert (skew.local.batch_size, skew.method.mu, skew.method.projection) == (64, 0.01, "none")
