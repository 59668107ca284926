"""Methods on the toy federation with transforms, and checks that these combinations work."""

import functools

import naive
import toys

from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import registry
from fedjax_lab.types import Failures, Method

KINDS = ("downlink", "attack", "aggregator", "compression")  # in the order of wrapping
# Backdoors need images (see test_backdoor.py), secure aggregation needs a model without BatchNorm
# (see test_secure.py), and FLTrust needs public examples (see test_defenses.py).
EVERY = [
    (kind, name)
    for kind in KINDS
    for name in registry.NAMED[kind]
    if name not in "none backdoor dba blended neurotoxin secure_sum fltrust".split()
]
SETTINGS = {"top_k": {"share": 0.25}, "random_k": {"share": 0.5}}  # toy updates are short
METHODS = [
    name
    for name in registry.METHODS
    if isinstance(method := toys.make(name), Method) and name not in ("central", "local")
]
# One method of each kind, for tests in which the formulas of the method do not matter.
DIFFERENT = ("fedavg", "fedbn", "fedc2i", "fediir", "hfedf", "ifca", "pfedhn", "scaffold")
ROUNDS = 7


def wrap(method, *transforms):
    """The method with transforms (kind, name). Raises BadInput if they cannot be combined."""
    for kind, name in transforms:
        method = registry.look_up(kind, name)(method, toys.NORM, **SETTINGS.get(name, {}))
    return method


def losses_of(method, attackers=0.0, dropout=0.0):
    """The training loss in the first round, and the mean of the later ones; all must be finite."""
    _, _, plan = toys.pooled(method)
    plan = plan._replace(cohort=toys.C, failures=Failures(attackers=attackers, dropout=dropout))
    play = toys.player(method, plan=plan)
    state, first = play(naive.KEYS, 0, 1)
    _, later = play(naive.KEYS, 1, ROUNDS - 1, state)
    assert int(first.diverged) == int(later.diverged) == -1
    return float(first.train_loss), float(later.train_loss) / (ROUNDS - 1)


@functools.cache
def plain_losses(name):
    """The losses of a method without transforms."""
    return losses_of(toys.make(name))


def check_sends(name, *transforms):
    """Checks that a client with all transforms sends the bytes that each of them gives alone."""
    of_kind = {each[0]: toys.bytes_of(wrap(toys.make(name), each)) for each in transforms}
    plain = toys.bytes_of(toys.make(name))
    up, down = (of_kind.get(kind, plain)[i] for i, kind in enumerate(("compression", "downlink")))
    assert toys.bytes_of(wrap(toys.make(name), *transforms)) == (up, down), name
    small = name in ("fd", "fedsa_lora") and ("compression", "low_rank") in transforms  # full rank
    small = small or name == "fedgkt"  # no transform changes its uploads
    fewer = (up < plain[0], down < plain[1])
    assert fewer == ("compression" in of_kind and not small, "downlink" in of_kind), name


def check_works(name, *transforms):
    """As `check_sends`; also checks that losses are finite, and fall if the plain method's fall."""
    check_sends(name, *transforms)
    attackers = 0.25 if any(kind == "attack" for kind, _ in transforms) else 0.0
    first, later = losses_of(wrap(toys.make(name), *transforms), attackers)
    if may_learn(name, transforms):
        before, after = plain_losses(name)
        assert later < first or after >= 0.8 * before


def may_learn(name, transforms):
    """Whether the loss should fall: not under attack, nor if an aggregator gets updates that are
    mostly 0, nor if prototypes, which are not updates, are compressed."""
    kinds, names = zip(*transforms, strict=True)
    sparse = {"top_k", "random_k"} & set(names)
    inexact = (
        name in "ds_fl fd fedgh fedgkt fedmd fedpac fedpcl fedproto fedtgp".split()
        and "compression" in kinds
    )
    return "attack" not in kinds and not inexact and not ("aggregator" in kinds and sparse)


def played(method, plan, **options):
    """The final state of each of two seeds after four rounds; `options`: of `toys.simulation`."""
    engine = Engine(toys.simulation(method, 4, plan._replace(rounds=4), **options))
    engine.compile()
    engine.play(4)
    return engine.final_states()
