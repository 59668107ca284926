"""The closing table of a run, and the command that compares runs.

python -m fedjax_lab.report DIR... [--way=last] [--measure=accuracy.mean] [--baseline=fedavg]
                            [--target=80] [--ddof=1] [--bold] [--format=terminal]
                            [--pivot [--published=fedconcat/table1]] [--label=tab:main]
                            [--names=fedavg=Ours,dirichlet=Skewed] [--out=FILE]

DIR: folders of runs, finished or unfinished, or folders that contain runs (for example of a sweep);
also gs://BUCKET/DIR. Runs of one config with any seeds are one row; differences to the baseline are
paired by seed.

--way       which round each number is taken from: last, best_by_validation, max_over_rounds or
            max_per_domain; the two maxima are chosen on the test set, if there is one
--measure   what is compared: accuracy.mean (the default if the runs have it), accuracy.worst10,
            accuracy.variance, accuracy.gini (over clients), global, ood, id, new, new_tuned,
            domains.NAME, levels.0.5, ..., loss.mean, global_loss, ood_top5, ...; lower is better
            for variance, gini, the loss, ece, perplexity, and metrics of your own with the
            attribute lower_is_better
--baseline  the name of a row or of a method
--target    a value of the measure; adds the rounds, bytes and seconds until it was first reached
--ddof      0: the population standard deviation, which some published tables use
--bold      prints the best mean of each column in bold (markdown, latex and html)
--pivot     one table in the form of papers: rows are methods, columns are partitions grouped by
            data set; the best mean of a column is bold and the second best underlined; * and †
            mark rows that are significantly better and worse than the baseline (paired t-tests over
            seeds, with Holm's correction for all comparisons of the table); the caption says so
--published adds the published numbers of PAPER/TABLE to the rows with the same method, method
            settings, data and partition; separate several tables by commas;
            `fedjax_lab.paper list` lists all tables
--names     the names to show for methods, data sources and partitions; default: those of their
            docstrings, such as FedAvg, Fashion-MNIST and Dir(0.3). CSV has the names of the configs
--label     the label of the LaTeX table, or the prefix of the labels of several tables;
            default: tab:MEASURE
--format    terminal, markdown, latex, csv, html; LaTeX needs the packages booktabs and graphicx
--out       a file to write the report to; default: the standard output

Exit codes: 0 success; 1 a failure of the machine (disk, memory); 2 invalid usage, config or data,
reported in one line; 130 interrupted.
"""

if __name__ == "__main__":  # before the imports, during which an interrupt may arrive
    from fedjax_lab.commands import command

    command.begin()

import math
import re
import sys
from pathlib import Path

from fedjax_lab.analysis import (
    audit_tables,
    compare,
    conclusions,
    formats,
    notes,
    pivot,
    runs,
    tables,
)
from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import make_parser
from fedjax_lab.errors import MACHINE, BadInput, parse, quoted, shown
from fedjax_lab.experiment import titles
from fedjax_lab.running.storage import cloud, metric_rows
from fedjax_lab.simulation.units import HEADLINES, metric_of

FORMATS = ("terminal", "markdown", "latex", "csv", "html")


def closing_table(summary: dict) -> str:
    """The table that a run prints at its end.

    Its rows are the accuracies in percent and the other metrics, its columns the ways to choose a
    round. summary: the content of summary.json.
    """
    ways = [way for way in tables.WAYS if way in summary]
    chosen = {way: _flat(summary[way]) for way in ways}
    first = next((m for m in HEADLINES if m in chosen["last"][0]), "accuracy")
    header = tables.with_unit(metric_of(first))
    lines = [_line(header, [tables.WAYS[way] for way in ways])]
    lines.append("-" * len(lines[0]))
    for name, label in _measures(chosen["last"][0]):
        each = [(mean.get(name), std.get(name)) for mean, std in chosen.values()]
        cells = [formats.mean_std(*pair, tables.digits(name)) for pair in each]
        lines.append(_line(label, ["" if cell == formats.NONE else cell for cell in cells]))
    seeds = summary["seeds"]
    if len(seeds) > 1:
        lines.append(f"mean +- sample standard deviation over {len(seeds)} seeds")
    if "stopped" in summary:
        stopped = summary["stopped"]
        lines.append(f"stopped by {shown(stopped['rule'])} after round {stopped['round']}")
    if any(runs.peeks(way, chosen[way][0]) for way in ways):
        lines.append("the best rounds are chosen on the test set itself")
    if "privacy" in summary:
        lines.append(_privacy(summary["privacy"]))
    return "\n".join(lines)


def _privacy(guarantee):
    """The privacy guarantee of a run, in one line."""
    if guarantee["epsilon"] is None:
        return "epsilon is infinite: the run has no privacy guarantee"
    full = sum(guarantee.get("full", {}).values())
    cohorts = f"; {full} cohorts were full" if full else ""
    at = f"epsilon {guarantee['epsilon']:.4g} at delta {guarantee['delta']:.3g}"
    of = f"for each {shown(guarantee['unit'])}, between {shown(guarantee['neighbors'])}"
    return f"{at} {of}; noise multiplier {guarantee['noise']:.4g}{cohorts}"


def _flat(chosen):
    return [runs.measures(chosen.get(key, {})) for key in ("mean", "std")]


def _measures(measured):
    """(name, label) of each row of the closing table."""
    domains = [(m, shown(m.removeprefix("domains."))) for m in measured if m.startswith("domains.")]
    metric = metric_of(next((m for m in HEADLINES if m in measured), "accuracy"))
    forms = [(m, words) for m, (words, _) in tables.forms_of(metric).items() if m in measured]
    headlines = runs.headlines(measured).items()
    others = [(m, tables.with_unit(shown(m))) for name, m in headlines if name != metric]
    return domains + forms + others


def _line(name, cells):
    return (f"{name:22}" + "".join(f"{cell:>19}" for cell in cells)).rstrip()


def main(argv: list[str]) -> int:
    """Runs the command with these arguments, without its name; returns the exit code."""
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
    parser = make_parser("--measure", "--baseline", "--published", "--label", "--names")
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--way", default="last", choices=tables.WAYS)
    parser.add_argument("--target", type=float)
    parser.add_argument("--ddof", type=int, default=1, choices=(0, 1))
    parser.add_argument("--bold", action="store_true")
    parser.add_argument("--pivot", action="store_true")
    parser.add_argument("--format", default="terminal", choices=FORMATS)
    parser.add_argument("--out", type=Path)
    args = parse(parser, argv)
    cloud.check_local("--out", args.out)
    if args.target is not None and not math.isfinite(args.target):
        raise BadInput(f"--target must be a finite number, got {args.target}")
    if args.published and not args.pivot:
        raise BadInput("--published needs --pivot, whose table it extends")
    if args.pivot and args.target is not None and args.format != "html":
        raise BadInput("--target cannot be combined with --pivot, except with --format=html")
    if args.label and not re.fullmatch(r"[A-Za-z0-9:._-]+", args.label):
        raise BadInput(f"--label={quoted(args.label)} may have only letters, digits and :._-")
    if not args.folders:
        raise BadInput("no folder is given; for example `fedjax-lab report runs/my_run`")
    return args


def _write(path, text):
    try:
        metric_rows.write_text(path, text)
    except OSError as error:
        if error.errno in MACHINE:
            raise
        raise BadInput(f"cannot write {path}: {error.strerror}") from error


def report(args) -> str:
    """The comparison of runs as text in the requested format.

    args: the parsed command line. Raises BadInput if the runs cannot be compared in this way.
    """
    whole, damaged = runs.read_all(runs.find(args.folders))
    names = titles.parse(args.names, [run.config for run in whole])
    blocks, footnotes = runs.arrange(whole, names)
    footnotes += [*notes.sweep_notes(whole), *damaged, *notes.data_notes(whole)]
    footnotes += audit_tables.notes(whole)
    if args.pivot:
        blocks, left_out = runs.named_alike(blocks, names)
        footnotes += left_out
    choice = tables.Choice(
        way=args.way,
        measure=compare.choose(blocks, args.way, args.measure),
        target=args.target,
        ddof=args.ddof,
        bold=args.bold,
        lower_is_better=runs.lower_is_better(blocks),
    )
    footnotes += compare.without(blocks, args.way, choice.measure)
    sections = _sections(blocks, choice, args.baseline)
    for block, baseline, _ in sections:
        if baseline is None and len(block.rows) > 1:
            footnotes.append(f"{block.title}: no baseline; choose one with --baseline=ROW")
    columns = []
    if args.pivot:
        printed, of_printed = _printed(args.published, sections, choice)
        columns = pivot.columns(sections, printed, names)
        footnotes += [*of_printed, *tables.privacy_notes(sections)]
    if args.format == "csv":  # the format has no place for notes
        print("\n".join(damaged), end="\n" * bool(damaged), file=sys.stderr)
        return pivot.to_csv(columns, choice) if columns else tables.to_csv(sections, choice)
    return _shown(args, sections, choice, footnotes, columns)


def _shown(args, sections, choice, footnotes, columns):
    """The comparison in a format for people; columns: those of the pivot table, or empty."""
    pivoted = pivot.table(columns, choice, args.format != "terminal") if columns else None
    results = conclusions.results(sections, choice, columns)
    if args.format == "html":
        from fedjax_lab.analysis import page

        return page.html(sections, choice, results, footnotes, pivoted)
    label = args.label or "tab:" + re.sub(r"[^A-Za-z0-9]+", "-", choice.measure)
    if pivoted:
        return _text([("", [pivoted])], [*results, *footnotes], args.format, label)
    sizes = [
        f"{block.title}: {size}" for block, *_ in sections if (size := conclusions.size(block))
    ]
    titled = [(section.block.heading, tables.tables(section, choice)) for section in sections]
    remarks = [*results, tables.subtitle(sections, choice), *sizes, *footnotes]
    return _text(titled, remarks, args.format, label)


def _sections(blocks, choice, wanted):
    """The blocks with their numbers, compared with the baseline that --baseline names."""
    return [
        tables.Section(
            block,
            baseline,
            compare.entries(
                block,
                choice.way,
                choice.measure,
                baseline,
                choice.target,
                choice.ddof,
                choice.descends,
            ),
        )
        for block, baseline in zip(blocks, compare.find_baseline(blocks, wanted), strict=True)
    ]


def _printed(names, sections, choice):
    """The published numbers of each section by row, and notes about them."""
    if not names:
        return [{}] * len(sections), []
    from fedjax_lab.analysis import matching

    printed = [one for name in names.split(",") for one in matching.read(name, choice)]
    matches = [
        {row.name: (row, one) for row in section.block.rows if (one := matching.find(row, printed))}
        for section in sections
    ]
    footnotes = matching.notes([pair for rows in matches for pair in rows.values()])
    if not any(matches):
        footnotes = [f"{names} has no number for these methods, settings, data and partitions"]
    return [{name: one.result for name, (_, one) in rows.items()} for rows in matches], footnotes


_TEXTS = {  # by format: how to write a table, a remark and a heading
    "terminal": (formats.terminal, "{}", "== {} =="),
    "markdown": (formats.markdown, "- {}", "## {}"),
    "latex": (formats.latex, "% {}", "% {}"),
}


def _text(titled, remarks, form, label):
    """Remarks, then tables under their titles; the LaTeX labels begin with `label`."""
    write, remark, heading = _TEXTS[form]
    notation = formats.escape_markdown if form == "markdown" else str

    def escaped(line):
        return notation(shown(line))

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
