"""The accuracy of each client of a run, by its number of examples and its domain.

python -m fedjax_lab.figures clients FOLDER [--measure=accuracy.mean] [--way=last] [--seed=0]
                                    [--names=fedavg=Ours]

--measure  the measure to show, as in fedjax_lab.report; default: the run's headline accuracy
--way      which round the numbers are taken from, as in fedjax_lab.report
--seed     the seed; default: the run's first seed
--names    the names to show for the method, the data and the partition, as in fedjax_lab.report

clients.png has a point for each client: its number of training examples and its accuracy, with a
color for each domain if every client holds one. numbers.json has the numbers and names of all
clients, and the printed table those with the lowest accuracy, followed, for a run with a clock, by
the means of five groups of clients from the fastest to the slowest. The run need not be finished.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedjax_lab.analysis import compare, formats, runs
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.analysis.tables import WAYS, axis_label, digits
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.experiment import clients, titles
from fedjax_lab.running import loading, plots
from fedjax_lab.running.storage import files
from fedjax_lab.running.tasks import fifths
from fedjax_lab.simulation.units import LOWER_IS_BETTER, OF_NEW, PER_CLIENT, measure_of, metric_of

PRINTED = 20  # the most clients in the printed table
NAMED = 20  # the most clients whose names stand beside their points
DOMAINS = 28  # the most domains with a color and marker of their own
WIDE = 20  # from this ratio of the largest to the smallest client on, the axis is logarithmic


def draw(
    workdir: Path,
    *,
    measure: str = "",
    way: str = "last",
    seed: int | None = None,
    names: str = "",
) -> Drawn:
    """The values of a measure for the clients of one seed of a run."""
    if way not in WAYS:
        raise BadInput(f"--way={way}; {nearest(way, WAYS)}")
    run = runs.read(workdir)
    blocks, notes = runs.arrange([run])
    measure = compare.choose(blocks, way, measure or None)
    _check(measure)
    rows = runs.picked(blocks[0].rows[0], way)
    seed = run.seeds[0] if seed is None else seed
    if seed not in rows:
        raise BadInput(f"{workdir} has no seed {seed} with an evaluation; valid: {list(rows)}")
    if f"{measure}{PER_CLIENT}" not in rows[seed]:
        measure = measure_of(metric_of(measure), "mean")
    values = runs.of_clients(rows[seed], measure)
    if all(value is None for value in values):
        raise BadInput(f"the run has no values of single clients for {measure}")
    known = _known(workdir)["clients"].get(str(seed), {})
    described = _described(workdir, known, values)
    title = f"{titles.of_run(run.config, titles.parse(names, [run.config]))}: {WAYS[way]}"
    how = {"measure": measure, "way": way, "seed": seed}
    text = formats.terminal(table(described, measure, title))
    picture = scatter(described, axis_label(measure), title)
    text += _by_speed(known, measure, values)
    return Drawn({"clients": picture}, how | {"clients": described}, "\n".join([*notes, text]))


def _check(measure):
    """Raises BadInput if the measure has values of new clients, which names.json does not name."""
    if measure in {measure_of(metric_of(measure), form) for form in OF_NEW}:
        raise BadInput(f"--measure={measure} is of new clients; this figure shows those that train")


def _described(workdir, known, values):
    """What is known of each client, with its value. Raises files.Damaged for another number."""
    absent = {"names": clients.numbers(len(values)), "examples": [], "domains": [""] * len(values)}
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
        known = clients.names_of_run(
            built.dataset, simulation.federations, simulation.seeds, simulation.task_seconds
        )
    return known


def _by_speed(known, measure, values):
    """A line with the means of five groups of clients by speed; "" without unequal speeds."""
    numbers = np.array([np.nan if value is None else value for value in values])
    groups = fifths(np.array(known["seconds"]), numbers) if "seconds" in known else []
    if not groups:
        return ""
    means = [np.nanmean(group) for group in groups if len(group)]
    words = "  ".join(format(mean, f".{digits(measure)}f") for mean in means)
    return f"\n{axis_label(measure)} by speed, from the fastest to the slowest fifth: {words}"


def table(described: list[dict], measure: str, title: str) -> formats.Table:
    """The clients with the worst values, worst first; those without a value are left out."""
    sign = -1 if metric_of(measure) in LOWER_IS_BETTER else 1
    measured = [client for client in described if client["value"] is not None]
    worst = sorted(measured, key=lambda client: sign * client["value"])[:PRINTED]
    with_domain = ["domain"] if any(client["domain"] for client in described) else []
    keys, form = ["name", "examples", *with_domain], f".{digits(measure)}f"
    cells = [
        [*(str(client[key]) for key in keys), formats.number(client["value"], form)]
        for client in worst
    ]
    header = ["client", *keys[1:], axis_label(measure)]
    some = len(worst) < len(described)
    count = f"the {len(worst)} worst of {len(described)} clients" if some else ""
    return formats.Table(", ".join(filter(None, (title, count))), header, cells)


@plots.in_style
def scatter(described: list[dict], ylabel: str, title: str) -> Figure:
    """Draws the values of clients against their numbers of examples, by domain."""
    measured = [client for client in described if client["value"] is not None]
    domains = list(dict.fromkeys(client["domain"] for client in measured))
    single = "" in domains or not 1 < len(domains) <= DOMAINS
    figure = Figure((6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for i, domain in enumerate(domains[:1] if single else domains):
        each = [c for c in measured if single or c["domain"] == domain]
        points = [c["examples"] for c in each], [c["value"] for c in each]
        axes.plot(*points, **plots.look(i) | {"linestyle": "none", "alpha": 0.8})
    sizes = np.array([client["examples"] for client in measured])
    if sizes.max() > WIDE * max(sizes.min(), 1):
        with_zero = {"value": "symlog", "linthresh": 1}
        axes.set_xscale(**({"value": "log"} if sizes.min() else with_zero))
    else:
        axes.set_xlim(0, 1.05 * sizes.max())
    plots.set_labels(axes, "training examples of the client", ylabel, title)
    if len(measured) <= NAMED:
        _write_names(axes, measured, domains)
    plots.add_legend(figure, [] if single else axes.lines, [] if single else domains)
    return figure


def _write_names(axes, measured, domains):
    """Writes names beside points, unless they are the domains' in the legend."""
    for client in measured:
        if client["name"] not in domains:
            at = client["examples"], client["value"]
            name, where = plots.plain(client["name"]), {"textcoords": "offset points"}
            axes.annotate(name, at, (4, 3), fontsize="small", **where)
