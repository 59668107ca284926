"""What a run says at its end, and the command that compares runs.

python -m fedjax_lab.report DIR... [--way=last] [--measure=accuracy.mean] [--baseline=fedavg]
                            [--target=80] [--ddof=1] [--bold] [--format=terminal]
                            [--out=FILE]

DIR: folders of runs, finished or not, or folders that hold such (a sweep's), also gs://BUCKET/DIR.
Runs of one config are one row, whatever their seeds; seeds are paired with the baseline's.

--way       how the round of each number is chosen: last, best_by_validation, max_over_rounds,
            max_per_domain; the two maxima peek at the test set, where there is one
--measure   what is compared: accuracy.mean (the default, where there is one), accuracy.worst10,
            global, ood, id, domains.NAME, ..., loss.mean, global_loss, ood_top5, ...; of the loss,
            ece and perplexity, and of metrics that say so of themselves, lower is better
--baseline  a row's name, or a method's
--target    in the unit of the measure: the rounds, bytes and seconds until it was first reached
--ddof      0: the population's std, for tables beside published ones that used it
--bold      the best mean of each column in bold: in markdown and latex
--format    terminal, markdown, latex, csv, html

Exit codes: 0 done; 2 bad input, in one line.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import argparse
import math
import sys
from pathlib import Path

from fedjax_lab import command
from fedjax_lab.analysis import compare, runs, sweeps, tables
from fedjax_lab.errors import MACHINE, BadInput, parse
from fedjax_lab.measures import metric_of
from fedjax_lab.running import cloud

FORMATS = ("terminal", "markdown", "latex", "csv", "html")


def closing_table(summary: dict) -> str:
    """Accuracy in percent, then the other metrics, by the ways to choose a round."""
    ways = [way for way in tables.WAYS if way in summary]
    lines = [_line("accuracy, %", [tables.WAYS[way] for way in ways])]
    lines.append("-" * len(lines[0]))
    chosen = {way: _flat(summary[way]) for way in ways}
    for name, label in _measures(chosen["last"][0]):
        lines.append(_line(label, [_cell(name, *chosen[way]) for way in ways]))
    seeds = summary["seeds"]
    if len(seeds) > 1:
        lines.append(f"mean +- sample standard deviation over {len(seeds)} seeds")
    if any(runs.peeks(way, chosen[way][0]) for way in ways):
        lines.append("maxima are chosen on the test set itself")
    return "\n".join(lines)


def _flat(chosen):
    return [runs.measures(chosen.get(key, {})) for key in ("mean", "std")]


def _measures(measured):
    """(name, label) of each measure that is shown."""
    domains = [(m, m.removeprefix("domains.")) for m in measured if m.startswith("domains.")]
    accuracies = [(m, label) for m, label in tables.MEASURES.items() if m in measured]
    headlines = runs.headlines(measured).items()
    others = [(m, tables.with_unit(m)) for name, m in headlines if name != "accuracy"]
    return domains + accuracies + others


def _cell(name, mean, std):
    if name not in mean:
        return ""
    digits = tables.digits(name)
    text = f"{mean[name]:.{digits}f}"
    return f"{text} +- {std[name]:.{digits}f}" if name in std else text


def _line(name, cells):
    return (f"{name:22}" + "".join(f"{cell:>19}" for cell in cells)).rstrip()


def main(argv: list[str]) -> int:
    """The command, without its name; returns the exit code."""
    return command.call(_main, argv, help_text=__doc__)


def _main(argv):
    args = _arguments(argv)
    with cloud.read(args.folders) as args.folders:
        text = cloud.named(report(args))
    if args.out is None:
        print(text)
    else:
        _write(args.out, text + "\n")
    return 0


def _arguments(argv):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--way", default="last", choices=tables.WAYS)
    parser.add_argument("--measure")
    parser.add_argument("--baseline")
    parser.add_argument("--target", type=float)
    parser.add_argument("--ddof", type=int, default=1, choices=(0, 1))
    parser.add_argument("--bold", action="store_true")
    parser.add_argument("--format", default="terminal", choices=FORMATS)
    parser.add_argument("--out", type=Path)
    args = parse(parser, argv)
    cloud.check_local("--out", args.out)
    if args.target is not None and not math.isfinite(args.target):
        raise BadInput(f"--target must be a finite number, got {args.target}")
    if not args.folders:
        raise BadInput("which runs? python -m fedjax_lab.report DIR...; --help tells the rest")
    return args


def _write(path, text):
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno in MACHINE:
            raise
        raise BadInput(f"cannot write {path}: {error.strerror}") from error


def report(args) -> str:
    """The comparison that the arguments ask for, as text. BadInput where there is none."""
    whole, damaged = runs.read_all(runs.find(args.folders))
    blocks, notes = runs.arrange(whole)
    notes += [*sweeps.notes(whole), *damaged]
    measure = compare.choose(blocks, args.way, args.measure)
    lower = runs.lower_is_better(blocks)
    choice = tables.Choice(
        way=args.way,
        measure=measure,
        target=args.target,
        ddof=args.ddof,
        bold=args.bold,
        lower_is_better=lower,
    )
    sections = []
    baselines = compare.find_baseline(blocks, args.baseline)
    for block, baseline in zip(blocks, baselines, strict=True):
        numbers = compare.entries(
            block, args.way, measure, baseline, args.target, args.ddof, metric_of(measure) in lower
        )
        sections.append(tables.Section(block, baseline, numbers))
        if baseline is None and len(block.rows) > 1:
            notes.append(f"{block.name}: no baseline, --baseline=ROW names one")
    if args.format == "csv":  # it has no place for notes
        print("\n".join(damaged), end="\n" * bool(damaged), file=sys.stderr)
        return tables.to_csv(sections, choice)
    if args.format == "html":
        from fedjax_lab.analysis import page

        return page.html(sections, choice, notes)
    return _text(sections, choice, notes, args.format)


_TEXTS = {  # of each format: how a table, a remark and a heading are written
    "terminal": (tables.terminal, "{}", "== {} =="),
    "markdown": (tables.markdown, "- {}", "## {}"),
    "latex": (tables.latex, "% {}", "% {}"),
}


def _text(sections, choice, notes, form):
    write, remark, heading = _TEXTS[form]
    escaped = tables.escape_markdown if form == "markdown" else str
    needs = [r"needs \usepackage{booktabs}"] if form == "latex" else []
    remarks = [*needs, tables.subtitle(sections, choice), *notes]
    parts = ["\n".join(remark.format(escaped(line)) for line in remarks)]
    for section in sections:
        parts.append(heading.format(escaped(section.block.name)))
        parts += [write(table) for table in tables.tables(section, choice)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    command.run(main, sys.argv[1:], prints_result=True)
