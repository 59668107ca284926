"""Writes to pages which methods do not fit a transform, a task, or clients with unlike nets.

python docs/generate/unfit_methods.py
"""

import math
import textwrap
from functools import partial
from pathlib import Path

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import checks, clocks, devices, experiment, registry, transforming
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.transforming import TRANSFORMS
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.models.unlike import mixed_task
from fedjax_lab.simulation.needs import NEEDS, Unmet
from fedjax_lab.testing.toy import D, K, toy_method, toy_task
from fedjax_lab.transforms import kinds, latest_losses
from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Method, Stage

DOCS = Path(__file__).parents[1]
BEGIN, END = "<!-- methods -->\n", "<!-- end methods -->\n"
SETUP = Setup(num_clients=40, cohort=4, rounds=12, sizes=(10,) * 40, batch_size=8, epochs=1)
TASK = toy_task()._replace(batch_norms=())
PLAIN = fedavg(TASK)
DECLARED = {  # what has needs besides the transforms of an upload
    "`clock.concurrency`": clocks.ASYNCHRONOUS_NEEDS,
    "`clock.over_selection`, `clock.deadline`": clocks.LATE_NEEDS,
    "`engine.fsdp`": devices.FSDP_NEEDS,
    "`engine.state=host` or `disk`, `engine.data=stream`": devices.HOST_NEEDS,
    "`model.kinds`": kinds.NEEDS,
    "`method.base`": registry.BASE_NEEDS,
    "`partition.feature_skew`": checks.SKEW_NEEDS,
    "every transform": transforming.UPLOAD_NEEDS,
    "every `privacy`": transforming.PRIVACY_NEEDS,
    "a sampling by losses": latest_losses.NEEDS,
}
LACKING = {  # FedAvg without what another part may need
    "one_stage": (),
    "plain": (Stage("first", PLAIN, 1), Stage("second", PLAIN, 1)),
    "examples": (Stage("train", PLAIN, 1, embeddings=tuple),),
    "clients": PLAIN.having(pooled=True),
    "no_turns": PLAIN.having(one_by_one=True),
    "all_at_once": PLAIN.having(one_by_one=True),
    "common_update": PLAIN._replace(round=(PLAIN.round[0]._replace(alike=False),)),
    "first_state": PLAIN._replace(init=None),
    "first_model": PLAIN._replace(predict=None),
    "one_exchange": PLAIN._replace(round=2 * PLAIN.round),
    "any_clients": PLAIN._replace(sample=lambda *args: args),
}


def needs_table() -> str:
    """The table of docs/transforms.md: what methods lack for transforms."""
    rows = [f"| {refusing(need)} | {lacking(need)} | {NEEDS[need].reason} |" for need in LACKING]
    return "\n".join(["| what | with what | why |", "|---|---|---|", *rows])


def users_of_classes() -> str:
    """The list of docs/tasks.md: the methods that refuse examples without classes."""
    return _wrapped(filter(_needs_classes, sorted(registry.METHODS)))


def methods_for_unlike_nets() -> str:
    """The list of docs/unlike_clients.md: the methods that unlike nets can use."""
    return _wrapped(filter(_fits_unlike_nets, sorted(registry.METHODS)))


WRITTEN = {
    "transforms.md": needs_table,
    "tasks.md": users_of_classes,
    "unlike_clients.md": methods_for_unlike_nets,
}


def listed(page: str) -> str:
    """What is between the marks of a page."""
    return (DOCS / page).read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def _needs_classes(name):
    """Whether a run with numbers as labels is refused because the method needs classes."""
    sections = {
        "data": {"name": "hospitals"},
        "task": {"name": "regression"},
        "model": {"name": "mlp", "width": 8},
        "partition": {"name": "by_client", "num_clients": 0, "validation": 0.25, "public": 0.1},
        "method": {"name": name},
    }
    try:
        experiment.build(resolve(sections), [0])
    except BadInput as error:
        return "one class per example" in str(error)
    return False


def _fits_unlike_nets(name):
    each = [make_task(nets.mlp(K, width=width), (D,), K) for width in (4, 6)]
    try:
        kinds.mixed_method(partial(registry.make_method, name), mixed_task(each))
    except BadInput:
        return False
    return True


def lacking(need: str) -> str:
    """The names of the methods with a stage that does not meet a need."""
    made = {name: toy_method(name) for name in sorted(registry.METHODS)}
    stages = {
        name: (Stage(name, method, 9),) if isinstance(method, Method) else method(9)
        for name, method in made.items()
    }
    return _listed(name for name, each in stages.items() if not NEEDS[need].holds(each))


def refusing(need: str) -> str:
    """The transforms that refuse a method only because it does not meet a need."""
    refused = {
        section: [
            name
            for name in registry.NAMED[section]
            if _refuses(section, registry.look_up(section, name), need)
        ]
        for section in TRANSFORMS
    }
    each = [f"{section} {_listed(names)}" for section, names in refused.items() if names]
    return "; ".join(each + [what for what, needs in DECLARED.items() if need in needs])


def _refuses(section, transform, need):
    settings = {"epsilon": math.inf} if "epsilon" in registry.keyword_defaults(transform) else {}
    takes = (SETUP,) if section == "privacy" else ()
    if not isinstance(LACKING[need], Method):
        return False
    try:
        transform(LACKING[need], TASK, *takes, **settings)
    except Unmet as error:
        return error.need == need
    except BadInput:
        pass
    return False


def _listed(names):
    return ", ".join(f"`{name}`" for name in names)


def _wrapped(names):
    return textwrap.fill(_listed(names), 120)


if __name__ == "__main__":
    for page, function in WRITTEN.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        text = before + BEGIN + function() + "\n" + END + rest.partition(END)[2]
        (DOCS / page).write_text(text, encoding="utf-8")
