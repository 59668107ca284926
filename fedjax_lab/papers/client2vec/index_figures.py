"""Client2Vec's pictures and times of finished runs, for the first seed of each run.

python -m fedjax_lab.figures client2vec FOLDER...

For each run that computed a client index, two pictures are drawn. NAME-clients.png (Fig. 3; without
the diversity loss, Fig. 8) shows the cosine similarities between the clients' feature indices
beta^f, and between their client indices beta (the mean of the cosines of both parts, as in S).
Clients are ordered by domain, or else by their most frequent class. NAME-domains.png (Fig. 2) shows
the cosine similarities between the means of beta^f over the clients of each domain.

The command prints the mean similarity of clients in the same group and in different groups, and the
seconds for the index and for training to the best accuracy that every run reached (Table 3).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedjax_lab.analysis.figures.drawn import Drawn, by_name, rows_of
from fedjax_lab.analysis.finished import Finished, load
from fedjax_lab.methods.client2vec import Server
from fedjax_lab.running import plots
from fedjax_lab.running.storage import metric_rows


def draw(*workdirs: Path) -> Drawn:
    """The times of all runs, and the similarity of clients in runs that computed an index."""
    named = by_name(workdirs)
    finished = {name: load(workdir) for name, workdir in named.items()}
    lines = list(times({name: rows_of(workdir) for name, workdir in named.items()}))
    pictures: dict[str, Figure] = {}
    for name, run in finished.items():
        if isinstance(run.state.server, Server):  # every tuple has a method `index`
            said, drawn = draw_index(run)
            lines += [f"{name}: {line}" for line in said]
            pictures |= {f"{name}-{kind}": figure for kind, figure in drawn.items()}
    return Drawn(pictures, text="\n".join(lines))


def times(rows: dict[str, list[dict]]) -> Iterator[str]:
    """Yields the lines of Table 3; rows: the evaluations of each run, by its name."""
    goal = min(max(map(accuracy, scored(of_run))) for of_run in rows.values())
    yield f"{'run':24}{'index, s':>12}{f'training to {goal:.1f} %, s':>26}"
    for name, of_run in rows.items():
        yield "{:24}{:12.1f}{:26.1f}".format(name, *seconds(of_run, goal))


def draw_index(run: Finished) -> tuple[list[str], dict[str, Figure]]:
    """The similarity of clients within and between groups, in words and in pictures."""
    index = run.state.server.index
    groups, names, what = groups_of(run)
    tables = {"feature index": cosines(index.feature)}
    if len(index.label):  # index=local_weights has no label part
        both = cosines(index.feature) + cosines(index.label)
        tables["client index"] = both / 2
    lines = []
    for title, table in tables.items():
        same, other = alike(table, groups)
        lines.append(f"cosine of {title}, same {what} {same:.3f}, other {other:.3f}")
    pictures = {"clients": draw_clients(tables, groups, names, what)}
    if what == "domain":
        means = [index.feature[groups == g].mean(0) for g in range(len(names))]
        pictures["domains"] = draw_domains(cosines(np.stack(means)), names)
    return lines, pictures


def scored(rows: list[dict]) -> list[dict]:
    """The evaluations of the training stage, which is the last one."""
    return [row for row in rows if row["stage"] == rows[-1]["stage"]]


def accuracy(row: dict) -> float:
    """The headline accuracy of a scored evaluation, in percent."""
    headline = metric_rows.headline(row)
    assert headline is not None
    return headline


def seconds(rows: list[dict], goal: float) -> tuple[float, float]:
    """The seconds before the training stage, and those in it until the goal was reached.

    goal: an accuracy in percent.
    """
    before = [row["seconds"] for row in rows if row["stage"] != rows[-1]["stage"]]
    index = before[-1] if before else 0.0
    reached = next(row for row in scored(rows) if accuracy(row) >= goal)
    return index, reached["seconds"] - index


def groups_of(run: Finished) -> tuple[np.ndarray, list[str], str]:
    """The group of each client [C], the names of the groups, and what a group is in words."""
    domains, federation = run.experiment.dataset.domains, run.federation
    if len(domains) > 1:
        rows = np.asarray(federation.train)
        domain = np.where(rows >= 0, np.asarray(federation.domain)[rows], -1)
        counts = np.stack([(domain == d).sum(1) for d in range(len(domains))], 1)
        return counts.argmax(1), list(domains), "domain"
    classes = list(run.experiment.dataset.classes)
    return np.asarray(run.population.label_count).argmax(1), classes, "main class"


def cosines(b) -> np.ndarray:
    """The cosine similarities [R, R] between the rows of b [R, D]."""
    b = np.asarray(b, np.float64)
    b = b / np.maximum(np.linalg.norm(b, axis=1, keepdims=True), 1e-8)
    return b @ b.T


def alike(table: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """The mean cosine of two clients in the same group, and in different groups."""
    same = groups[:, None] == groups
    others = ~np.eye(len(groups), dtype=bool)
    return table[same & others].mean(), table[~same].mean()


def draw_clients(
    tables: dict[str, np.ndarray], groups: np.ndarray, names: list[str], what: str
) -> Figure:
    """Fig. 3: the tables side by side with a common scale; lines separate the groups."""
    order = np.argsort(groups, kind="stable")
    shown = {title: table[np.ix_(order, order)] for title, table in tables.items()}
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    side = plots.Side(f"clients, by {what}", [names[g] for g in np.unique(groups)], cuts)
    return plots.draw_heat_maps(shown, "cosine similarity", side, side, low=-1, high=1)


def draw_domains(table: np.ndarray, names: list[str]) -> Figure:
    """Fig. 2, with a number in each cell."""
    side, label = plots.Side("domain", names), "cosine similarity of feature indices"
    return plots.draw_heat_maps({"": table}, label, side, side, low=-1, high=1, written=True)
