"""The plan of `device_day.py`: its steps, the most valuable ones first. Standard library only.

Each step is one command in a process of its own, so that a step that aborts does not affect the
others. Its results are the JSON objects that it prints, or the summaries of the runs in {runs}, a
placeholder in its command for a folder.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIKELY = ("grouped", "im2col")  # formulations of convolutions that may be best on an accelerator
UNLIKELY = ("unrolled", "mapped")
WIDTHS = {"A1": (8, 4, 16, 25), "W1": (5, 2), "W3": (5, 2)}  # {workload: clients per chunk}
PFL_CNN = ("--config.model.name=pfl_cnn", "--config.data.size=32", "--config.local.momentum=0.0")
MANY_CLIENTS = ("--config.partition.name=iid", "--config.partition.num_clients=50")
SWEEP = ("--grid=method.mu=0.001,0.003,0.01,0.03,0.1,0.3", "--nocompilation_cache")


class Goal(NamedTuple):
    """An upper limit for a figure of a step."""

    what: str
    at_most: float
    figure: Callable[[dict], float]  # computes the figure from the step's first JSON object


class Step(NamedTuple):
    """One command of the plan."""

    name: str
    group: str  # the table of the page to which the step belongs
    command: tuple[str, ...]  # the arguments of the Python interpreter
    goal: Goal | None = None
    environment: dict[str, str] = {}  # variables in addition to those of the caller


def plan(seconds: float) -> list[Step]:
    """All steps of the plan. seconds: minimum duration of a benchmark's measurement."""
    return [
        check(),
        *workloads(seconds),
        *formulations(LIKELY, seconds),
        *seeds(seconds),
        *models(seconds),
        *types(seconds),
        *sweeps(),
        *formulations(UNLIKELY, seconds),
        *tests(),
    ]


def check() -> Step:
    """The step that checks whether a device exists and computes the same as a CPU."""
    goal = Goal("train loss of a round, relative to a CPU's", 0.02, lambda line: line["difference"])
    return Step("check", "check", ("launch/speed/check_device.py",), goal)


def workloads(seconds: float) -> list[Step]:
    """Each workload with the default strategy, and the bound `central` of benchmark.py."""
    whole = Goal(
        "A1, 1,500 rounds with evaluations, seconds", 20, lambda line: line["total_seconds"]
    )
    scored = Goal("A2, a round and its evaluation, seconds", 0.5, seconds_of_a_scored_round)
    first = [
        benchmark("A1-whole", "workloads", seconds, "--workload=A1", "--whole", goal=whole),
        benchmark("A2", "workloads", seconds, "--workload=A2", goal=scored),
    ]
    names = [f"W{i}" for i in range(1, 6)]
    others = [benchmark(name, "workloads", seconds, f"--workload={name}") for name in names]
    bounds = [
        benchmark(f"{name}-central", "workloads", seconds, f"--workload={name}", strategy="central")
        for name in ("A1", "W1", "W2", "W4")  # in the others the cohorts' sizes differ by round
    ]
    return [*first, *others, *bounds]


def seconds_of_a_scored_round(line: dict) -> float:
    """Seconds of a round and the evaluation after it, from a line of benchmark.py."""
    return line["seconds_per_round"] + line["seconds_per_evaluation"]


def formulations(names: tuple[str, ...], seconds: float) -> list[Step]:
    """Every strategy with these formulations: the measurements by which `auto` can be set."""
    steps = []
    for name, (workload, widths) in itertools.product(names, WIDTHS.items()):
        ways = [("vectorized", 0), *(("chunked", width) for width in widths), ("sequential", 0)]
        for strategy, width in ways:
            flags = f"--workload={workload}", f"--convolution={name}", f"--chunk={width}"
            step = f"{workload}-{strategy}{width or ''}-{name}"
            steps.append(benchmark(step, "formulations", seconds, *flags, strategy=strategy))
    return steps


def benchmark(name, group, seconds, *flags, strategy="auto", goal=None) -> Step:
    """A step of benchmark.py."""
    command = "launch/speed/benchmark.py", f"--strategy={strategy}", f"--seconds={seconds:g}"
    return Step(name, group, (*command, *flags), goal)


def seeds(seconds: float) -> list[Step]:
    """Eight seeds in one vmapped computation, compared with one seed."""
    command = "launch/speed/sweep_speed.py", "--seeds=8", f"--seconds={seconds:g}"
    steps = []
    for name in ("cnn", "A1", "W2"):
        of_eight = Goal(f"{name}, a round of eight seeds over one of one", 3, seeds_over_one)
        steps.append(Step(f"seeds-{name}", "seeds", (*command, f"--workload={name}"), of_eight))
    return steps


def seeds_over_one(line: dict) -> float:
    """The time of a round of all seeds at once, relative to a round of one seed."""
    one, together = line["seconds_per_round"]
    return together / one


def models(seconds: float) -> list[Step]:
    """Large models with ten clients: default strategy, all at once, and one after another."""
    return [
        benchmark(f"{name}-{strategy}", "models", seconds, f"--workload={name}", strategy=strategy)
        for name in ("R18", "CCT")
        for strategy in ("auto", "vectorized", "sequential")
    ]


def types(seconds: float) -> list[Step]:
    """float32 and bfloat16: speed and memory of A1 and W1, and a run with its accuracy."""
    names = [(name, dtype) for name in ("A1", "W1") for dtype in ("float32", "bfloat16")]
    steps = [
        benchmark(f"{name}-{dtype}", "types", seconds, f"--workload={name}", f"--dtype={dtype}")
        for name, dtype in names
    ]
    for dtype in ("float32", "bfloat16"):
        flags = *PFL_CNN, *MANY_CLIENTS, f"--config.engine.dtype={dtype}", "--workdir={runs}"
        command = "-m", "fedjax_lab.main", "--config=configs/quickstart.py", *flags
        steps.append(Step(dtype, "types", command))
    return steps


def sweeps() -> list[Step]:
    """A sweep over six values of a setting, as one computation and one after another."""
    command = "-m", "fedjax_lab.sweep", "--config=configs/quickstart.py:fedprox", *SWEEP
    command = *command, "--out={runs}"
    return [
        Step("sweep-together", "sweep", (*command, "--together")),
        Step("sweep-one-by-one", "sweep", command),
    ]


def tests() -> list[Step]:
    """Each test file, on the device. Needs pytest, but none of its plugins."""
    command = "-m", "pytest", "-o", "addopts=", "--import-mode=importlib", "-q"
    files = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py"))
    environment = {"FEDJAX_LAB_TEST_DEVICE": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return [
        Step(
            ".".join(path.with_suffix("").parts),
            "tests",
            (*command, path.as_posix()),
            environment=environment,
        )
        for path in files
    ]
