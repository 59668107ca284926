"""Times seeds in one vmapped computation against seeds one after another; prints JSON lines.

    python launch/speed/sweep_speed.py [--workload=W2,cnn] [--seeds=2,4,8] [--seconds=5]
                                       [--rounds=200]

There is a line for each number of seeds n. `ratio` is n times the seconds of a round of one seed,
divided by the seconds of a round of n seeds in one vmapped computation; both are medians over
blocks of about a second, without compilation and evaluation. `ratio_of_runs` is the same for whole
runs of --rounds rounds including compilation. Lists of two numbers are for one seed and for n seeds
at once. The blocks alternate, so that other work on the machine affects all of them alike; `load`
is the machine's load average over the last minute. The workloads are those of workloads.py, and
`cnn`: 20 clients of 64 28x28 images, 10 clients per round, batches of 32, simple_cnn.
"""

import argparse
import json
import os

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import benchmark
import jax
import numpy as np
from workloads import Workload, load

from fedjax_lab.engine.engine import Engine

SMALL_CNN = "cnn"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default=f"W2,{SMALL_CNN}")
    parser.add_argument("--seeds", default="2,4,8", help="numbers of seeds computed at once")
    parser.add_argument("--seconds", type=float, default=5, help="minimum seconds for each number")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of a whole run")
    args = parser.parse_args()
    for name in args.workload.split(","):
        work = small_cnn() if name == SMALL_CNN else load(name)
        counts = [int(n) for n in args.seeds.split(",")]
        for line in compare(work, counts, args.seconds, args.rounds):
            print(json.dumps({"workload": name, **line}), flush=True)


def small_cnn() -> Workload:
    """The workload `cnn`: W4 with fewer images, clients per round and epochs, and simple_cnn."""
    work = load("W4")
    rows = [client_rows[:64] for client_rows in work.rows]
    return work._replace(rows=rows, cohort=10, epochs=1, model="simple_cnn")


def compare(work: Workload, counts: list[int], seconds: float, rounds: int) -> list[dict]:
    """The values of the JSON lines, one for each number of seeds in `counts`."""
    engines = {n: engine(work, n) for n in (1, *counts)}
    paces = {n: [] for n in engines}
    for running in engines.values():
        for _ in range(3):
            running.play(10**6)
    while len(paces[1]) < 3 or engines[1].session.seconds < seconds:
        for n, running in engines.items():
            paces[n].append(benchmark.play_block(running, 10**6))
    pace = {n: float(np.median(paces[n])) for n in engines}
    compiled = {n: running.compile_seconds for n, running in engines.items()}
    whole = {n: compiled[n] + rounds * pace[n] for n in engines}
    return [
        {
            "seeds": n,
            "ratio": round(n * pace[1] / pace[n], 2),
            "ratio_of_runs": round(n * whole[1] / whole[n], 2),
            "seconds_per_round": [float(f"{pace[i]:.3g}") for i in (1, n)],
            "compile_seconds": [round(compiled[i], 1) for i in (1, n)],
            "strategy": engines[n].simulation.strategy.name,
            "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
            "load": round(os.getloadavg()[0], 1),
        }
        for n in counts
    ]


def engine(work: Workload, seeds: int) -> Engine:
    """A compiled engine that runs the given number of seeds of a workload in one computation."""
    one = benchmark.build(work, "auto", "auto", 0)
    each = [one.seeds[0]._replace(number=number) for number in range(seeds)]
    together = Engine(one._replace(seeds=each, vectorized_seeds=True))
    together.compile()
    return together


if __name__ == "__main__":
    main()
