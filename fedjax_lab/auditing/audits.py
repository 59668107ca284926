"""Runs an attack on a run."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab import defaults
from fedjax_lab.auditing import attacks, findings
from fedjax_lab.auditing.findings import Findings
from fedjax_lab.auditing.target import make_target, untrained
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.experiment import references
from fedjax_lab.experiment.config import settings_of
from fedjax_lab.running import loading
from fedjax_lab.running.storage import cloud


def names() -> list[str]:
    """The names of all attacks."""
    return [each.name for each in pkgutil.iter_modules(attacks.__path__) if each.name[0] != "_"]


def look_up(attack: str) -> Callable[..., Findings]:
    """The function of an attack: (target, settings) -> findings. Raises BadInput if unknown."""
    return getattr(_module(attack), attack)


def drawer(attack: str) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]] | None:
    """The function of an attack that draws its arrays; None if it has no pictures."""
    return getattr(_module(attack), "pictures", None)


def _module(attack):
    if attack not in names():
        raise BadInput(f"no attack {quoted(attack)}; {nearest(attack, names())}")
    return importlib.import_module(f"{attacks.__name__}.{attack}")


@defaults.restored()
def audit(
    run: str | Path | loading.Run,
    attack: str,
    rounds: int | None,
    seed: int | None,
    trust: bool,
    given: Mapping[str, Any],
) -> Findings:
    """What an attack finds: see `fedjax_lab.audit`. Every row gets the keys of `findings.ROW`.

    given: settings of the attack; those that are text are read as those of a config.
    """
    function = look_up(attack)
    settings = settings_of("attack.", function, given)
    if isinstance(run, loading.Run):
        if rounds not in (None, 0, run.rounds):
            raise BadInput(
                f"the run is one after {run.rounds} rounds; load it with rounds={rounds}"
            )
        run = untrained(run.experiment, run.folder) if rounds == 0 else run
        return _attacked(run, seed, function, settings)
    with cloud.staged(run) as folder:
        with references.trusting(trust):
            begun = rounds != 0
            loaded = (
                loading.load(folder, rounds) if begun else untrained(loading.build(folder), folder)
            )
            result = _attacked(loaded, seed, function, settings)
        findings.write(folder, attack, result)
    return result


def _attacked(run, seed, function, settings):
    target = make_target(run, seed)
    same = {
        "attack": function.__name__,
        "settings": settings,
        "seed": target.seed,
        "round": target.round,
    }
    result = function(target, **settings)
    return result._replace(rows=[same | row for row in result.rows])
