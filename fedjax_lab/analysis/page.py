"""Writes a comparison as one self-contained HTML page, without network access or scripts."""

import html as escaping
import json
from collections.abc import Sequence

from fedjax_lab.analysis import formats, runs
from fedjax_lab.analysis.formats import Table
from fedjax_lab.analysis.tables import WAYS, Choice, Section, subtitle, tables, with_unit
from fedjax_lab.errors import printable
from fedjax_lab.running import plots
from fedjax_lab.simulation.units import is_percent, metric_of

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --soft: #595959; --grid: #ccc;
  --line-0: #0072b2; --line-1: #d55e00; --line-2: #009e73; --line-3: #cc79a7; --line-4: #e69f00;
  --line-5: #56b4e9; --line-6: #555; }
@media (prefers-color-scheme: dark) { :root { --paper: #161616; --ink: #e8e8e8; --soft: #b0b0b0;
  --grid: #444; --line-0: #4ba3e3; --line-1: #ff8c42; --line-2: #2fcf9f; --line-3: #e59ac4;
  --line-4: #f0b93a; --line-5: #8fd3ff; --line-6: #aaa; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 100rem; margin: 0 auto; padding: 1rem clamp(0.75rem, 3vw, 2.5rem) 3rem; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; } h2 { font-size: 1.2rem; margin: 2.5rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 2rem 0 0.5rem; }
h1, h2, p, li, summary, dd { overflow-wrap: anywhere; }
p, ul { max-width: 50rem; } p.how, figcaption { color: var(--soft); }
.tables { display: flex; flex-wrap: wrap; gap: 1.5rem 4rem; } .tables > * { max-width: 100%; }
.tables p { margin: 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.75rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 8rem;
  max-width: min(24rem, 45vw); font-weight: normal; overflow-wrap: anywhere;
  position: sticky; left: 0; background: var(--paper); }
thead th { border-bottom: 1px solid var(--ink); font-weight: 600; vertical-align: bottom; }
thead th[colspan] { border-bottom-color: var(--grid); text-align: left; }
td sup { display: inline-block; width: 0; line-height: 0; }
tbody tr + tr > * { border-top: 1px solid var(--grid); }
.grid { display: grid; gap: 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; } figure svg { display: block; width: 100%; max-width: 32rem; height: auto; }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: 0.25rem 1.5rem; padding: 0;
  max-width: none; font-size: 0.875rem; }
.key svg { width: 3em; height: 1em; margin-right: 0.5em; vertical-align: middle; }
details { border-top: 1px solid var(--grid); padding: 0.5rem 0; } summary { cursor: pointer; }
pre { overflow-x: auto; font-size: 0.8125rem; }
"""


def html(
    sections: Sequence[Section],
    choice: Choice,
    notes: Sequence[str],
    pivoted: Table | None = None,
) -> str:
    """The HTML page: tables, curves, distributions, and the config behind every number.

    Args:
      sections: the blocks with their numbers.
      choice: the measure and the way by which runs are compared.
      notes: lines to show at the top.
      pivoted: a table of all sections, shown before them.
    """
    title = f"{choice.measure}, {WAYS[choice.way]}: runs compared"
    how = _sign(subtitle(sections, choice))
    body = [f"<h1>{_text(title)}</h1>", f'<p class="how">{_text(how)}.</p>']
    if notes:
        body.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>")
    body += ['<div class="tables">', _table(pivoted), "</div>"] if pivoted else []
    for section in sections:
        body += ["<section>", f"<h2>{_text(section.block.name)}</h2>"]
        body += ['<div class="tables">', *map(_table, tables(section, choice)), "</div>"]
        body += [*_curves(section, choice), *_distributions(section, choice)]
        body += [*_configs(section), "</section>"]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
            *body,
            "</main>\n</body>\n</html>",
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
    title = _text(_sign(table.title))
    return (
        f'<div>\n<p class="how">{title}</p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n<table>'
        f"<thead>{heads}</thead>\n<tbody>" + "\n".join(lines) + "</tbody></table></div></div>"
    )


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
    keys = [f"<li>{_key(i)}{_text(row.name)}</li>" for i, row in enumerate(rows)]
    yield f'<h3>Curves</h3>\n<ul class="key">{"".join(keys)}</ul>\n<div class="grid">'
    for axis, label in runs.AXES.items():
        points = [(curve[axis], curve["values"]) for curve in curves]
        figure = plots.draw_curves(points, label, with_unit(runs.shown(choice.measure)))
        yield _figure(figure, f"{choice.measure} against {label}")
    yield '</div>\n<p class="how">Means over seeds, shaded from the lowest seed to the highest.</p>'


def _key(i):
    drawn = plots.svg(plots.draw_key(i), "")
    return drawn.replace('role="img" aria-label=""', 'aria-hidden="true"', 1)


def _figure(figure, label):
    return f"<figure>{plots.svg(figure, label)}</figure>"


def _distributions(section, choice):
    rows = section.block.rows
    way = WAYS[choice.way]
    clients = {r.name: runs.per_client(r, choice.way, choice.measure) for r in rows}
    if any(map(len, clients.values())):
        yield '<h3>Clients</h3>\n<div class="grid">'
        metric = metric_of(choice.measure)
        unit = ", %" if is_percent(metric) else ""
        figure = plots.draw_strips(clients, f"{metric} of a client{unit}", f"clients, {way}", True)
        yield _figure(figure, f"{metric} of each client by row, {way}")
        yield (
            '</div>\n<p class="how">Clients of all seeds: boxes show median and quartiles, whiskers'
            " the 5th and 95th percentiles; each client is also a point in rows with at most"
            f" {plots.DOTS} values.</p>"
        )
    measured = {row.name: runs.measured(row, choice.way) for row in rows}
    domains = dict.fromkeys(
        m for seeds in measured.values() for one in seeds.values() for m in one if "domains." in m
    )
    if domains:
        yield '<h3>Domains</h3>\n<div class="grid">'
        for domain in domains:
            values = {
                name: [m[domain] for m in seeds.values() if domain in m]
                for name, seeds in measured.items()
            }
            name = runs.shown(domain.removeprefix("domains."))
            figure = plots.draw_strips(values, "accuracy, %", name)
            yield _figure(figure, f"accuracy on {name} by row, {way}")
        yield '</div>\n<p class="how">Each point is a seed; the bar is their mean.</p>'


def _configs(section):
    yield "<h3>The config behind every number</h3>"
    for row in section.block.rows:
        items = "".join(f"<li>{_text(line)}</li>" for line in map(_run, row.runs))
        config = escaping.escape(json.dumps(row.runs[0].config, indent=2))
        yield (
            f"<details><summary>{_text(row.name)}</summary>\n<ul>{items}</ul>\n"
            f'<pre tabindex="0">{config}</pre></details>'
        )


def _run(run):
    parts = [f"{runs.shown(str(run.folder))}: seeds {', '.join(map(str, run.seeds))}"]
    parts.append(f"{run.rows[-1]['round']} rounds")
    parts += [runs.shown(run.summary[key]) for key in ("device", "strategy") if key in run.summary]
    versions = run.summary.get("versions", {})
    parts += [f"{runs.shown(name)} {runs.shown(v)}" for name, v in versions.items()]
    return ", ".join(parts)
