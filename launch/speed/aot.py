"""Compiles a run for accelerators that this machine lacks, and reports what its programs need.

    python launch/speed/aot.py --target=v5e:2x4 --config=configs/quickstart.py:scaffold
    python launch/speed/aot.py --target=h100 --workload=W1,A1 [--devices=1] [--program=rounds]

The target is a TPU slice (v5e:2x2, v5e:2x4, v5e:16x16, v6e:2x2, v5p:2x2x1, ...) or h100;
--devices=N uses its first N devices. A config accepts the overrides and --seeds of
`fedjax_lab.main`; a workload of workloads.py accepts --config.engine.strategy, .convolution,
.chunk, .dtype, .fsdp, .state and .data.

Prints one JSON line for each program of each stage:

  config or workload, stage, program (rounds: one round of a block; or evaluation), target, devices,
  strategy, placement (which arrays the devices divide), convolution (its formulation)
  compiled               whether the program compiles; if not, `error` has the compiler's reason
  compile_seconds
  argument_bytes, temporary_bytes, memory_bytes, fits
                         memory that the program needs and that there is, on each device
  flops                  of convolutions and matrix products on each device
  plain_flops            the same for plain training of the round's clients
  kernels, touched_bytes number of kernels, and bytes that they read and write, on each device
  collective_bytes       by kind of collective
  estimated_seconds      with estimate_leaves_out: what the estimate does not include
  assumed_trips          assumed iterations of loops whose length depends on the data, by depth

Exit codes: 0, 1 where a program does not compile, 2 for bad usage.
"""

if __name__ == "__main__":
    from fedjax_lab.commands import command

    command.begin()

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import targets
import workloads

from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import parse_seeds, split_overrides
from fedjax_lab.errors import BadInput, cut, nearest, parse
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config

PROGRAMS = ("rounds", "evaluation")
OF_CLIENTS = ("strategy", "chunk", "fsdp", "state", "data")
WORKLOAD_SETTINGS = (*OF_CLIENTS, "convolution", "dtype")


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, help_text=__doc__)


def _main(argv):
    args, overrides = _parse(argv)
    subjects = [{"workload": name} for name in args.workload] or [{"config": args.config}]
    compiled = True
    for subject in subjects:
        for program in args.program:
            request = {
                **subject,
                "program": program,
                "target": args.target,
                "devices": args.devices,
                "seeds": args.seeds,
                "overrides": overrides,
            }
            for line in compile_apart(request):
                print(json.dumps(line), flush=True)
                compiled = compiled and line["compiled"]
    return 0 if compiled else 1


def _parse(argv):
    """The flags, and the overrides of config keys. Raises BadInput for invalid ones."""
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--target", default="v5e:2x2")
    parser.add_argument("--devices", type=int, default=0)
    parser.add_argument("--workload", type=_names, default=[])
    parser.add_argument("--config")
    parser.add_argument("--seeds", type=_names)
    parser.add_argument("--program", type=_names, default=list(PROGRAMS))
    args = parse(parser, argv)
    targets.check(args.target, args.devices)
    args.seeds = parse_seeds(args.seeds)
    _check_names("--workload", args.workload, workloads.WORKLOADS)
    _check_names("--program", args.program, PROGRAMS)
    if not args.program:
        raise BadInput(f"--program: name {' or '.join(PROGRAMS)}")
    if args.workload and args.seeds:
        raise BadInput("--seeds requires --config; a workload has only one seed")
    if bool(args.workload) == bool(args.config):
        raise BadInput("give either --config=FILE.py[:METHOD] or --workload=W1,...")
    _check_overrides(args, overrides)
    return args, overrides


def _check_overrides(args, overrides):
    """Raise BadInput for a key or a value that the run would refuse."""
    if args.config:
        resolve(load_config(args.config), overrides)
        return
    keys = [f"engine.{name}" for name in WORKLOAD_SETTINGS]
    _check_names("--config", [key for key, _ in overrides], keys)
    resolve({}, overrides)


def _names(text):
    return [name for name in text.split(",") if name]


def _check_names(flag, names, choices):
    for name in names:
        if name not in choices:
            raise BadInput(f"{flag}: unknown name {name!r}; {nearest(name, choices)}")


def compile_apart(request: dict) -> list[dict]:
    """Compile the requested program in another process, because a compiler may abort its process.

    Returns the lines of figures, one for each stage; the last one has the error if it failed.
    """
    file = Path(__file__).with_name("aot_program.py")
    environment = {**os.environ, **targets.ENVIRONMENT}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p)
    done = subprocess.run(
        [sys.executable, str(file), json.dumps(request)],
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 2:  # bad input that only building the run detects, such as missing data
        raise BadInput(done.stderr.splitlines()[-1].removeprefix("error: "))
    if done.returncode:
        shown = ("workload", "config", "program", "target")
        failed = {key: request[key] for key in shown if key in request}
        lines.append({**failed, "compiled": False, "error": _reason(done)})
    return lines


def _reason(done):
    """How a process ended, followed by the line of its stderr that best explains it."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"F\d{4} |[\w.]*(Error|Exception)\b.*: ", line)]
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
    return f"{ended}: {cut((telling or lines or ['no message'])[-1], 500)}"


if __name__ == "__main__":
    command.run(main, sys.argv[1:])
