"""Every method and every transform compiles for TPU chips and for a GPU.

In CI, methods of each kind take turns with the devices, and all transforms are compiled: some are
carried by a method here, and test_transforms.py has the others.
"""

import absent
import optional
import pytest

from fedjax_lab.experiment import registry

pytestmark = [pytest.mark.compilers, pytest.mark.usefixtures("as_users_compile")]

CARRIED = {
    "fedavgm": ("privacy", {"name": "adaptive", "noise": 0.1}),
    "fedbabu": ("compression", {"name": "qsgd"}),
    "fedcm": ("aggregator", {"name": "norm_bound"}),
    "feddisco": ("attack", {"name": "gaussian"}),
    "feddyn": ("compression", {"name": "low_rank"}),
    "fedexp": ("downlink", {"name": "qsgd"}),
    "fedlc": ("attack", {"name": "label_flip"}),
    "fedntd": ("compression", {"name": "random_k"}),
    "fedopt": ("privacy", {"name": "central", "noise": 0.1}),
    "fedprox": ("privacy", {"name": "example_level", "noise": 0.1}),
    "fedrs": ("attack", {"name": "sign_flip"}),
    "fedsam": ("compression", {"name": "sign"}),
    "moon": ("compression", {"name": "top_k"}),
    "scaffold": ("privacy", {"name": "local", "noise": 0.1}),
}
# With stages, validation rows, several models, one client at a time, and scores of its own.
KINDS = ("fedconcat", "fedfomo", "ifca", "hfedf", "knn_per")
BOTH = ("fedavg", "fediir")  # a plain one, and several exchanges


@pytest.mark.parametrize(
    ("kind", "name"), absent.in_turn(sorted(registry.METHODS), [*CARRIED, *KINDS], BOTH)
)
def test_every_method_compiles(tmp_path, small_network, kind, name):
    sections = {"local": {"batch_size": 8}}
    if name == "fedfomo":
        sections["partition"] = {"validation": 0.2}
    if name in CARRIED:
        section, settings = CARRIED[name]
        if section == "privacy":
            optional.module("dp_accounting")
        sections[section] = settings
    devices = absent.devices(kind)
    for engine in absent.engines(absent.config_of(tmp_path, name, **sections), devices):
        (programs,) = engine.lower().values()
        assert programs.play.compile().as_text()
        assert programs.score.compile().as_text()
