"""Measures this machine's device in ten minutes, the most valuable steps first; prints a table.

    python launch/speed/device.py [--out=device] [--total=600] [--only=A1,methods,...] [--list]

Each step is a process of its own, which writes its JSON lines to OUT/STEP.jsonl and everything that
it prints on stderr to OUT/STEP.log. A step that crashes or runs out of time is a line of the table,
and the next one starts. A step whose file exists is not repeated: remove it to repeat one. The last
two measure no time and run beside each other: all methods on the device and on a CPU, and the fast
tests on the device. PyTorch's loop runs if torch is installed. The language models need the extra
`llm`.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

SPEED = Path(__file__).parent
ROOT = SPEED.parents[1]
# On machines without a known cache size, scipy and scikit-learn crash at import without these.
ENVIRONMENT = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512"}


class Step(NamedTuple):
    """One command: the arguments of the Python interpreter, and its longest duration in seconds."""

    name: str
    command: tuple[str, ...]
    limit: int
    timed: bool = True  # measures time, so that nothing may run beside it
    environment: dict[str, str] = {}


def benchmark(name: str, *flags: str, limit: int = 90, **environment: str) -> Step:
    """A step of benchmark.py, whose name begins with that of its workload."""
    workload = name.split("-")[0]
    command = (
        "launch/speed/benchmark.py",
        f"--workload={workload}",
        "--strategy=auto",
        "--seconds=3",
    )
    return Step(name, (*command, *flags), limit, environment=environment)


def language(model: str, strategies: str, limit: int = 150) -> Step:
    """A step of language_speed.py."""
    command = "launch/speed/language_speed.py", f"--model={model}", f"--strategy={strategies}"
    return Step(model, command, limit)


def steps() -> list[Step]:
    """All steps, the most valuable ones first."""
    torch = [
        Step(f"{name}-torch", ("launch/speed/peer_torch.py", f"--workload={name}", "--device"), 60)
        for name in ("A1", "W1", "W2")
        if importlib.util.find_spec("torch")
    ]
    seeds = ("launch/speed/sweep_speed.py", "--seeds=8", "--seconds=4", "--workload=A1,W2")
    tests = ("-m", "pytest", "-n12", "-v", "--durations=10")
    beside = {"FEDJAX_LAB_TEST_DEVICE": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return [
        Step("facts", ("launch/speed/check_device.py", "--facts"), 60),
        *(benchmark(name) for name in ("A1", "A2", "W1", "W4", "W2")),
        language("smollm2", "vectorized,sequential"),
        *(benchmark(f"{name}-im2col", "--convolution=im2col") for name in ("A1", "A2", "W1")),
        benchmark("A2-chunk", "--strategy=chunked", "--chunk=20"),
        *(
            benchmark(f"{name}-graphs", XLA_FLAGS="--xla_gpu_enable_command_buffer=+WHILE")
            for name in ("W1", "A1", "W2")
        ),
        *(benchmark(f"{name}-bfloat16", "--dtype=bfloat16") for name in ("A1", "W1")),
        *(benchmark(f"{name}-central", "--strategy=central") for name in ("A1", "W1", "W2")),
        *(benchmark(name) for name in ("W3", "W5")),
        benchmark("A2-bfloat16", "--dtype=bfloat16"),
        benchmark("W4-im2col", "--convolution=im2col"),
        *(benchmark(f"{name}-grouped", "--convolution=grouped") for name in ("A1", "W1")),
        language("tinyllama", "vectorized"),
        benchmark("A1-whole", "--whole", limit=120),
        Step("seeds", seeds, 120),
        *torch,
        language("mistral", "vectorized"),
        Step("methods", ("launch/speed/check_device.py", "--methods"), 240, False, beside),
        Step("tests", tests, 400, False, beside),
    ]


def run(step: Step, out: Path, seconds: float) -> None:
    """Runs a step unless it has a result; its result gets its name when the step has ended."""
    result = out / f"{step.name}.jsonl"
    if result.exists():
        return
    paths = os.pathsep.join([str(ROOT), str(SPEED), os.environ.get("PYTHONPATH", "")])
    environment = {**ENVIRONMENT, **os.environ, "PYTHONPATH": paths, **step.environment}
    started = time.monotonic()
    with open(out / f"{step.name}.log", "w") as log, open(out / f"{step.name}.part", "w") as lines:
        try:
            command = [sys.executable, *step.command]
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=lines, stderr=log, timeout=seconds
            ).returncode
            outcome = "" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            outcome = f"stopped after {seconds:.0f} s"
    took = time.monotonic() - started
    with open(out / f"{step.name}.part", "a") as lines:
        lines.write("\n" + json.dumps({"step": step.name, "outcome": outcome, "took": took}) + "\n")
    (out / f"{step.name}.part").rename(result)


def lines_of(result: Path) -> list[dict]:
    """The JSON objects that a step has printed, and the one about its outcome."""
    lines = result.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def rows(step: Step, out: Path) -> Iterator[str]:
    """The rows of a step in the table: milliseconds of a round and of an evaluation, or a note."""
    *measured, end = lines_of(out / f"{step.name}.jsonl")
    for line in measured or [{}]:
        times = [line.get(key) for key in ("seconds_per_round", "seconds_per_evaluation")]
        shown = [f"{1e3 * t:.4g}" if isinstance(t, float) else "" for t in times]
        rest = {k: v for k, v in line.items() if not k.startswith("seconds_per_")}
        note = end["outcome"] or json.dumps(rest)[:200].replace("|", "/")
        yield f"| {step.name} | {shown[0]} | {shown[1]} | {end['took']:.0f} | {note} |"


def run_and_print(out: Path, end: float, step: Step) -> None:
    """Runs a step if more than ten seconds are left until `end`, and prints its row."""
    left = end - time.monotonic()
    if left > 10 or (out / f"{step.name}.jsonl").exists():
        run(step, out, min(step.limit, left))
        print(*rows(step, out), sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("device"))
    parser.add_argument("--total", type=float, default=600, help="seconds for all steps")
    parser.add_argument("--only", help="names of steps, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the steps and run none")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else [step.name for step in steps()]
    chosen = [step for step in steps() if step.name in only]
    if unknown := {*only} - {step.name for step in steps()}:
        raise SystemExit(f"--only: no step {', '.join(sorted(unknown))}; --list shows them")
    if args.list:
        print(*(f"{step.name:14} {' '.join(step.command)}" for step in chosen), sep="\n")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    print("| step | ms a round | ms an evaluation | seconds | |\n|---|---|---|---|---|")
    one = partial(run_and_print, args.out, time.monotonic() + args.total)
    for step in chosen:
        if step.timed:
            one(step)
    with ThreadPoolExecutor() as pool:
        list(pool.map(one, [step for step in chosen if not step.timed]))


if __name__ == "__main__":
    main()
