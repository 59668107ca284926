"""Fields of the core's records that are None by default: each adds a case to what reads it."""

import ast
from pathlib import Path

import pytest

import fedjax_lab

ROOT = Path(fedjax_lab.__file__).parent


def none_by_default(file, record):
    """The names of the fields of this record whose default is None."""
    module = ast.parse((ROOT / file).read_text())
    (node,) = (n for n in module.body if isinstance(n, ast.ClassDef) and n.name == record)
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
    return [
        ast.unparse(field.target)
        for field in fields
        if isinstance(field.value, ast.Constant) and field.value.value is None
    ]


@pytest.mark.parametrize(
    "file, record, most",
    [
        ("types.py", "Client", 5),
        ("types.py", "Federation", 3),
        ("engine/input.py", "Seed", 4),
        ("engine/input.py", "Simulation", 6),
    ],
)
def test_few_fields_are_none_by_default(file, record, most):
    """What clients differ in is a trait, and what seeds differ in belongs to a `Seed`."""
    fields = none_by_default(file, record)
    assert len(fields) <= most, fields
