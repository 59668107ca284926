"""Runs the whole measuring plan on this machine's device: a JSON file per step, a page for all.

    python launch/speed/device_day.py [--out=device_day] [--list] [--only=A1-whole,formulations,W*]
                               [--again=STEP,...] [--limit=600] [--total=3600] [--seconds=5]

The steps are those of device_plan.py, the most valuable ones first: a check, the workloads, every
strategy with every formulation of convolutions, seeds, large models, bfloat16, sweeps, and the
tests. Each step is a separate process; if it crashes or runs out of time, this is recorded, and the
next one starts. Steps that have a result in --out are skipped, so the same command continues after
an interruption. README.md in --out has the tables, and says which goals are met. The script runs on
any device, including a CPU.

--only, --again   names or groups of steps to run, or to run again; * matches any text
--list            shows the steps and runs none
--limit, --total  seconds for one step, and for all steps
--seconds         for which a benchmark measures, at least
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

from fedjax_lab.running.storage import metrics


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = parse(arguments)
    heed_signals()
    try:
        return carry_out(args)
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has gone, and Python flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        raise SystemExit(f"error: {error.filename or args.out}: {error.strerror}") from error


def heed_signals() -> None:
    """Treat a lost connection and SIGTERM like Ctrl-C, so that no step outlives this script."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup sets SIGHUP to be ignored
            signal.signal(number, signal.default_int_handler)


def carry_out(args: argparse.Namespace) -> int:
    """Run or list the steps chosen by the flags; returns the exit code."""
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
    parser.add_argument("--only", default="*", help="steps or groups to run; * matches any text")
    parser.add_argument("--again", default="", help="steps to run again although they have results")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one step")
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds for all steps")
    parser.add_argument("--seconds", type=float, default=5, help="minimum seconds of a benchmark")
    return parser.parse_args(arguments)


def choose(steps: list[Step], words: str) -> list[Step]:
    """The steps whose name or group matches one of the comma-separated `words`.

    Raises SystemExit if a word matches no step.
    """
    patterns = [word for word in words.split(",") if word]
    for pattern in patterns:
        if not any(fits(step, pattern) for step in steps):
            groups = ", ".join(dict.fromkeys(step.group for step in steps))
            raise SystemExit(f"error: unknown step {pattern!r}; see --list; groups: {groups}")
    return [step for step in steps if any(fits(step, pattern) for pattern in patterns)]


def fits(step: Step, pattern: str) -> bool:
    """Whether the pattern matches the name or the group of the step."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in (step.name, step.group))


def shown(step: Step) -> str:
    """The step's command, as typed in a shell."""
    variables = (f"{name}={value}" for name, value in step.environment.items())
    return " ".join((*variables, "python", *map(shlex.quote, step.command)))


def find_device(out: Path) -> dict:
    """Facts about the device, kept in out/device.json.

    Raises SystemExit if JAX finds no device, or if `out` holds results of another one.
    """
    command = [sys.executable, "launch/speed/check_device.py", "--facts"]
    done = subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: JAX finds no device: {last_line(done.stderr)}")
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
    """The commit of the repository as `git describe` names it; "" without git."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def environment(more: dict[str, str]) -> dict[str, str]:
    """The environment variables of a step, in which Python imports this checkout's package."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_all(steps: list[Step], out: Path, limit: float, end: float) -> Iterator[Step]:
    """Run the steps that have no result, until time.monotonic() is `end`; yields each one run."""
    for step in steps:
        file, left = out / f"{step.name}.json", end - time.monotonic()
        if file.exists():
            continue
        result = run(step, out, min(limit, left)) if left > 0 else None
        if result is None or (result["status"] == "out of time" and left < limit):
            print("no time is left; the same command continues", flush=True)
            return
        write(file, result)
        how = f"{result['status']:<11} {result['seconds']:6.1f} s  {result.get('error', '')}"
        print(f"{step.name:<32} {how}".rstrip(), flush=True)
        yield step


def run(step: Step, out: Path, limit: float) -> dict:
    """Run a step for at most `limit` seconds; returns its measurements and how it ended."""
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
    """Run a command; returns its exit code, or None if it ran out of time.

    When it runs out of time, or this script is interrupted, all of its processes are killed.
    """
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
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def objects(text: str) -> list[dict]:
    """The JSON objects among the lines of the text."""
    parsed = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            parsed += [json.loads(line)] if line.startswith("{") else []
    return parsed


def summaries(folder: Path) -> list[dict]:
    """Figures from the summary.json of each run in a step's folder."""
    lines = []
    for file in sorted(folder.glob("**/summary.json")):
        summary = json.loads(file.read_text())
        accuracy = summary["last"]["mean"].get("accuracy", {}).get("mean")
        keys = "rounds_per_second", "compile_seconds", "peak_memory_bytes", "strategy"
        lines.append({"accuracy": accuracy, **{key: summary[key] for key in keys}})
    return lines


def tests(text: str) -> list[dict]:
    """The counts in pytest's last line, and the names of the failed tests; empty without them."""
    match = re.search(r"^(?:=+ )?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s", text, re.MULTILINE)
    if not match:
        return []
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", match[1])}
    return [{**counts, "failures": re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)}]


def last_line(text: str) -> str:
    """The last line that names an exception, or else the last non-empty line; 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): ", line)]
    return (named or lines or [""])[-1][:300]


def write_page(facts: dict, steps: list[Step], out: Path) -> Path:
    """Write the page of all existing results; returns its file."""
    file = out / "README.md"
    metrics.write_text(file, device_page.page(facts, steps, read_all(steps, out)))
    return file


def read_all(steps: list[Step], out: Path) -> dict[str, dict]:
    """All existing results, {name of the step: result}."""
    files = {step.name: out / f"{step.name}.json" for step in steps}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def write(file: Path, content: dict) -> None:
    """Write a JSON file atomically."""
    metrics.write_text(file, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
