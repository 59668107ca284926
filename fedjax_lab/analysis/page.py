"""Writes a comparison as one self-contained HTML page that needs no network.

A small script sorts tables by a click on a heading, and shows the values of curves at the pointer.
"""

import html as escaping
import json
from collections.abc import Sequence
from importlib import resources

from fedjax_lab.analysis import conclusions, formats, runs
from fedjax_lab.analysis.formats import Table
from fedjax_lab.analysis.tables import (
    WAYS,
    Choice,
    Section,
    axis_label,
    digits,
    forms_of,
    subtitle,
    tables,
)
from fedjax_lab.errors import printable
from fedjax_lab.running import plots
from fedjax_lab.simulation.units import in_words, measure_of, metric_of, sentence

_STYLE, _SCRIPT = (
    resources.files("fedjax_lab.analysis").joinpath(name).read_text(encoding="utf-8")
    for name in ("page.css", "page.js")
)
_AT = {
    "rounds": "round {:g}",
    "megabytes": "{:.4g} MB",
    "seconds": "{:.4g} s",
    "virtual_seconds": "{:.4g} virtual s",
}  # of runs.AXES


def html(
    sections: Sequence[Section],
    choice: Choice,
    results: Sequence[str],
    notes: Sequence[str],
    pivoted: Table | None = None,
) -> str:
    """The HTML page: tables, curves, distributions, and the config behind every number.

    Args:
      sections: the blocks with their numbers.
      choice: the measure and the way by which runs are compared.
      results: what the comparison says, in sentences to show at the top.
      notes: lines to show below them.
      pivoted: a table of all sections, shown before them.
    """
    title = conclusions.subject(sections)
    how = sentence(_sign(subtitle(sections, choice)))
    body = [f"<h1>{_text(title)}</h1>"]
    body += [f'<p class="result">{_text(_sign(result))}</p>' for result in results]
    body.append(f'<p class="how">{_text(how)}.</p>')
    if notes:
        body.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>")
    body += ['<div class="tables">', _table(pivoted), "</div>"] if pivoted else []
    for number, section in enumerate(sections):
        shown = tables(section, choice)
        body += ["<section>", f"<h2>{_text(section.block.heading)}</h2>"]
        body += [f"<p>{size}</p>"] if (size := conclusions.size(section.block)) else []
        body += ['<div class="tables">', *map(_table, shown), "</div>"]
        body += [] if number else [_key_of_columns(shown, choice)]
        body += [*_curves(section, choice), *_clients(section, choice)]
        body += [*_domains(section, choice), *_configs(section), "</section>"]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n<main>",
            *body,
            f"</main>\n<script>\n{_SCRIPT}</script>\n</body>\n</html>",
        ]
    )


def _text(text):
    return escaping.escape(printable(str(text)))


def _sign(text):
    return text.replace("+-", "±")


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in table.header)
    groups = "".join(
        f'<th scope="colgroup" colspan="{columns}">{_text(name)}</th>'
        for name, columns in table.groups
    )
    heads = f"<tr><td></td>{groups}</tr>\n" * bool(groups) + f"<tr>{head}</tr>"
    lines = []
    for i, (name, *cells) in enumerate(table.cells):
        tds = "".join(f"<td>{_cell(table, i, j, cell)}</td>" for j, cell in enumerate(cells, 1))
        lines.append(f'<tr><th scope="row">{_text(name)}</th>{tds}</tr>')
    title = _text(_sign(sentence(table.title)))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n<table>'
        f"<caption><span>{title}</span></caption>\n"
        f"<thead>{heads}</thead>\n<tbody>" + "\n".join(lines) + "</tbody></table></div>"
    )


def _key_of_columns(shown, choice):
    """A list that explains the columns of these tables."""
    (_, mean), *_ = forms_of(metric_of(choice.measure)).values()
    headers = dict.fromkeys(header for table in shown for header in table.header)
    meanings = {mean: conclusions.MEAN, **conclusions.KEY}
    items = [
        f"<dt>{_text(header)}</dt><dd>{_text(meanings[header])}</dd>"
        for header in headers
        if header in meanings
    ]
    return f"<h3>What the columns mean</h3>\n<dl>{''.join(items)}</dl>"


def _cell(table, i, j, cell):
    how = "<strong>{}</strong>", "<u>{}</u>"
    mark = table.marks.get((i, j))
    text = formats.set_off(table, i, j, _text(_minus(cell)), how)
    return text + (f"<sup>{mark}</sup>" if mark else "")


def _minus(cell):
    if cell == "-":
        return "–"
    return _sign(cell).replace("to -", "to −").replace("-", "−", cell.startswith("-"))


def _curves(section, choice):
    rows = section.block.rows
    curves = [runs.curve(row, choice.measure) for row in rows]
    keys = [f"<li>{_key(i)}{_text(row.title)}</li>" for i, row in enumerate(rows)]
    yield f'<h3>Curves</h3>\n<ul class="key">{"".join(keys)}</ul>\n<div class="grid">'
    for axis, label in runs.axes(curves).items():
        points = [(curve[axis], curve["values"]) for curve in curves]
        figure = plots.draw_curves(points, label, axis_label(choice.measure))
        points_with_text = [
            (x, *_point(row.title, _AT.get(axis, "{:.4g}").format(x), values, choice.measure))
            for row, curve in zip(rows, curves, strict=True)
            for x, values in zip(curve[axis].tolist(), curve["values"].T, strict=True)
        ]
        yield _figure(figure, f"{choice.measure} against {label}", points_with_text)
    yield '</div>\n<p class="how">Means over seeds, shaded from the lowest seed to the highest.</p>'


def _point(name, at, values, measure):
    """The mean of a curve's point over seeds, and a text with its values."""
    form = f".{digits(measure)}f"
    mean, low, high = (format(f(), form) for f in (values.mean, values.min, values.max))
    span = f" ({low} to {high})" if len(values) > 1 else ""
    return float(values.mean()), f"{name}, {at}: {mean}{span}"


def _key(i):
    drawn = plots.svg(plots.draw_key(i), "")
    return drawn.replace('role="img" aria-label=""', 'aria-hidden="true"', 1)


def _figure(figure, label, points_with_text=()):
    """A picture.

    points_with_text: points (x, y, text) of its first axes; the pointer shows their text.
    """
    drawn = plots.svg(figure, label)
    places = plots.places(figure, [(x, y) for x, y, _ in points_with_text])
    points = [
        [round(x, 4), round(y, 4), printable(text)]
        for (x, y), (_, _, text) in zip(places, points_with_text, strict=True)
    ]
    listed = json.dumps(points, ensure_ascii=False).replace("<", "\\u003c")
    script = f'<script type="application/json">{listed}</script>' if points_with_text else ""
    return f"<figure>{drawn}{script}</figure>"


def _strip_points(rows, measure):
    """The points (x, y, text) of a picture of `plots.draw_strips`.

    rows: by row, the pairs of a point's name, which may be empty, and its value.
    """
    form = f".{digits(measure)}f"
    return [
        (value, i, f"{row}{', ' * bool(name)}{name}: {value:{form}}")
        for i, (row, pairs) in enumerate(rows.items())
        for name, value in (pairs if len(pairs) <= plots.DOTS else [])
    ]


def _clients(section, choice):
    """The values of single clients, if a row has some."""
    rows, way, metric = section.block.rows, WAYS[choice.way], metric_of(choice.measure)
    named = {r.title: runs.named_clients(r, choice.way, choice.measure) for r in rows}
    clients = {title: [value for _, value in pairs] for title, pairs in named.items()}
    if any(map(len, clients.values())):
        yield '<h3>Clients</h3>\n<div class="grid">'
        figure = plots.draw_strips(clients, in_words(runs.shown(metric)), f"Clients, {way}", True)
        named = {
            title: [(f"client {runs.shown(name)}", value) for name, value in pairs]
            for title, pairs in named.items()
        }
        points_with_text = _strip_points(named, choice.measure)
        yield _figure(figure, f"{metric} of each client by row, {way}", points_with_text)
        yield (
            '</div>\n<p class="how">Clients of all seeds: boxes show median and quartiles, whiskers'
            " the 5th and 95th percentiles; each client is also a point in rows with at most"
            f" {plots.DOTS} values.</p>"
        )


def _domains(section, choice):
    """The values of each seed by domain, if there are domains."""
    way, metric = WAYS[choice.way], metric_of(choice.measure)
    measured = {row.title: runs.measured(row, choice.way) for row in section.block.rows}
    prefix = f"{measure_of(metric, 'domains')}."
    each = (m for seeds in measured.values() for one in seeds.values() for m in one)
    domains = dict.fromkeys(m for m in each if m.startswith(prefix))
    if domains:
        yield '<h3>Domains</h3>\n<div class="grid">'
        for domain in domains:
            values = {
                name: [m[domain] for m in seeds.values() if domain in m]
                for name, seeds in measured.items()
            }
            name = runs.shown(domain.removeprefix(prefix))
            figure = plots.draw_strips(values, in_words(runs.shown(metric)), name)
            unnamed = {title: [("", value) for value in each] for title, each in values.items()}
            points_with_text = _strip_points(unnamed, choice.measure)
            yield _figure(figure, f"{metric} on {name} by row, {way}", points_with_text)
        yield '</div>\n<p class="how">Each point is a seed; the bar is their mean.</p>'


def _configs(section):
    yield "<h3>The config behind every number</h3>"
    for row in section.block.rows:
        items = "".join(f"<li>{_text(line)}</li>" for line in map(_run, row.runs))
        config = escaping.escape(json.dumps(row.config, indent=2))
        yield (
            f"<details><summary>{_text(row.title)}</summary>\n<ul>{items}</ul>\n"
            f'<pre tabindex="0">{config}</pre></details>'
        )


def _run(run):
    parts = [f"{runs.shown(str(run.folder))}: seeds {', '.join(map(str, run.seeds))}"]
    parts.append(f"{run.rows[-1]['round']} rounds")
    parts += [runs.shown(run.summary[key]) for key in ("device", "strategy") if key in run.summary]
    versions = run.summary.get("versions", {})
    parts += [f"{runs.shown(name)} {runs.shown(v)}" for name, v in versions.items()]
    return ", ".join(parts)
