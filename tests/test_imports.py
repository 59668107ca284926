"""Checks which layers of the package import which others, and that the imports have no cycle."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedjax_lab"
LAYERS = {  # layer: its modules and folders
    "tools": (  # for writing methods and metrics
        "types tree losses optim schedules sampling clusters streams errors measures metrics ranges"
        " wire writing limits"
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
    "transforms": "transforms",  # wrappers of methods
    "references": "references",
    "registry": "registry",
    "aliases": "aliases",  # earlier names in configs
    "config": "config config_files configs",
    "federation": "federation",
    "experiment": "experiment transforming",
    "running": "running",  # a run and its folder
    "loaded": "loaded",  # a finished or running run that is loaded
    "analysis": "analysis",  # tables and figures of many runs
    "testing": "testing checks",  # checks of user-defined parts
}
MAY_IMPORT = {  # layer: other layers, and single modules of layers that it must not import whole
    "tools": "",
    "core": "tools data.safe data.stream processes",  # free memory, examples, processes
    "data": "tools",
    "models": "tools data.safe",  # reads initial weights from files
    "embedding": "tools data models",
    "methods": "tools models local",  # the number of batches of a client
    "transforms": "tools",
    "references": "tools",
    "registry": "tools data models embedding methods transforms references",
    "aliases": "tools",
    "config": "tools data registry aliases references",  # names of normalizations
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
    """Returns {dotted name: file} of a package; a folder has the name of its __init__.py."""
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(path, names):
    """Returns the modules of the package that a file imports, also inside functions.

    `from toy.data import safe` imports toy.data.safe, and with it toy.data, whose __init__.py runs.
    The package itself does not count, because its `run` imports what it runs.
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


@functools.cache
def graph(package=PACKAGE):
    """Returns {module: the modules that it imports}."""
    names = modules(package)
    return {name: imports(path, names) - {name} for name, path in names.items()}


def find_cycle(imported):
    """Returns a cycle of imports as text, `a -> b -> a`, or an empty text if there is none."""
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def has(parts, module):
    """Returns whether one of the space-separated parts is that module or a folder above it."""
    return any(f"{module}.".startswith(f"{part}.") for part in parts.split())


def test_the_imports_have_no_cycle():
    assert find_cycle(graph()) == ""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_the_layers_that_it_may_import(layer):
    allowed = f"{LAYERS[layer]} {' '.join(LAYERS.get(at, at) for at in MAY_IMPORT[layer].split())}"
    short = {
        module.partition(".")[2]: {name.partition(".")[2] for name in imported}
        for module, imported in graph().items()
    }
    forbidden = {
        f"{module} imports {name}"
        for module in short
        if has(LAYERS[layer], module) and not module.endswith(".__main__")  # a command
        for name in short[module]
        if not has(allowed, name) and name not in ("data", "analysis")  # the folders themselves
    }
    assert forbidden == set()


def test_an_import_inside_a_function_can_be_part_of_a_cycle(tmp_path):
    package = tmp_path / "toy"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__", "inner/__init__"):
        (package / f"{file}.py").touch()
    (package / "inner/one.py").write_text("from toy import two\n")
    (package / "two.py").write_text("def f():\n    import toy.inner.one\n")
    cycle = find_cycle(graph(package)).split(" -> ")
    assert cycle[0] == cycle[-1] and sorted(cycle[1:]) == ["toy.inner.one", "toy.two"]


def test_a_folder_and_one_of_its_files_can_form_a_cycle(tmp_path):
    package = tmp_path / "toy"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner/__init__.py").write_text("from toy.inner.one import f\n")
    (package / "inner/one.py").write_text("from toy.inner.two import f\n")
    (package / "inner/two.py").write_text("def f(): pass\n")
    assert set(find_cycle(graph(package)).split(" -> ")) == {"toy.inner", "toy.inner.one"}


def test_importing_the_package_loads_no_extra_and_no_backend():
    """Importing a library must not initialize the devices."""

    code = (
        "import sys, fedjax_lab, fedjax_lab.running.runner, jax._src.xla_bridge as b;"
        "print(len(b._backends), [m for m in ('torch', 'tensorflow', 'transformers',"
        " 'matplotlib.pyplot', 'orbax', 'grain', 'array_record') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "0 []", out.stdout
