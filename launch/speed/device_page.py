"""Formats the results of `device_day.py` as one page of Markdown. Standard library only."""

from collections.abc import Iterable
from typing import Any

from device_plan import Step

TIMES = {
    "workload": "workload",
    "strategy": "strategy",
    "convolution": "convolution",
    "seconds_per_round": "s a round",
    "seconds_per_evaluation": "s an evaluation",
    "total_seconds": "s in all",
    "examples_per_second": "examples/s",
    "utilisation": "utilization",
    "compile_seconds": "s to compile",
    "peak_memory_gib": "peak GiB",
}
RUNS = {
    "strategy": "strategy",
    "accuracy": "accuracy, %",
    "rounds_per_second": "rounds/s",
    "compile_seconds": "s to compile",
    "peak_memory_bytes": "peak bytes",
}
TABLES: dict[str, tuple[str, dict[str, str]]] = {  # {group: (title, {key: title of the column})}
    "check": (
        "Check",
        {
            "product_error": "error of a product",
            "train_loss": "train loss",
            "train_loss_on_cpu": "on a CPU",
            "difference": "relative difference",
        },
    ),
    "workloads": ("Workloads", TIMES),
    "formulations": ("Strategies and formulations of convolutions", TIMES),
    "seeds": (
        "Seeds in one computation",
        {
            "workload": "workload",
            "seeds": "seeds",
            "seconds_per_round": "s a round: of one, of all",
            "ratio": "times faster than one by one",
            "ratio_of_runs": "... with compilation",
        },
    ),
    "models": ("Large models, ten clients", TIMES),
    "types": ("Types of numbers", {"workload": "workload", **RUNS, **TIMES}),
    "sweep": ("Six runs together and one by one", RUNS),
    "tests": (
        "Tests",
        {"passed": "passed", "failed": "failed", "skipped": "skipped", "failures": "which failed"},
    ),
}
FACTS = {
    "device": "device",
    "devices": "number of devices",
    "memory_gib": "memory of each, GiB",
    "driver": "driver",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "commit": "commit",
    "date": "date",
}


def page(facts: dict, steps: list[Step], results: dict[str, dict]) -> str:
    """The page: facts about the device, goals, a table for each group, and the commands."""
    parts = [f"# Measured on {facts['devices']} x {facts['device']}"]
    parts.append(table(["", ""], [[title, facts.get(key)] for key, title in FACTS.items()]))
    parts += ["## Goals", table(["goal", "at most", "measured", ""], goals(steps, results))]
    for group, (title, columns) in TABLES.items():
        of_group = [results[s.name] for s in steps if s.group == group and s.name in results]
        if of_group:
            header = ["step", *columns.values(), "s of the step", "ended"]
            rows = [row for result in of_group for row in result_rows(result, columns)]
            parts += [f"## {title}", table(header, rows)]
    missing = [step.name for step in steps if step.name not in results]
    if missing:
        parts.append(f"{len(missing)} of {len(steps)} steps have not been run.")
    commands = "\n".join(result["command"] for result in results.values())
    parts += ["## Commands", f"```bash\n{commands}\n```"]
    return "\n\n".join(parts) + "\n"


def goals(steps: list[Step], results: dict[str, dict]) -> list[list]:
    """The rows of the table of goals, one for each step that has a goal."""
    rows = []
    for step in steps:
        if step.goal is None:
            continue
        result = results.get(step.name, {"lines": [], "status": "not run"})
        figure = step.goal.figure(result["lines"][0]) if result["lines"] else None
        verdict = result["status"] if figure is None else "missed"
        if figure is not None and figure <= step.goal.at_most:
            verdict = "met"
        rows.append([step.goal.what, step.goal.at_most, figure, verdict])
    return rows


def result_rows(result: dict, columns: Iterable[str]) -> list[list]:
    """The rows of a step: one for each JSON object that it printed, and at least one."""
    ended = f"{result['status']}: {result['error']}" if "error" in result else result["status"]
    return [
        [result["step"], *(line.get(key) for key in columns), result["seconds"], ended]
        for line in result["lines"] or [{}]
    ]


def table(header: list[str], rows: list[list]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """A value as the text of a Markdown table's cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return str(value).replace("|", "\\|")
