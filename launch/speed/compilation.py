"""Counts the programs that a task compiles, and says where the seconds of their compilation go.

    python launch/speed/compilation.py TASK[,TASK...] [--programs=15] [--cache]

TASK is one of

  quickstart  two rounds of configs/quickstart.py, with one evaluation
  check       check_method("fedavg")
  quick       check_method("fedavg", level="quick")
  methods     two rounds of the quickstart's config with each of ten methods
  first       the command of the quickstart in a process of its own, with an empty cache and again:
              the seconds until it compiles, and until the row of its first evaluation

One line for each task: the number of programs, of lines of their StableHLO, the seconds of tracing,
of lowering and of XLA, and all seconds, by the clock and of the processor. Then the programs with
the most seconds. Tracing includes that of functions inside of a program. With --cache the user's
cache of compiled programs is used, so that a second run shows what a warm start costs.
"""

import argparse
import compileall
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import jax
import psutil

METHODS = (
    *("fedavg", "fedprox", "scaffold", "fedavgm", "fednova"),
    *("feddyn", "ditto", "fedbn", "fedper", "apfl"),
)
EVENTS = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "XLA",
}


def main() -> None:
    """Do the tasks of the command line and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=lambda s: s.split(","))
    parser.add_argument("--programs", type=int, default=15)
    parser.add_argument("--cache", action="store_true")
    args = parser.parse_args()
    for name in args.tasks:
        with TemporaryDirectory() as folder:
            first(Path(folder)) if name == "first" else count(name, args, Path(folder))


def count(name: str, args, folder: Path) -> None:
    """Do a task, and print what it compiled."""
    seconds: dict[str, Counter] = defaultdict(Counter)
    number: Counter = Counter()

    def listen(event, duration, fun_name="", **_):
        if (kind := EVENTS.get(event.rsplit("/", 1)[-1])) is not None:
            seconds[kind][fun_name] += duration
            number[fun_name] += kind == "XLA"

    jax.monitoring.register_event_duration_secs_listener(listen)
    (folder / "ir").mkdir()
    jax.config.update("jax_dump_ir_to", str(folder / "ir"))
    began = time.perf_counter(), time.process_time()
    TASKS[name](folder, args.cache)
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    jax.monitoring.clear_event_listeners()
    lines = defaultdict(list)
    for path in (folder / "ir").rglob("*compile.mlir"):
        lines[path.name].append(len(path.read_text().splitlines()))
    total = sum(sum(each) for each in lines.values())
    spent = ", ".join(f"{kind} {of.total():.1f} s" for kind, of in seconds.items())
    print(
        f"{name}: {number.total()} programs, {total} lines, {spent};"
        f" in all {took[0]:.1f} s, of the processor {took[1]:.1f} s"
    )
    for program, of_xla in seconds["XLA"].most_common(args.programs):
        others = " ".join(f"{seconds[kind][program]:6.2f}" for kind in ("trace", "lower"))
        print(f"  {number[program]:3} x {program[:50]:50} {others} {of_xla:6.2f}")


def first(folder: Path) -> None:
    """Print the seconds of the quickstart's command, cold and warm."""
    package = Path(__file__).parents[2] / "fedjax_lab"
    compileall.compile_dir(package, quiet=1)  # as an installer does
    env = {**os.environ, "FEDJAX_LAB_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
    for name in ("cold", "warm"):
        words = ["--config=quickstart", "--config.run.rounds=2", f"--workdir={folder / name}"]
        command = [sys.executable, "-u", "-m", "fedjax_lab.main", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        began, marks = time.perf_counter(), {}
        with subprocess.Popen(command, cwd=package.parent, env=env, **pipes) as run:
            for line in run.stdout:
                for mark in (" compiling", " accuracy "):
                    if mark in line and mark not in marks:
                        took = time.perf_counter() - began
                        times = psutil.Process(run.pid).cpu_times()
                        marks[mark] = f"{took:.1f} s (of the processor {sum(times[:2]):.1f} s)"
        compiling, evaluated = marks[" compiling"], marks[" accuracy "]
        print(f"{name}: compiles after {compiling}, is evaluated after {evaluated}", flush=True)


def _command(folder, cache, *words):
    """A run of the quickstart by the command, in a process of its own flags."""
    from absl import flags

    from fedjax_lab import main as command

    flags.FLAGS.unparse_flags()
    words = [
        "main",
        "--config=quickstart",
        "--config.run.rounds=2",
        f"--workdir={folder / 'run'}",
        *words,
    ]
    command.main([*words, *["--nocompilation_cache"] * (not cache)])


def _methods(folder, cache):
    import fedjax_lab
    from configs.quickstart import get_config

    for method in METHODS:
        config = get_config(method)
        config["run"] = {"rounds": 2, "eval_every": 2}
        fedjax_lab.run(config, workdir=folder / method)


def _check(**settings):
    def check(folder, cache):
        from fedjax_lab.testing import check_method

        check_method("fedavg", **settings)

    return check


TASKS = {
    "quickstart": _command,
    "check": _check(),
    "quick": _check(level="quick"),
    "methods": _methods,
}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
