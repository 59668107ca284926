"""Whether the stated epsilon is true: a lower bound from canaries.

The settings of config.privacy and the numbers of clients and rounds of the run are those of an
audit by many runs and of one by a single run, which train a linear model on canaries instead of the
run's model on its data: see `auditing.canaries`. If a bound is above the epsilon that the
accountant states for the same delta, the mechanism or the accountant has an error.
"""

from typing import Annotated

from fedjax_lab.auditing import canaries
from fedjax_lab.auditing.findings import Findings
from fedjax_lab.auditing.target import Target
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.transforming import make_setup
from fedjax_lab.ranges import Within, checked


@checked("attack")
def epsilon(target: Target, *, runs: Annotated[int, Within(100)] = 2000) -> Findings:
    """Bounds the epsilon of a private run from below.

    runs: the number of runs with one canary; more of them give a higher bound.
    """
    config, seeds = target.run.config, target.run.experiment.simulation.seeds
    setup = make_setup(config, [seed.federation for seed in seeds])
    if setup is None:
        raise BadInput("the run states no epsilon to audit: it has no section config.privacy")
    privacy = config.privacy.to_dict()
    bounds = [
        canaries.many_runs(privacy, setup, runs, target.seed),
        canaries.one_run(privacy, setup, target.seed),
    ]
    rows = [
        {
            "audit": bound.audit,
            "stated_epsilon": bound.stated,
            "lower_bound": bound.lower,
            "delta": bound.delta,
            "claim": "refuted" if bound.lower > bound.stated else "holds",
        }
        for bound in bounds
    ]
    remarks = [f"The epsilons are those after all {setup.rounds} rounds of the run."]
    if config.privacy.name in ("local", "example_level"):
        remarks.append("They are those of a client that takes part in all of these rounds.")
    return Findings(rows, remarks=remarks)
