"""Runs the whole measuring plan on the device at hand: one JSON file a step, one page for all.

    python launch/speed/device_day.py [--out=device_day] [--list] [--only=A1-whole,formulations,W*]
                               [--again=STEP,...] [--limit=600] [--total=3600] [--seconds=5]

The steps, in order of value, are those of device_plan.py: a check, the workloads, every strategy
with every formulation of convolutions, seeds, large models, bfloat16, sweeps, and the tests. Each
is a process of its own; one that crashes or runs out of time is recorded as such, and the next one
starts. What lies in --out is not run again, so that the same command goes on where it was stopped.
README.md there has the tables, and says which goals are met. Any device will do, a CPU too.
"""

import argparse
import contextlib
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import device_page
from device_plan import ROOT, Step, plan


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = parse(arguments)
    heed_signals()
    try:
        return carry_out(args)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads the output any more; Python flushes it once again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        raise SystemExit(f"error: {error.filename or args.out}: {error.strerror}") from error


def heed_signals() -> None:
    """A lost connection or SIGTERM ends this script as Ctrl-C does: no step outlives it."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores the first
            signal.signal(number, signal.default_int_handler)


def carry_out(args: argparse.Namespace) -> int:
    """Runs or lists the steps that the flags choose; returns the exit code."""
    steps = plan(args.seconds)
    chosen, again = choose(steps, args.only), choose(steps, args.again)
    if args.list:
        print("\n".join(f"{step.name:<32} {shown(step)}" for step in chosen))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    facts = find_device(args.out)
    for step in again:
        (args.out / f"{step.name}.json").unlink(missing_ok=True)
    end = time.monotonic() + args.total
    for _ in run_all(chosen, args.out, args.limit, end):
        write_page(facts, steps, args.out)
    print(f"tables: {write_page(facts, steps, args.out)}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The values of the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("device_day"), help="folder of all results"
    )
    parser.add_argument("--list", action="store_true", help="show the steps and run none")
    parser.add_argument("--only", default="*", help="steps or groups of them; * is any text")
    parser.add_argument("--again", default="", help="steps to run although they have results")
    parser.add_argument("--limit", type=float, default=600, help="seconds for a step")
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds for all of them")
    parser.add_argument("--seconds", type=float, default=5, help="that a benchmark measures for")
    return parser.parse_args(arguments)


def choose(steps: list[Step], words: str) -> list[Step]:
    """The steps whose name or group is one of the words. SystemExit where a word fits none."""
    patterns = [word for word in words.split(",") if word]
    for pattern in patterns:
        if not any(fits(step, pattern) for step in steps):
            groups = ", ".join(dict.fromkeys(step.group for step in steps))
            raise SystemExit(f"error: no step {pattern!r}; see --list; the groups are {groups}")
    return [step for step in steps if any(fits(step, pattern) for pattern in patterns)]


def fits(step: Step, pattern: str) -> bool:
    """Whether the pattern is the name of the step or of its group."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in (step.name, step.group))


def shown(step: Step) -> str:
    """The step's command as one types it."""
    variables = (f"{name}={value}" for name, value in step.environment.items())
    return " ".join((*variables, "python", *map(shlex.quote, step.command)))


def find_device(out: Path) -> dict:
    """What the device is, for all steps. SystemExit where `out` holds results of another one."""
    command = [sys.executable, "launch/speed/check_device.py", "--facts"]
    done = subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: jax finds no device: {last_line(done.stderr)}")
    facts = {**objects(done.stdout)[-1], "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    file = out / "device.json"
    if file.exists():
        earlier = json.loads(file.read_text())
        if any(earlier[key] != facts[key] for key in ("device", "devices", "jax")):
            was = f"{earlier['devices']} x {earlier['device']}, jax {earlier['jax']}"
            raise SystemExit(f"error: {out} holds results of {was}; choose another --out")
        return earlier
    write(file, facts)
    return facts


def commit() -> str:
    """The project's version under git, where there is one."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def environment(more: dict[str, str]) -> dict[str, str]:
    """That of a step: this checkout's package is the one that it imports."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_all(steps: list[Step], out: Path, limit: float, end: float) -> Iterator[Step]:
    """Runs the steps without a result, until the clock says `end`. Gives each that has one now."""
    for step in steps:
        file, left = out / f"{step.name}.json", end - time.monotonic()
        if file.exists():
            continue
        result = run(step, out, min(limit, left)) if left > 0 else None
        if result is None or (result["status"] == "out of time" and left < limit):
            print("no time is left; the same command goes on", flush=True)
            return
        write(file, result)
        how = f"{result['status']:<11} {result['seconds']:6.1f} s  {result.get('error', '')}"
        print(f"{step.name:<32} {how}".rstrip(), flush=True)
        yield step


def run(step: Step, out: Path, limit: float) -> dict:
    """What the step measured, and how it ended."""
    runs, log = (out / "runs" / step.name).absolute(), out / f"{step.name}.log"
    shutil.rmtree(runs, ignore_errors=True)
    command = [sys.executable, *(word.replace("{runs}", str(runs)) for word in step.command)]
    began = time.time()
    with log.open("w") as stream:
        code = call(command, stream, environment(step.environment), limit)
    text = log.read_text(errors="replace")
    lines = [*objects(text), *summaries(runs), *tests(text)]
    result = {
        "step": step.name,
        "command": shown(step),
        "status": {0: "done", None: "out of time"}.get(code, "failed"),
        "seconds": round(time.time() - began, 1),
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began)),
        "lines": lines,
    }
    if code:
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        result["error"] = f"{ending}: {last_line(text)}"
    return result


def call(command: list[str], log, environment: dict[str, str], limit: float) -> int | None:
    """The exit code, or None where the command and all that it started were killed in the end."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:  # out of time, or this script is interrupted
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def objects(text: str) -> list[dict]:
    """The JSON objects among the lines."""
    parsed = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            parsed += [json.loads(line)] if line.startswith("{") else []
    return parsed


def summaries(folder: Path) -> list[dict]:
    """The runs that a step has left in its folder."""
    lines = []
    for file in sorted(folder.glob("**/summary.json")):
        summary = json.loads(file.read_text())
        accuracy = summary["last"]["mean"].get("accuracy", {}).get("mean")
        keys = "rounds_per_second", "compile_seconds", "peak_memory_bytes", "strategy"
        lines.append({"accuracy": accuracy, **{key: summary[key] for key in keys}})
    return lines


def tests(text: str) -> list[dict]:
    """What pytest counts in its last line, and the names of the tests that failed."""
    match = re.search(r"^(?:=+ )?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s", text, re.MULTILINE)
    if not match:
        return []
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", match[1])}
    return [{**counts, "failures": re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)}]


def last_line(text: str) -> str:
    """The last line that names an exception, or else the last that is not empty; shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): ", line)]
    return (named or lines or [""])[-1][:300]


def write_page(facts: dict, steps: list[Step], out: Path) -> Path:
    """Writes the tables of all results that there are; returns their file."""
    file = out / "README.md"
    file.write_text(device_page.page(facts, steps, read_all(steps, out)))
    return file


def read_all(steps: list[Step], out: Path) -> dict[str, dict]:
    """The results that there are, by step."""
    files = {step.name: out / f"{step.name}.json" for step in steps}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def write(file: Path, content: dict) -> None:
    """The whole file or none."""
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(file)


if __name__ == "__main__":
    sys.exit(main())
