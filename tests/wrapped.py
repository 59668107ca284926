"""Methods of the toy federation with transforms of their updates, and what a client then sends."""

import functools

import jax
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import registry
from fedjax_lab.engine import Engine, Simulation
from fedjax_lab.types import Method, Stage

KINDS = ("downlink", "attack", "aggregator", "compression")  # in the order of the wrapping
# The backdoor needs images (test_backdoor.py), and secure sums a model without BatchNorm
# (test_secure.py).
EVERY = [
    (kind, name)
    for kind in KINDS
    for name in registry.NAMED[kind]
    if name not in ("none", "backdoor", "secure_sum")
]
SETTINGS = {"top_k": {"share": 0.25}, "random_k": {"share": 0.5}}  # a toy's updates are short
METHODS = [
    name
    for name in registry.METHODS
    if isinstance(method := toys.make(name), Method) and name not in ("central", "local")
]
# One of each kind: what suffices where a transform meets the machinery, not the method's formulas.
DIFFERENT = ("fedavg", "fedbn", "fedc2i", "fediir", "hfedf", "ifca", "pfedhn", "scaffold")
ROUNDS = 7


def slow_but(fast, names):
    """Parameters of a test, which is slow for all names but these."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


def wrap(method, *transforms):
    """The method with named transforms (kind, name). BadInput where they do not go together."""
    for kind, name in transforms:
        method = registry.NAMED[kind][name](method, toys.NORM, **SETTINGS.get(name, {}))
    return method


def losses_of(method, attackers=0.0, dropout=0.0):
    """The training loss in the first round, and the mean of the later ones; all must be finite."""
    _, _, plan = toys.pooled(method)
    plan = plan._replace(cohort=toys.C, attackers=attackers, dropout=dropout)
    play = toys.player(method, plan=plan)
    state, first = play(naive.KEYS, 0, 1)
    _, later = play(naive.KEYS, 1, ROUNDS - 1, state)
    assert int(first.diverged) == int(later.diverged) == -1
    return float(first.train_loss), float(later.train_loss) / (ROUNDS - 1)


@functools.cache
def plain_losses(name):
    """Those of a method as it is."""
    return losses_of(toys.make(name))


def check_sends(name, *transforms):
    """A client of the method with these transforms sends as many bytes as each of them says."""
    of_kind = {each[0]: toys.bytes_of(wrap(toys.make(name), each)) for each in transforms}
    plain = toys.bytes_of(toys.make(name))
    up, down = (of_kind.get(kind, plain)[i] for i, kind in enumerate(("compression", "downlink")))
    assert toys.bytes_of(wrap(toys.make(name), *transforms)) == (up, down), name
    small = name == "fd" and ("compression", "low_rank") in transforms  # [K, K] has full rank
    fewer = (up < plain[0], down < plain[1])
    assert fewer == ("compression" in of_kind and not small, "downlink" in of_kind), name


def check_works(name, *transforms):
    """As `check_sends`; it also stays finite, and learns where the plain method does."""
    check_sends(name, *transforms)
    attackers = 0.25 if any(kind == "attack" for kind, _ in transforms) else 0.0
    first, later = losses_of(wrap(toys.make(name), *transforms), attackers)
    before, after = plain_losses(name)
    if may_learn(name, transforms) and after < 0.8 * before:
        assert later < first


def may_learn(name, transforms):
    """Not under attack, nor where an aggregator looks at updates that are 0 nearly everywhere, nor
    where prototypes, which are no changes of anything, are sent inexactly."""
    kinds, names = zip(*transforms, strict=True)
    sparse = {"top_k", "random_k"} & set(names)
    inexact = name in ("fd", "fedgh", "fedpac", "fedproto") and "compression" in kinds
    return "attack" not in kinds and not inexact and not ("aggregator" in kinds and sparse)


def played(method, plan, federation=toys.FEDERATION, strategy=toys.VECTORIZED, **options):
    """The final state of each of two seeds after four rounds; options: of `Simulation`."""
    federation = jax.tree.map(np.asarray, federation)
    simulation = Simulation(
        seeds=[0, 1],
        federations=[federation] * 2,
        training=[federation] * 2,
        num_classes=toys.K,
        stages=(Stage("train", method, 4),),
        plan=plan._replace(rounds=4),
        strategy=strategy,
        **options,
    )
    engine = Engine(simulation)
    engine.compile()
    engine.play(4)
    return engine.final_states()
