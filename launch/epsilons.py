"""Audits the stated epsilon of each privacy transform: the second table of docs/audit.md.

    python launch/epsilons.py [RUNS]

For each transform it prints the epsilon of the accountant beside the lower bounds of an audit with
RUNS runs (20,000) and of one with a single run, and the bound of a copy with half of the noise,
which must be above the stated epsilon.
"""

import sys
from unittest import mock

from fedjax_lab.auditing import canaries
from fedjax_lab.transforms import privacy
from fedjax_lab.transforms.guarantee import Setup

SETUP = Setup(1000, 1000, 1, sizes=(1000,) * 1000, batch_size=200, epochs=1)
SAMPLED = SETUP._replace(cohort=200, rounds=10)
FEW = SETUP._replace(num_clients=50, cohort=50)  # of audits with many runs, to be fast
FEW_SAMPLED = SAMPLED._replace(num_clients=50, cohort=10)
COMMON = {"clip": 1.0, "noise": 1.0, "epsilon": 0.0, "delta": 0.01}
POISSON = {"sampling": "poisson", "capacity": 0}
FIXED = {"sampling": "fixed", "capacity": 0}
ADAPTIVE = {"quantile": 0.5, "clip_lr": 0.2, "count_noise": 0.2}
ROWS = {  # title: (section of the config, setups of audits with one and with many runs)
    "central": ({"name": "central", **POISSON}, SETUP, FEW),
    "central, Poisson sampling": ({"name": "central", **POISSON}, SAMPLED, FEW_SAMPLED),
    "central, fixed cohorts": ({"name": "central", **FIXED, "noise": 2.0}, SAMPLED, FEW_SAMPLED),
    "adaptive": ({"name": "adaptive", **ADAPTIVE, **POISSON}, SAMPLED, FEW_SAMPLED),
    "banded": ({"name": "banded", "bands": 4}, SAMPLED, FEW_SAMPLED),
    "local": ({"name": "local", "noise": 2.0}, SETUP, FEW),
    "example_level": ({"name": "example_level"}, SETUP, FEW),
}


def halved(update, key, std, add=privacy.with_noise):
    """Adds half of the noise: an error that an audit must find."""
    return add(update, key, std / 2)


def main(runs: int) -> None:
    """Prints the table in Markdown."""
    print("| | stated | many runs | half of the noise | stated, small delta | one run |")
    print("|---|---:|---:|---:|---:|---:|")
    for title, (section, setup, few) in ROWS.items():
        section = COMMON | section
        one, many = canaries.one_run(section, setup), canaries.many_runs(section, few, runs)
        with mock.patch.object(privacy, "with_noise", halved):
            half = canaries.many_runs(section, few, runs)
        numbers = many.stated, many.lower, half.lower, one.stated, one.lower
        print(f"| {title} | {' | '.join(f'{x:.2f}' for x in numbers)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 20_000)
