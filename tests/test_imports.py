"""Which layers of the package import which others, without a cycle; its functions are short."""

import ast
import functools
import graphlib
import io
import re
import tokenize
from pathlib import Path

import pytest
from children import run

PACKAGE = Path(__file__).parents[1] / "fedjax_lab"
# Imports run from the right to the left; modules and folders of one level may import each other.
ORDER = (
    "types errors < tree losses optim sampling ranges streams wire defaults < data models"
    " < methods papers transforms simulation tasks < engine < configs experiment < running"
    " < auditing < sweeping analysis testing < commands < main __main__"
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
    """The place of a module in ORDER; a `__main__` of a folder is a command.

    A paper's figures are an analysis of finished runs; its other modules serve its method.
    """
    names = module.split(".")[1:]
    if names[0] == "papers" and names[-1].endswith("_figures"):
        return LEVELS["analysis"]
    return LEVELS["__main__" if names[-1] == "__main__" else names[0]]


def test_imports_have_no_cycle_and_run_in_one_direction():
    assert find_cycle(graph()) == ""
    upward = {
        f"{module} imports {name}"
        for module, imported in graph().items()
        if module != "fedjax_lab"
        for name in imported
        if level(name) > level(module)
    }
    assert upward == set()
    storage, running = "fedjax_lab.running.storage", "fedjax_lab.running."
    of_storage = {name for m, names in graph().items() if m.startswith(storage) for name in names}
    assert {n for n in of_storage if n.startswith(running) and not n.startswith(storage)} == set()
    root = {path.stem for path in PACKAGE.glob("*.py")}
    levels = [set(level.split()) for level in ORDER.split("<")]
    assert root == {"__init__", *levels[0], *levels[1], *levels[-1]}


CYCLES = [  # files of a package, and the modules of its cycle
    (  # an import inside a function
        {"inner/one": "from toy import two", "two": "def f():\n    import toy.inner.one"},
        {"toy.inner.one", "toy.two"},
    ),
    (  # a folder and another file
        {
            "inner/__init__": "from toy.outer import f",
            "inner/one": "from toy.inner.two import f",
            "inner/two": "def f(): pass",
            "outer": "from toy.inner import two",
        },
        {"toy.inner", "toy.outer"},
    ),
]


@pytest.mark.parametrize("files, modules", CYCLES)
def test_a_cycle_is_found(files, modules, tmp_path):
    (tmp_path / "toy/inner").mkdir(parents=True)
    for name, code in {"__init__": "", "inner/__init__": "", **files}.items():
        (tmp_path / f"toy/{name}.py").write_text(code)
    cycle = find_cycle(graph(tmp_path / "toy")).split(" -> ")
    assert cycle[0] == cycle[-1] and set(cycle) == modules


def test_importing_the_package_loads_no_extra_and_no_backend():
    """Importing a library must not initialize the devices."""

    code = (
        "import sys, fedjax_lab, fedjax_lab.running.runner, jax._src.xla_bridge as b;"
        "print(len(b._backends), [m for m in ('torch', 'tensorflow', 'transformers',"
        " 'matplotlib.pyplot', 'orbax', 'grain', 'array_record') if m in sys.modules])"
    )
    assert run(code).stdout.strip() == "0 []"


NAMED = {  # the methods that modules of the core name, and why
    "simulation/failures.py": {"fedprox"},  # the source of a rule
    "simulation/simulator.py": {"fedavg"},  # an example in messages
    "experiment/aliases.py": {"fedavgm", "fedfomo", "fedopt", "scaffold"},  # earlier releases
    "experiment/keys.py": {"fedavg"},  # the default of config.method.name
    "experiment/registry.py": {"fedavg"},  # the default of config.method.base
    "experiment/titles.py": {"fedavg"},  # an example of a title
}
CORE = ("simulation", "engine", "experiment", "running", "errors.py", "transforms/kinds.py")
REGISTRIES = {"fedjax_lab.experiment.registry"}  # what may import methods, and finds them
WORDS = {"central", "elastic", "local"}  # names of methods that are also other words


def test_the_core_knows_no_method_by_name():
    methods = {path.stem for path in PACKAGE.glob("methods/[!_]*.py")} - WORDS
    named = {}
    for path in [PACKAGE / name for name in CORE]:
        for file in [path] if path.is_file() else path.rglob("*.py"):
            if words := methods & set(re.findall(r"\w+", file.read_text().lower())):
                named[file.relative_to(PACKAGE).as_posix()] = words
    assert named == NAMED
    rooms = [m for m in graph() if m.split(".")[1:2] and m.split(".")[1] in CORE]
    assert {m for m in rooms if "fedjax_lab.methods" in graph()[m]} == REGISTRIES


LONGEST = 30  # lines of code in a body, including those of inner functions
LONGER = {  # functions that consist mostly of their list of settings, with their lines of code
    "methods/client2vec.py:client2vec": 42,
}
NO_CODE = {getattr(tokenize, n) for n in "COMMENT NL NEWLINE INDENT DEDENT ENDMARKER".split()}


def lines_of_code(text):
    """Returns the numbers of the lines with code, without blank lines, comments and docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return lines


def long_functions(text):
    """Returns {name: lines of code of the body} of the functions longer than LONGEST."""
    code = lines_of_code(text)
    bodies = {
        node.name: sum(node.body[0].lineno <= line <= node.end_lineno for line in code)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }
    return {name: length for name, length in bodies.items() if length > LONGEST}


def test_no_function_has_many_lines_of_code():
    body = ['    """Says', '    more."""', "", "    # nothing", *["    x = 1"] * 31]
    assert long_functions("\n".join(["def f(", "    a,", "):", *body])) == {"f": 31}
    assert long_functions("\n".join(["def f():", *body[:-1]])) == {}
    too_long = {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}": length
        for path in PACKAGE.rglob("*.py")
        for name, length in long_functions(path.read_text()).items()
    }
    assert too_long == LONGER
