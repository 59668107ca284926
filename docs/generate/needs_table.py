"""Writes to docs/transforms.md which methods do not have what transforms need.

python docs/generate/needs_table.py
"""

import math
from pathlib import Path

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import clocks, registry
from fedjax_lab.experiment.transforming import TRANSFORMS
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation.needs import NEEDS
from fedjax_lab.testing.toy import toy_method, toy_task
from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Method

PAGE = Path(__file__).parents[1] / "transforms.md"
BEGIN, END = "<!-- needs -->\n", "<!-- end needs -->\n"
SETUP = Setup(num_clients=40, cohort=4, rounds=12, sizes=(10,) * 40, batch_size=8, epochs=1)
TASK = toy_task()._replace(batch_norms=())
PLAIN = fedavg(TASK)
LACKING = {  # FedAvg without what a transform may need
    "all_at_once": PLAIN.having(one_by_one=True),
    "common_update": PLAIN._replace(round=(PLAIN.round[0]._replace(alike=False),)),
    "first_state": PLAIN._replace(init=None),
    "one_exchange": PLAIN._replace(round=2 * PLAIN.round),
    "idle_server": PLAIN.having(alone=lambda server, split: server),
    "any_clients": PLAIN._replace(sample=lambda *args: args),
}


def written(page: str) -> str:
    """The page with the table of what methods lack."""
    rows = [f"| {refusing(need)} | {lacking(need)} | {NEEDS[need].reason} |" for need in LACKING]
    table = "\n".join(["| what | with what | why |", "|---|---|---|", *rows, ""])
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table + END + rest.partition(END)[2]


def lacking(need: str) -> str:
    """The names of the methods with a stage that does not meet a need."""
    made = {name: toy_method(name) for name in sorted(registry.METHODS)}
    stages = {
        name: [method] if isinstance(method, Method) else [stage.method for stage in method(9)]
        for name, method in made.items()
    }
    holds = NEEDS[need].holds
    return _listed(name for name, methods in stages.items() if not all(map(holds, methods)))


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
    return "; ".join(each + ["`clock.concurrency`"] * (need in clocks.OF_ASYNCHRONOUS))


def _refuses(section, transform, need):
    settings = {"epsilon": math.inf} if "epsilon" in registry.keyword_defaults(transform) else {}
    takes = (SETUP,) if section == "privacy" else ()
    try:
        transform(LACKING[need], TASK, *takes, **settings)
    except BadInput as error:
        return NEEDS[need].reason in str(error)
    return False


def _listed(names):
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
