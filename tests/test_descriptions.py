"""Descriptions of the keys of a config."""

import own_parts
import pytest
from commands import call

from fedjax_lab.commands import descriptions
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.keys import DEFAULTS


def test_every_config_key_has_a_meaning():
    general = {f"{section}.{key}" for section, keys in DEFAULTS.items() for key in keys}
    assert general <= descriptions.MEANINGS.keys()


@pytest.mark.parametrize("kind", ["method", "attack", "aggregator", "privacy", "optimizer"])
def test_every_setting_of_a_named_part_has_a_meaning(kind):
    section = {"optimizer": "local"}.get(kind, kind)
    for name in registry.NAMED[kind]:
        key = "optimizer" if kind == "optimizer" else "name"
        words = descriptions.section_meanings(section, resolve({section: {key: name}})[section])
        assert [key for key, meaning in words.items() if not meaning] == [], name


def test_descriptions_of_settings_are_found_in_docstrings():
    docstring = """Summary, in which tau is not: described.

    mu: weight of the term; 0 is
        FedAvg. tau, rho: both
        temperatures.

    Args:
      k (int): a number: of clusters.
      mode : a or b

    All is kept in `folder`. The end.
    """
    keys = ["mu", "tau", "rho", "k", "mode", "folder", "absent"]
    assert descriptions.described_in(docstring, keys) == {
        "mu": "weight of the term; 0 is FedAvg",
        "tau": "both temperatures",
        "rho": "both temperatures",
        "k": "a number: of clusters",
        "mode": "a or b",
        "folder": "All is kept in `folder`",
        "absent": "",
    }


def test_help_of_a_method_has_its_settings_and_docstrings(tmp_path, monkeypatch, capsys):
    assert call("--help-method", "fedprox") == 0
    text = capsys.readouterr().out
    assert "--config.method.mu=0.01\n      weight of the proximal term; 0 is FedAvg\n" in text
    assert "FedProx (Li et al., MLSys 2020" in text
    assert "a sweep with --tune draws it from log:0.001,1.0" in text
    own_parts.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert call("--help-method=own.py:near") == 0
    assert "--config.method.pull=0.5\n      weight of the term" in capsys.readouterr().out
    assert call("--help-method", "fedprx") == 2
    assert "did you mean 'fedprox'?" in capsys.readouterr().err
    assert "This method has no settings" in descriptions.describe_method("fedavg")
    assert call("--help") == 0  # lists all registered names
    text = capsys.readouterr().out
    for kind in ("method", "data", "model", "partition"):
        assert all(name in text for name in registry.names(kind))


def test_a_config_is_shown_as_flags_with_meanings(tmp_path, capsys, monkeypatch):
    config_file = own_parts.write(tmp_path)
    assert call(f"--config={config_file}", "--show_config", "--config.method.pull=2") == 0
    text = capsys.readouterr().out
    flags = [line for line in text.splitlines() if line.startswith("--config.")]
    assert "--config.method.pull=2.0" in flags and "--config.local.nesterov=False" in flags
    assert any(line.startswith("--config.run.metrics=") for line in flags)
    assert "clients that take part in a round; 0: all" in text
