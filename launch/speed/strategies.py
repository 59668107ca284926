"""Times local training of each model on a CPU, one by one, in chunks and all at once.

    python launch/speed/strategies.py [--models=mlp,char_lstm] [--batch=4,16,64] [--clients=10]
                                      [--side=16] [--seconds=3] [--cpu]

One line for each model and batch: the seconds of a step of all clients with each strategy, the
strategy that `auto` chooses, and by how much it is slower than the best one. The programs of a line
are compiled first, and then take turns. Exit code 1 if `auto` is slower by more than a tenth
anywhere. All clients take the same number of steps.

--models   names of the registry; default: all that are listed in SHAPES
--batch    examples of a step
--clients  in a round
--side     of the images in pixels; default: as listed in SHAPES
--seconds  that each program runs
--cpu      seconds of the processor instead of the clock, for a machine that does other work too
"""

import argparse
import sys
import time

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import benchmark
import numpy as np
from workloads import Workload

from fedjax_lab.engine.engine import Engine

SMALL, COLOR = (28, 28, 1), (32, 32, 3)
TEXT = (32,)
SHAPES = {  # of an example, and the number of classes or token ids
    **dict.fromkeys(("mlp", "lenet", "mcmahan_cnn", "simple_cnn"), (SMALL, 10)),
    **dict.fromkeys(
        ("hfedf_cnn", "pfl_cnn", "cct7", "vit", "resnet18", "mobilenet_v2"), (COLOR, 10)
    ),
    **dict.fromkeys(("fasttext", "text_cnn", "transformer"), (TEXT, 1000)),
    "word_lstm": ((20,), 80),
    "char_lstm": ((80,), 80),
}
STRATEGIES = "sequential", "chunked", "vectorized"
STEPS = 2  # of a client in a round
TOLERANCE = 1.1


def main() -> int:
    """Print the table; returns the exit code."""
    args = _parse()
    bad = []
    print(f"{'model':14}{'batch':>6}", *(f"{name:>16}" for name in STRATEGIES), " auto")
    for model in args.models:
        for batch in args.batch:
            name, ratio, seconds = time_all(model, batch, args)
            shown = [f"{seconds[n]:16.4g}" if n in seconds else f"{'':16}" for n in STRATEGIES]
            print(f"{model:14}{batch:6}", *shown, f" {name}, {ratio:.2f} x the best", flush=True)
            bad += [f"{model}, batch {batch}"] * (ratio > TOLERANCE)
    if bad:
        print("auto is more than a tenth slower than the best:", "; ".join(bad))
    return int(bool(bad))


def _parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=lambda s: s.split(","), default=list(SHAPES))
    parser.add_argument("--batch", type=lambda s: [*map(int, s.split(","))], default=[4, 16, 64])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--side", type=int)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


def time_all(model: str, batch: int, args) -> tuple[str, float, dict[str, float]]:
    """The choice of `auto`, its time relative to the best, and {strategy: seconds of a step}."""
    work = workload(model, batch, args.clients, args.side)
    names = {s: benchmark.build(work, s).strategy.name for s in (*STRATEGIES, "auto")}
    engines = {}
    for strategy, name in names.items():
        if name not in engines:
            engines[name] = Engine(benchmark.build(work, strategy))
            engines[name].compile()
    clock = time.process_time if args.cpu else time.perf_counter
    times = alternate([lambda e=e: e.play(1) for e in engines.values()], clock, args.seconds)
    seconds = dict(zip(engines, (t / STEPS for t in times), strict=True))
    chosen = names["auto"]
    ratio = seconds[chosen] / min(seconds.values())
    return chosen, ratio, {s: seconds[names[s]] for s in STRATEGIES}


def workload(model: str, batch: int, clients: int, side: int | None = None) -> Workload:
    """Random examples for a model, STEPS batches for each of its clients, all of which train.

    side: of the images in pixels; None: as listed in SHAPES.
    """
    shape, classes = SHAPES[model]
    if side and len(shape) == 3:
        shape = (side, side, shape[-1])
    rng, count = np.random.default_rng(0), clients * STEPS * batch
    x = rng.standard_normal((count, *shape), np.float32)
    if len(shape) == 1:
        x = rng.integers(1, classes, size=(count, *shape)).astype(np.float32)
    y = rng.integers(classes, size=count, dtype=np.int32)
    rows = np.split(np.arange(count, dtype=np.int32), clients)
    return Workload(
        x,
        y,
        rows,
        model=model,
        test=[rows[0]],
        cohort=clients,
        batch=batch,
        epochs=1,
        lr=0.01,
        classes=classes,
    )


def alternate(programs, clock, seconds: float) -> list[float]:
    """The least seconds of each program, all of which take turns; each runs for `seconds`."""
    times = [[] for _ in programs]
    while min(map(sum, times)) < seconds or len(times[0]) < 4:
        for run, of_program in zip(programs, times, strict=True):
            began = clock()
            run()
            of_program.append(clock() - began)
    return [min(of_program[1:]) for of_program in times]


if __name__ == "__main__":
    sys.exit(main())
