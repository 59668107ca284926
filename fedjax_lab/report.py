"""What a run says at its end, and the command that compares runs.

python -m fedjax_lab.report DIR... [--way=last] [--measure=accuracy.mean] [--baseline=fedavg]
                            [--target=80] [--ddof=1] [--bold] [--format=terminal]
                            [--pivot [--published=fedconcat/table1]] [--label=tab:main]
                            [--out=FILE]

DIR: folders of runs, finished or not, or folders that hold such (a sweep's), also gs://BUCKET/DIR.
Runs of one config are one row, whatever their seeds; seeds are paired with the baseline's.

--way       how the round of each number is chosen: last, best_by_validation, max_over_rounds,
            max_per_domain; the two maxima peek at the test set, where there is one
--measure   what is compared: accuracy.mean (the default, where there is one), accuracy.worst10,
            global, ood, id, new, new_tuned, domains.NAME, ..., loss.mean, global_loss, ood_top5,
            ...; of the loss, ece and perplexity, and of metrics that say so of themselves, lower is
            better
--baseline  a row's name, or a method's
--target    in the unit of the measure: the rounds, bytes and seconds until it was first reached
--ddof      0: the population's std, for tables beside published ones that used it
--bold      the best mean of each column in bold: in markdown, latex and html
--pivot     one table as papers print it: rows are methods, columns are partitions by data set; the
            best mean of a column is bold and the second best underlined; * and † mark rows that
            are significantly better and worse than the baseline (paired t-tests over seeds, with
            Holm's correction for all comparisons of the table); the caption says all this
--published numbers that a paper printed, beside those of runs with its method, method settings,
            data and partition: PAPER/TABLE, several with commas; `fedjax_lab.paper list` has them
--label     of the table in LaTeX, the beginning of the labels where there are several;
            default: tab:MEASURE
--format    terminal, markdown, latex, csv, html; LaTeX needs the packages booktabs and graphicx

Exit codes: 0 done; 2 bad input, in one line.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import argparse
import math
import re
import sys
from pathlib import Path

from fedjax_lab import command
from fedjax_lab.analysis import compare, data_used, formats, pivot, runs, sweeps, tables
from fedjax_lab.errors import MACHINE, BadInput, parse, quoted
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
    if "stopped" in summary:
        stopped = summary["stopped"]
        lines.append(f"stopped by {stopped['rule']} after round {stopped['round']}")
    if any(runs.peeks(way, chosen[way][0]) for way in ways):
        lines.append("maxima are chosen on the test set itself")
    if "privacy" in summary:
        lines.append(_privacy(summary["privacy"]))
    return "\n".join(lines)


def _privacy(told):
    """What a run promises of privacy, in one line."""
    if told["epsilon"] is None:
        return "epsilon is infinite: nothing is promised of privacy"
    full = sum(told.get("full", {}).values())
    cohorts = f"; {full} cohorts had no place left" if full else ""
    at = f"epsilon {told['epsilon']:.4g} at delta {told['delta']:.3g}"
    of = f"for each {told['unit']}, between {told['neighbors']}"
    return f"{at} {of}; noise multiplier {told['noise']:.4g}{cohorts}"


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
    parser.add_argument("--pivot", action="store_true")
    parser.add_argument("--published")
    parser.add_argument("--label")
    parser.add_argument("--format", default="terminal", choices=FORMATS)
    parser.add_argument("--out", type=Path)
    args = parse(parser, argv)
    cloud.check_local("--out", args.out)
    if args.target is not None and not math.isfinite(args.target):
        raise BadInput(f"--target must be a finite number, got {args.target}")
    if args.published and not args.pivot:
        raise BadInput("--published is for the table of --pivot")
    if args.pivot and args.target is not None and args.format != "html":
        raise BadInput("--target has no place in the table of --pivot")
    if args.label and not re.fullmatch(r"[A-Za-z0-9:._-]+", args.label):
        raise BadInput(f"--label={quoted(args.label)} must be of letters, digits and :._-")
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
    notes += [*sweeps.notes(whole), *damaged, *data_used.notes(whole)]
    if args.pivot:
        named = runs.named_alike(blocks)
        blocks, notes = named, notes + runs.chosen(blocks, named)
    choice = tables.Choice(
        way=args.way,
        measure=compare.choose(blocks, args.way, args.measure),
        target=args.target,
        ddof=args.ddof,
        bold=args.bold,
        lower_is_better=runs.lower_is_better(blocks),
    )
    sections = _sections(blocks, choice, args.baseline)
    notes += [note for section in sections for note in _no_baseline(section)]
    columns = []
    if args.pivot:
        printed, told = _printed(args.published, sections, choice)
        columns = pivot.columns(sections, printed)
        notes += [*told, *tables.privacy_notes(sections)]
    if args.format == "csv":  # it has no place for notes
        print("\n".join(damaged), end="\n" * bool(damaged), file=sys.stderr)
        return pivot.to_csv(columns, choice) if columns else tables.to_csv(sections, choice)
    return _shown(args, sections, choice, notes, columns)


def _shown(args, sections, choice, notes, columns):
    """The comparison in a format that people read; columns: of the pivot, if any is wanted."""
    sets_off = args.format != "terminal"
    pivoted = pivot.table(columns, choice, sets_off) if columns else None
    if args.format == "html":
        from fedjax_lab.analysis import page

        return page.html(sections, choice, notes, pivoted)
    label = args.label or "tab:" + re.sub(r"[^A-Za-z0-9]+", "-", choice.measure)
    if pivoted:
        return _text([("", [pivoted])], notes, args.format, label)
    titled = [(section.block.name, tables.tables(section, choice)) for section in sections]
    return _text(titled, [tables.subtitle(sections, choice), *notes], args.format, label)


def _sections(blocks, choice, wanted):
    """The blocks with their numbers, compared with the wanted baseline."""
    lower = metric_of(choice.measure) in choice.lower_is_better
    numbers = (choice.target, choice.ddof, lower)
    return [
        tables.Section(
            block,
            baseline,
            compare.entries(block, choice.way, choice.measure, baseline, *numbers),
        )
        for block, baseline in zip(blocks, compare.find_baseline(blocks, wanted), strict=True)
    ]


def _no_baseline(section):
    if section.baseline is None and len(section.block.rows) > 1:
        return [f"{section.block.name}: no baseline, --baseline=ROW names one"]
    return []


def _printed(names, sections, choice):
    """The published numbers that stand beside each section's, by row, and notes on them."""
    if not names:
        return [{}] * len(sections), []
    from fedjax_lab.analysis import beside

    printed = [one for name in names.split(",") for one in beside.read(name, choice)]
    found = [
        {row.name: (row, one) for row in section.block.rows if (one := beside.find(row, printed))}
        for section in sections
    ]
    notes = beside.notes([pair for rows in found for pair in rows.values()])
    if not any(found):
        notes = [f"no number of {names} is of these methods, their settings, data and partitions"]
    return [{name: one.result for name, (_, one) in rows.items()} for rows in found], notes


_TEXTS = {  # of each format: how a table, a remark and a heading are written
    "terminal": (formats.terminal, "{}", "== {} =="),
    "markdown": (formats.markdown, "- {}", "## {}"),
    "latex": (formats.latex, "% {}", "% {}"),
}


def _text(titled, remarks, form, label):
    """Remarks, then tables under their titles; the LaTeX labels begin with `label`."""
    write, remark, heading = _TEXTS[form]
    escaped = formats.escape_markdown if form == "markdown" else str
    needs = [f"needs {formats.LATEX_NEEDS}"] if form == "latex" else []
    parts = ["\n".join(remark.format(escaped(line)) for line in [*needs, *remarks])]
    for number, (title, of_title) in enumerate(titled, 1):
        parts += [heading.format(escaped(title))] if title else []
        suffix = str(number) if len(titled) > 1 else ""
        for table in of_title:
            labels = filter(None, (label, table.label, suffix))
            caption = ": ".join(filter(None, (title * (form == "latex"), table.title)))
            parts.append(write(table._replace(title=caption, label="-".join(labels))))
    return "\n\n".join(filter(None, parts))


if __name__ == "__main__":
    command.run(main, sys.argv[1:], prints_result=True)
