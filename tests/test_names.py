"""Names in the code, by its syntax trees."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("fedjax_lab", "tests", "launch", "configs", "examples", "docs")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.fixture(scope="module")
def trees():
    """The syntax tree of each file."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file.relative_to(ROOT): ast.parse(file.read_text()) for file in files}


def test_no_function_is_called_of_something(trees):
    functions = [
        f"{file}:{node.lineno} {node.name}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and node.name.lstrip("_").split("_")[0] == "of"
    ]
    assert not functions, f"name what these functions return or do: {functions}"
