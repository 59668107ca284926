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


def test_no_name_of_the_package_says_nothing(trees):
    named = [
        f"{file}:{node.lineno}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if file.parts[0] in ("fedjax_lab", "launch")
        and {getattr(node, field, "") for field in ("id", "arg", "name")} & {"found", "own", "told"}
    ]
    assert not named, f"found, own or told: name what it is: {named}"


def scopes(tree):
    """Each function, and the nodes that belong to it and not to a function in it."""
    for function in ast.walk(tree):
        if isinstance(function, FUNCTIONS):
            nodes, left = [], list(ast.iter_child_nodes(function))
            while left:
                nodes.append(node := left.pop())
                if not isinstance(node, FUNCTIONS):
                    left += ast.iter_child_nodes(node)
            yield function, nodes


def is_bundle(value):
    """Whether a value is a tuple or a dict whose elements are all written out."""
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and not any(isinstance(each, ast.Starred) for each in value.elts)
    return isinstance(value, ast.Dict) and bool(value.keys) and None not in value.keys


def bundles(function, nodes):
    """The names of tuples and dicts that the function packs, and unpacks into a call."""
    packed, changed = set(), {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            pairs = [(target, node.value) for target in targets]
            if isinstance(targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(targets[0].elts, node.value.elts, strict=False))
            packed |= {t.id for t, v in pairs if isinstance(t, ast.Name) and is_bundle(v)}
            changed |= {ast.unparse(t.value) for t, _ in pairs if isinstance(t, ast.Subscript)}
        if isinstance(node, ast.AugAssign):
            changed.add(ast.unparse(node.target))
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    starred = [each.value for call in calls for each in call.args if isinstance(each, ast.Starred)]
    starred += [each.value for call in calls for each in call.keywords if each.arg is None]
    return {each.id for each in starred if isinstance(each, ast.Name)} & packed - changed


def test_arguments_are_passed_by_name_and_not_in_bundles(trees):
    """Neither a search nor a type checker follows `facts = a, b` into `g(*facts)`."""
    bundled = [
        f"{file}:{function.lineno} {name}"
        for file, tree in trees.items()
        if file.parts[0] == "fedjax_lab"
        for function, nodes in scopes(tree)
        for name in sorted(bundles(function, nodes))
    ]
    assert not bundled, f"pass these arguments one by one: {bundled}"


def test_every_file_of_the_package_has_a_name_of_its_own(trees):
    names = [file.name for file in trees if file.parts[0] == "fedjax_lab"]
    repeated = {name for name in names if names.count(name) > 1} - {"__init__.py", "__main__.py"}
    assert not repeated, f"several files have these names: {sorted(repeated)}"
