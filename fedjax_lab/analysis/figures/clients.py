"""The accuracy of each client, by its number of examples and its domain, also for a whole sweep.

python -m fedjax_lab.figures clients FOLDER... [--measure=accuracy.mean] [--way=last] [--seed=0]
                                    [--names=fedavg=Ours]

--measure  the measure to show, as in fedjax_lab.report; default: the run's headline accuracy
--way      which round the numbers are taken from, as in fedjax_lab.report
--seed     the seed; default: the first seed that all runs have
--names    the names to show for the method, the data and the partition, as in fedjax_lab.report

clients.png has a point for each client: its number of training examples and its accuracy, with a
color for each domain if every client holds one. numbers.json has the numbers and names of all
clients, and the printed table those with the lowest accuracy, followed, for a run with a clock, by
the means of five groups of clients from the fastest to the slowest. The run need not be finished.

If FOLDER is a sweep, or there are several, clients.png has a field for each row, all with the same
axes, and the table a column for each; its first clients are those with the worst mean over rows.
Each data set and partition has a picture of its own, whose name ends in a number.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedjax_lab.analysis import compare, formats, runs
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.analysis.tables import WAYS, axis_label, digits
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.experiment import run_names, titles
from fedjax_lab.running import loading, plots
from fedjax_lab.running.storage import files
from fedjax_lab.running.tasks import fifths
from fedjax_lab.simulation.units import (
    LOWER_IS_BETTER,
    OF_NEW,
    PER_CLIENT,
    measure_of,
    metric_of,
    sentence,
)

EXAMPLES = "training examples of the client"  # the label of the axis
PRINTED = 20  # the most clients in the printed table
NAMED = 20  # the most clients whose names stand beside their points
DOMAINS = 28  # the most domains with a color and marker of their own
WIDE = 20  # from this ratio of the largest to the smallest client on, the axis is logarithmic


def draw(
    *workdirs: Path,
    measure: str = "",
    way: str = "last",
    seed: int | None = None,
    names: str = "",
) -> Drawn:
    """The values of a measure for the clients of one seed of runs."""
    if way not in WAYS:
        raise BadInput(f"--way={way}; {nearest(way, WAYS)}")
    whole, damaged = runs.read_all(runs.find(workdirs))
    called = titles.parse(names, [run.config for run in whole])
    blocks, notes = runs.arrange(whole, called)
    measure = compare.choose(blocks, way, measure or None)
    _check(measure)
    drawn = [_draw_block(block, measure, way, seed, called) for block in blocks]
    text = "\n".join([*damaged, *notes, "\n\n".join(one.text for one in drawn)])
    if len(drawn) == 1:
        return drawn[0]._replace(text=text)
    numbered = {f"clients-{number}": one for number, one in enumerate(drawn, 1)}
    pictures = {name: one.pictures["clients"] for name, one in numbered.items()}
    return Drawn(pictures, {name: one.numbers for name, one in numbered.items()}, text)


def _draw_block(block, measure, way, seed, called):
    """The picture, the numbers and the table of the rows of one federation."""
    picked = {row.title: runs.picked(row, way) for row in block.rows}
    seed = _shared_seed(block, picked.values(), seed)
    if any(f"{measure}{PER_CLIENT}" not in seeds[seed] for seeds in picked.values()):
        measure = measure_of(metric_of(measure), "mean")
    rows, speeds = {}, ""
    for row in block.rows:
        values = runs.client_values(picked[row.title][seed], measure)
        if all(value is None for value in values):
            raise BadInput(f"{row.title} has no values of single clients for {measure}")
        folder = next(run.folder for run in row.runs if seed in run.seeds)
        known = _known(folder)["clients"].get(str(seed), {})
        rows[row.title] = _described(folder, known, values)
        speeds += _by_speed(known, measure, values, f"{row.title}: " * (len(block.rows) > 1))
    how = {"measure": measure, "way": way, "seed": seed}
    single, config = len(rows) == 1, block.rows[0].config
    title = f"{titles.run_title(config, called) if single else block.title}: {WAYS[way]}"
    picture = scatter(rows, axis_label(measure), title)
    numbers = {"clients": next(iter(rows.values()))} if single else {"rows": rows}
    return Drawn({"clients": picture}, how | numbers, table_text(rows, measure, title) + speeds)


def _shared_seed(block, evaluations, wanted):
    """The wanted seed, or the first one that all rows have."""
    seeds = [seed for seed in block.rows[0].seeds if all(seed in each for each in evaluations)]
    if wanted is None and seeds:
        return seeds[0]
    if wanted not in seeds:
        reason = "no seed of all rows" if wanted is None else f"no seed {wanted}"
        raise BadInput(f"{block.title} has {reason} with an evaluation; valid: {seeds}")
    return wanted


def _check(measure):
    """Raises BadInput if the measure has values of new clients, which names.json does not name."""
    if measure in {measure_of(metric_of(measure), form) for form in OF_NEW}:
        raise BadInput(f"--measure={measure} is of new clients; this figure shows those that train")


def _described(workdir, known, values):
    """The known facts of each client, with its value. Raises files.Damaged for another number."""
    absent = {
        "names": run_names.numbers(len(values)),
        "examples": [],
        "domains": [""] * len(values),
    }
    known = absent | known
    each = [known[key] for key in ("names", "examples", "domains")]
    if {len(column) for column in each} != {len(values)}:
        raise files.Damaged(f"{workdir / 'names.json'} does not fit metrics.jsonl")
    keys = ("client", "name", "examples", "domain", "value")
    rows = zip(range(len(values)), *each, values, strict=True)
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _known(workdir):
    """The content of names.json; of a run of an earlier version, which has none, from its data."""
    known = files.read_json(workdir / "names.json", files.NAMES)
    if known is None:
        built = loading.build(workdir)
        simulation = built.simulation
        known = run_names.names_of_run(built.dataset, simulation.seeds)
    return known


def _by_speed(known, measure, values, row):
    """A line with the means of five groups of clients by speed; "" without unequal speeds."""
    numbers = np.array([np.nan if value is None else value for value in values])
    groups = fifths(np.array(known["seconds"]), numbers) if "seconds" in known else []
    if not groups:
        return ""
    means = [np.nanmean(group) for group in groups if len(group)]
    words = "  ".join(format(mean, f".{digits(measure)}f") for mean in means)
    what = f"{row}{axis_label(measure)} by speed"
    return f"\n{what}, from the fastest to the slowest fifth: {words}"


def table_text(rows: Mapping[str, Sequence[dict]], measure: str, title: str) -> str:
    """A table of the clients with the worst means over rows, worst first.

    rows: the clients of each row by its title; clients without a value in all rows are left out.
    """
    sign = -1 if metric_of(measure) in LOWER_IS_BETTER else 1
    clients = [same for same in zip(*rows.values(), strict=True) if None not in _values(same)]
    worst = sorted(clients, key=lambda same: sign * sum(_values(same)))[:PRINTED]
    with_domain = ["domain"] if any(same[0]["domain"] for same in clients) else []
    keys, form = ["name", "examples", *with_domain], f".{digits(measure)}f"
    cells = [
        [*(str(same[0][key]) for key in keys), *(format(value, form) for value in _values(same))]
        for same in worst
    ]
    several, number = len(rows) > 1, len(next(iter(rows.values())))
    header = ["client", *keys[1:], *(rows if several else [axis_label(measure)])]
    count = f"the {len(worst)} worst of {number} clients" if len(worst) < number else ""
    what = axis_label(measure) if several else ""
    title = ", ".join(filter(None, (title, what, count)))
    return formats.terminal(formats.Table(title, header, cells))


def _values(clients):
    return [client["value"] for client in clients]


@plots.in_style
def scatter(rows: Mapping[str, Sequence[dict]], ylabel: str, title: str) -> Figure:
    """Draws the values of clients against their numbers of examples, by domain.

    rows: the clients of each row by its title; each row is a field of the picture.
    """
    measured = [client for row in rows.values() for client in row if client["value"] is not None]
    domains = list(dict.fromkeys(client["domain"] for client in measured))
    single = "" in domains or not 1 < len(domains) <= DOMAINS
    across = 2 if len(rows) == 4 else min(3, len(rows))
    down = -(-len(rows) // across)
    size = (6.0, 3.6) if len(rows) == 1 else (1.2 + 2.4 * across, 0.8 + 2.2 * down)
    figure = Figure(size, layout="constrained")
    fields = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    for k, (axes, (name, row)) in enumerate(zip(fields, rows.items(), strict=False)):
        _draw_points(axes, row, [None] if single else domains)
        axes.set_title(plots.plain(name) if len(rows) > 1 else "")
        axes.tick_params(labelbottom=k + across >= len(rows))
        if len(row) * len(rows) <= NAMED:
            _write_names(axes, row, domains)
    _scale(fields[0], np.array([client["examples"] for client in measured]))
    if len(rows) == 1:
        plots.set_labels(fields[0], EXAMPLES, ylabel, title)
    else:
        figure.supxlabel(sentence(EXAMPLES), fontsize="medium")
        figure.supylabel(plots.plain(sentence(ylabel)), fontsize="medium")
        figure.suptitle(plots.plain(title), fontsize="medium")
    for axes in fields[len(rows) :]:
        axes.set_axis_off()
    plots.add_legend(figure, [] if single else fields[0].lines, [] if single else domains)
    return figure


def _draw_points(axes, clients, domains):
    """Draws the clients of each domain; the domain None stands for all of them."""
    for i, domain in enumerate(domains):
        each = [c for c in clients if c["value"] is not None and domain in (None, c["domain"])]
        axes.plot(
            [c["examples"] for c in each],
            _values(each),
            **plots.look(i) | {"linestyle": "none", "alpha": 0.8},
        )


def _scale(axes, sizes):
    """Scales the axis of examples by these numbers: logarithmically if they are unlike."""
    if sizes.max() > WIDE * max(sizes.min(), 1):
        with_zero = {"value": "symlog", "linthresh": 1}
        axes.set_xscale(**({"value": "log"} if sizes.min() else with_zero))
    else:
        axes.set_xlim(0, 1.05 * sizes.max())


def _write_names(axes, clients, domains):
    """Writes names beside points, unless they are the domains' in the legend."""
    for client in clients:
        if client["value"] is not None and client["name"] not in domains:
            at = client["examples"], client["value"]
            name = plots.plain(client["name"])
            axes.annotate(name, at, (4, 3), fontsize="small", textcoords="offset points")
