"""Which rooms of the package import which: one way, and never in a circle."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedjax_lab"
ROOMS = {  # room: the modules and folders that it has
    "tools": (  # to write methods with, and metrics
        "types tree losses optim schedules sampling clusters streams errors measures metrics ranges"
        " wire"
    ),
    "core": (
        "contract failures local simulate flops evaluate parallel strategies mesh shards fsdp"
        " placement sizes width engine host_state tracing"
        " owners parts blocks pieces hosted"  # on the host
    ),  # runs methods
    "data": "data",
    "models": "models",
    "embedding": "embedding",
    "methods": "methods",
    "transforms": "transforms",  # of methods
    "references": "references",
    "registry": "registry",
    "aliases": "aliases",  # earlier names in configs
    "config": "config config_files configs",
    "federation": "federation",
    "experiment": "experiment transforming",
    "running": "running",  # a run and its folder
    "loaded": "loaded",  # one that is read again
    "analysis": "analysis",  # what is made of many runs
    "testing": "testing checks",  # checks of parts of one's own
}
MAY_IMPORT = {  # room: other rooms, and single modules of rooms that it must not import as a whole
    "tools": "",
    "core": "tools data.safe data.stream processes",  # free memory, examples; what all agree on
    "data": "tools",
    "models": "tools data.safe",  # first weights are read from files
    "embedding": "tools data models",
    "methods": "tools models local",  # the number of batches of a client
    "transforms": "tools",
    "references": "tools",
    "registry": "tools data models embedding methods transforms references",
    "aliases": "tools",
    "config": "tools data registry aliases references",  # the choices of normalizations
    "federation": "tools data",
    "experiment": "tools core data models embedding registry config federation transforms",
    "running": (
        "tools core data models transforms references registry aliases config federation experiment"
        " processes interrupts analysis.plots"  # the learning curve of a run
    ),
    "loaded": "tools core data models config experiment running",
    "analysis": (
        "tools core data models embedding methods registry config federation experiment running"
        " loaded"
    ),
    "testing": "tools core data models embedding registry federation experiment running",
}


def modules(package):
    """{dotted name: file} of a package; a folder has the name of its __init__.py."""
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(path, names):
    """The modules of the package that a file imports, also those imported inside of functions.

    `from toy.data import safe` imports toy.data.safe, and with it toy.data, whose __init__.py runs.
    The package itself does not count: its `run` imports what it runs.
    """
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in names else node.module for name in full}
    folders = {name.rsplit(".", 1)[0] for name in imported if name.count(".") > 1}
    return {name for name in imported | folders if name in names and "." in name}


def graph(package=PACKAGE):
    """{module: the modules that it imports}."""
    names = modules(package)
    return {name: imports(path, names) - {name} for name, path in names.items()}


def circle(imported):
    """A circle of imports as text, `a -> b -> a`; empty where there is none."""
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def has(parts, module):
    """Whether one of the parts, separated by spaces, is that module or a folder above it."""
    return any(f"{module}.".startswith(f"{part}.") for part in parts.split())


def test_no_imports_go_in_a_circle():
    assert circle(graph()) == ""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room):
    allowed = f"{ROOMS[room]} {' '.join(ROOMS.get(at, at) for at in MAY_IMPORT[room].split())}"
    short = {
        module.partition(".")[2]: {name.partition(".")[2] for name in imported}
        for module, imported in graph().items()
    }
    beyond = {
        f"{module} imports {name}"
        for module in short
        if has(ROOMS[room], module) and not module.endswith(".__main__")  # which is a command
        for name in short[module]
        if not has(allowed, name) and name not in ("data", "analysis")  # the folders
    }
    assert beyond == set()


def test_a_circle_is_named_also_where_it_closes_inside_of_a_function(tmp_path):
    package = tmp_path / "toy"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__", "inner/__init__"):
        (package / f"{file}.py").touch()
    (package / "inner/one.py").write_text("from toy import two\n")
    (package / "two.py").write_text("def f():\n    import toy.inner.one\n")
    named = circle(graph(package)).split(" -> ")
    assert named[0] == named[-1] and sorted(named[1:]) == ["toy.inner.one", "toy.two"]


def test_a_folder_that_imports_its_files_which_import_each_other_is_a_circle(tmp_path):
    package = tmp_path / "toy"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner/__init__.py").write_text("from toy.inner.one import f\n")
    (package / "inner/one.py").write_text("from toy.inner.two import f\n")
    (package / "inner/two.py").write_text("def f(): pass\n")
    assert set(circle(graph(package)).split(" -> ")) == {"toy.inner", "toy.inner.one"}


def test_importing_the_package_starts_nothing():
    """No extra, no backend: a library import must not touch the devices."""

    code = (
        "import sys, fedjax_lab, fedjax_lab.running.runner, jax._src.xla_bridge as b;"
        "print(len(b._backends), [m for m in ('torch', 'tensorflow', 'transformers',"
        " 'matplotlib.pyplot', 'orbax', 'grain', 'array_record') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "0 []", out.stdout
