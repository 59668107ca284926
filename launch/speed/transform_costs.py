"""Times rounds with each transform against plain FedAvg, in alternating blocks of one process.

    python launch/speed/transform_costs.py [--workload=W2] [--rounds=50] [--pairs=10]
        [--transforms=privacy.central:sampling=fixed,compression.top_k,...]

Prints one JSON line for each transform: its name, the milliseconds of a plain round (`plain_ms`)
and of a round with the transform (`ms`), and the median, lowest and highest ratio over pairs of
blocks. A pair is --rounds rounds without and with the transform. Compilation is not included.
"""

import argparse
import json

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import numpy as np
from benchmark import build, make_model, play_block
from workloads import load

from fedjax_lab.engine.engine import Engine, Simulation
from fedjax_lab.experiment.registry import bind, keyword_defaults, look_up
from fedjax_lab.transforms.guarantee import Setup

TRANSFORMS = (
    "privacy.central:noise=1:sampling=fixed,privacy.central:noise=1,privacy.adaptive:noise=1,"
    "privacy.local:noise=1,attack.sign_flip,aggregator.median,aggregator.krum,"
    "aggregator.centered_clipping,aggregator.norm_bound,aggregator.secure_sum,compression.top_k,"
    "compression.qsgd,compression.sign,compression.low_rank,downlink.qsgd"
)


def main():
    args = _parse()
    work = load(args.workload)
    plain = build(work)
    engine = Engine(plain)
    engine.compile()
    for spec in args.transforms.split(","):
        timed = Engine(transformed(plain, work, spec))
        ratios, times = compare(engine, timed, args.rounds, args.pairs)
        print(
            json.dumps(
                {
                    "transform": spec,
                    "plain_ms": round(times[0], 4),
                    "ms": round(times[1], 4),
                    "ratio": round(float(np.median(ratios)), 3),
                    "lowest": round(min(ratios), 3),
                    "highest": round(max(ratios), 3),
                }
            ),
            flush=True,
        )


def _parse():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--workload", default="W2")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--transforms", default=TRANSFORMS)
    return parser.parse_args()


def transformed(plain: Simulation, work, spec: str) -> Simulation:
    """The simulation `plain` with the transform `spec`, SECTION.NAME[:KEY=VALUE...]."""
    named, *settings = spec.split(":")
    section, name = named.split(".")
    given = {key: number(value) for key, _, value in (s.partition("=") for s in settings)}
    task = make_model(work)
    sizes = tuple(len(rows) for rows in work.rows)
    setup = Setup(len(sizes), work.cohort, 10**3, sizes, work.batch, work.epochs)
    takes = (task, setup) if section == "privacy" else (task,)
    (stage,) = plain.stages
    config = {"name": name, **keyword_defaults(look_up(section, name)), **given}
    method = bind(section, config)(stage.method, *takes)
    plan = plain.plan._replace(attackers=0.2 if section == "attack" else 0.0)
    return plain._replace(stages=(stage._replace(method=method),), plan=plan)


def number(text: str):
    """The value of a setting: a float if the text is a number, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def compare(plain: Engine, timed: Engine, rounds: int, pairs: int):
    """The ratios of all pairs, and the median milliseconds of a round for both engines."""
    timed.compile()
    for engine in (plain, timed):
        play_block(engine, rounds)
    each = [(play_block(plain, rounds), play_block(timed, rounds)) for _ in range(pairs)]
    a, b = np.array(each).T
    return (b / a).tolist(), (1e3 * np.median(a), 1e3 * np.median(b))


if __name__ == "__main__":
    main()
