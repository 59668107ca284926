"""The core stays small: fields that may be None, fields that an author of a method meets.

The limits are today's numbers. A feature that needs a larger one has found a fault of the design.
"""

import ast
import functools
import sys
from pathlib import Path

import pytest
import walks

import fedjax_lab

PACKAGE = Path(fedjax_lab.__file__).parent
STRUCTS = {
    "types": ("Client", "Federation", "Plan", "Stage", "Turn"),
    "simulation/simulate": ("Program", "Progress"),
    "engine/input": ("Seed", "Simulation"),
}
AUTHOR = (
    *("Method", "Extra", "Exchange", "Stage"),
    *("Task", "Objective", "Client", "Work"),
)
NONE, MET, FEW = 24, 83, 3  # the limits
LABELS = ["data", "dataset"]  # how unknown labels and classes without names are written
LIBRARY = {"jax", "flax", "optax", "chex", "numpy", "fedjax_lab"}


@functools.cache
def parsed(name):
    return ast.parse((PACKAGE / f"{name}.py").read_text())


def fields(module, struct):
    """The fields of a struct with their defaults; no default: ()."""
    (found,) = (n for n in parsed(module).body if getattr(n, "name", "") == struct)
    each = (n for n in found.body if isinstance(n, ast.AnnAssign))
    return {n.target.id: n.value or () for n in each}


def is_none(default):
    return isinstance(default, ast.Constant) and default.value is None


def test_few_fields_of_the_core_may_be_missing():
    defaults = {
        f"{struct}.{name}": default
        for module, structs in STRUCTS.items()
        for struct in structs
        for name, default in fields(module, struct).items()
    }
    absent = [name for name, default in defaults.items() if is_none(default)]
    assert len(absent) <= NONE, absent


def test_an_author_meets_few_fields():
    assert sum(len(fields("types", struct)) for struct in AUTHOR) <= MET


def used_names(file):
    """The attributes, keywords and strings of a file."""
    taken = {ast.Attribute: "attr", ast.keyword: "arg", ast.Constant: "value"}
    nodes = ast.walk(ast.parse(file.read_text()))
    return {getattr(n, taken[type(n)]) for n in nodes if type(n) in taken}


def test_few_fields_have_fewer_than_three_users():
    files = [file for file in PACKAGE.rglob("*.py") if file.name != "types.py"]
    names = [used_names(file) for file in files]
    structs = {**STRUCTS, "types": (*STRUCTS["types"], *AUTHOR)}
    each = {(m, s, name) for m, all_of in structs.items() for s in all_of for name in fields(m, s)}
    rare = sorted(f"{s}.{name}" for _, s, name in each if sum(name in of for of in names) < 3)
    assert len(rare) <= FEW, rare


def test_what_a_round_computes_imports_only_the_root_and_the_libraries_of_jax():
    rooms = [PACKAGE / "types.py", *(PACKAGE / "simulation").glob("*.py")]
    for file in (*rooms, *(PACKAGE / "tasks").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            elif not isinstance(node, ast.Import):
                continue
            for name in names:
                top, *rest = name.split(".")
                assert top in LIBRARY | sys.stdlib_module_names, (file, name)
                inner = top == "fedjax_lab" and (PACKAGE / rest[0]).is_dir()
                assert not inner or rest[0] in ("simulation", "tasks") or rest[:2] == LABELS, (
                    file,
                    name,
                )


WALKS = {  # (file, function, parameter): the stays and the returns at most
    ("simulation/simulate.py", "play_round", "state"): (2, 0),
    ("simulation/simulate.py", "play_round", "program"): (9, 3),
    ("simulation/simulate.py", "play", "lane"): (11, 5),
    ("engine/engine.py", "Engine.__init__", "simulation"): (29, 13),
    ("experiment/experiment.py", "build", "seeds"): (5, 2),
    ("experiment/federation.py", "make_federations", "dataset"): (18, 10),
}


@pytest.mark.parametrize("entry", WALKS)
def test_a_parameter_takes_a_short_way(entry):
    walk = walks.walk(*entry)
    stays, returns = WALKS[entry]
    assert walk.stays <= stays and walk.returns <= returns, walk
