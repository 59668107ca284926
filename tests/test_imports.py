"""Checks which layers of the package import which others, and that the imports have no cycle."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedjax_lab"
# Imports run from the right to the left; modules and folders of one level may import each other.
ORDER = (
    "types errors < tree losses optim sampling ranges streams wire < data models"
    " < methods transforms simulation < engine < configs experiment < running"
    " < sweeping analysis testing < commands < main __main__"
)
LEVELS = {name: i for i, level in enumerate(ORDER.split("<")) for name in level.split()}


def modules(package):
    """Returns {dotted name: file} of a package; a folder has the name of its __init__.py."""
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(path, names):
    """Returns the modules of the package that a file imports, also inside functions.

    `from toy.data import safe` imports toy.data.safe, and with it toy.data, whose __init__.py runs;
    for the files of that folder it runs first in any case. The package itself does not count,
    because its `run` imports what it runs.
    """
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in names else node.module for name in full}
    folders = {name.rsplit(".", 1)[0] for name in imported if name.count(".") > 1} & set(names)
    folders = {name for name in folders if not path.is_relative_to(names[name].parent)}
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


def level(module):
    """The place of a module in ORDER; a `__main__` of a folder is a command."""
    names = module.split(".")[1:]
    return LEVELS["__main__" if names[-1] == "__main__" else names[0]]


def test_the_imports_have_no_cycle():
    assert find_cycle(graph()) == ""


def test_imports_run_in_one_direction():
    upward = {
        f"{module} imports {name}"
        for module, imported in graph().items()
        if module != "fedjax_lab"
        for name in imported
        if level(name) > level(module)
    }
    assert upward == set()


def test_the_root_has_what_methods_import_and_the_doors():
    root = {path.stem for path in PACKAGE.glob("*.py")}
    levels = [set(level.split()) for level in ORDER.split("<")]
    assert root == {"__init__", *levels[0], *levels[1], *levels[-1]}


def test_an_import_inside_a_function_can_be_part_of_a_cycle(tmp_path):
    package = tmp_path / "toy"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__", "inner/__init__"):
        (package / f"{file}.py").touch()
    (package / "inner/one.py").write_text("from toy import two\n")
    (package / "two.py").write_text("def f():\n    import toy.inner.one\n")
    cycle = find_cycle(graph(package)).split(" -> ")
    assert cycle[0] == cycle[-1] and sorted(cycle[1:]) == ["toy.inner.one", "toy.two"]


def test_a_folder_and_another_file_can_form_a_cycle(tmp_path):
    package = tmp_path / "toy"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner/__init__.py").write_text("from toy.outer import f\n")
    (package / "inner/one.py").write_text("from toy.inner.two import f\n")
    (package / "inner/two.py").write_text("def f(): pass\n")
    (package / "outer.py").write_text("from toy.inner import two\n")
    assert set(find_cycle(graph(package)).split(" -> ")) == {"toy.inner", "toy.outer"}


def test_importing_the_package_loads_no_extra_and_no_backend():
    """Importing a library must not initialize the devices."""

    code = (
        "import sys, fedjax_lab, fedjax_lab.running.runner, jax._src.xla_bridge as b;"
        "print(len(b._backends), [m for m in ('torch', 'tensorflow', 'transformers',"
        " 'matplotlib.pyplot', 'orbax', 'grain', 'array_record') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "0 []", out.stdout
