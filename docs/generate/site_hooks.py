"""Hooks of MkDocs: add generated pages and pages from outside of docs/, and convert links."""

import re

import method_pages
import notebook_pages
import paper_pages
import repository_links
import result_tables
import wire_costs
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = repository_links.ROOT
DOCS = ROOT / "docs"
ORIGINS = {uri: path for path, uri in repository_links.COPIES.items()}
MARKER = re.compile(r"<!-- (accuracies|measured) (\w+) -->")
UNNAMED = re.compile(r'(<li class="doc-section-item field-body">)\s*–\s*(?=<div)')
CELL = re.compile(r"<td[^>]*>[^<]*</td>")
INTERVAL = re.compile(r"(?<=\d) (±|\+-|to) (?=[-−]?\d)")  # stays in one line of a cell
LISTS = ("reference/", "changelog.md")  # the search shows pages that explain before these
FLAG = re.compile(r"(?<![\w-])--\w[\w-]*")


def on_config(config):
    """Fill in the parts of the navigation that depend on existing methods, results, notebooks."""
    filled = {
        "Methods": ["methods/index.md", *_methods_by_group()],
        "Results": _results(),
        "Notebooks": [f"notebooks/{path.name}" for path in _notebooks()],
    }
    for entry in config.nav:
        ((title, pages),) = entry.items()
        if title in filled:
            entry[title] = filled[title] + (pages or [])
    config.nav = [entry for entry in config.nav if next(iter(entry.values()))]
    return config


def _methods_by_group():
    groups = method_pages.groups()
    titles = {name: method_pages.title(name) for names in groups.values() for name in names}
    return [
        {group: [{titles[name]: f"methods/{name}.md"} for name in names]}
        for group, names in groups.items()
    ]


def _notebooks():
    """The notebooks: those that a reader should see first, then the others by name."""
    first = ["one_run", "add_a_method", "own_loop", "sweep_and_compare"]
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return sorted(paths, key=lambda path: first.index(path.stem) if path.stem in first else 9)


def _results():
    """The existing pages of measured numbers."""
    kinds = "results*.md", "method_costs.md", "leaderboard*.md", "comparison*.md"
    return [path.name for kind in kinds for path in sorted(DOCS.glob(kind))]


@event_priority(100)  # before the plugin that renders notebooks
def on_files(files: Files, config) -> Files:
    """Add the generated pages, the pages from outside of docs/, notebooks and linked code."""
    for uri, text in _generated().items():
        files.append(File.generated(config, uri, content=text))
    for path in _notebooks():
        uri = f"notebooks/{path.name}"
        files.append(File(uri, str(ROOT), config.site_dir, config.use_directory_urls))
    for path in sorted(_linked(files)):
        page = repository_links.code_page(path)
        files.append(File.generated(config, f"code/{path}.md", content=page))
    return files


def _linked(files):
    """The files to which pages link and that the site shows as code."""
    paths = set()
    for file in files.documentation_pages():
        if file.src_uri.endswith(".md"):
            path = _path(file.src_uri)
            paths |= repository_links.linked_code(MARKER.sub(_filled, file.content_string), path)
    return paths


def _path(uri):
    """The file of the repository from which a page is made."""
    return ORIGINS.get(uri, f"docs/{uri}")


def _generated():
    """{address: text} of the pages that have no file in docs/."""
    costs = wire_costs.costs()
    of_all_methods = [DOCS / "leaderboard.md", DOCS / "method_costs.md"]
    numbers = result_tables.rows([*of_all_methods, *result_tables.files(DOCS)])
    pages = {
        f"methods/{name}.md": method_pages.page(name, costs.get(name), numbers.get(name, []))
        for names in method_pages.groups().values()
        for name in names
    }
    pages["methods/index.md"] = method_pages.overview(costs, wire_costs.SETTING)
    copies = {uri: (ROOT / path).read_text(encoding="utf-8") for uri, path in ORIGINS.items()}
    return pages | copies


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Fill in the markers on the papers' pages, convert links, and weigh pages for the search."""
    uri = page.file.src_uri
    if uri.startswith("code/"):
        return markdown
    if uri.startswith(LISTS):
        page.meta["search"] = {"boost": 0.01}
    return repository_links.on_site(MARKER.sub(_filled, markdown), uri, _path(uri))


def on_page_content(html: str, page, config, files) -> str:
    """Make notebooks readable without a network, and adapt the other pages' HTML."""
    html = CELL.sub(lambda cell: INTERVAL.sub("&nbsp;\\1&nbsp;", cell[0]), html)
    if page.file.src_uri.endswith(".ipynb"):
        return notebook_pages.offline(html)
    html = UNNAMED.sub(r"\1", html)
    return re.sub(r"(?<=<code>)[^<]+(?=</code>)", _unbroken_flags, html)


def _unbroken_flags(code):
    """Inline code in which no line ends after the dashes of a flag."""
    return FLAG.sub(r'<span class="flag">\g<0></span>', code[0])


def _filled(match):
    if match[1] == "accuracies":
        return paper_pages.accuracies(match[2].lower())
    return paper_pages.measured(match[2], DOCS)
