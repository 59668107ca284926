"""The way of a parameter through the package: which functions it enters, in the order of the code.

A parameter enters a function if a call passes its name, a part of it, or a name that was assigned
from these; the result of a call is something else. Each function is followed once. A call of a
class enters its `__init__`. Calls of objects whose type is not in the code are not followed.
"""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import fedjax_lab

ROOT = Path(fedjax_lab.__file__).parents[1]


class Walk(NamedTuple):
    """How often a parameter changes files."""

    stays: int  # runs of functions of the same file
    returns: int  # stays in a file where it was before


@functools.cache
def functions(file):
    """The functions of a file by name, methods as "Class.name"."""
    made = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            made[node.name] = node
        for inner in getattr(node, "body", ()) if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                made[f"{node.name}.{inner.name}"] = inner
    return made


@functools.cache
def imports(file):
    """What the names of a file mean that it imports from the package: {name: dotted name}."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    froms = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module]
    return {a.asname or a.name: f"{n.module}.{a.name}" for n in froms for a in n.names}


def callee(file, inside, call):
    """The file and the name of the function that a call calls; None if it is not known."""
    first, *rest = ast.unparse(call.func).split(".")
    arguments = in_signature(functions(file)[inside].args)
    types = {p.arg: ast.unparse(p.annotation) for p in arguments if p.annotation}
    if first == "self":
        first = inside.partition(".")[0]
    elif rest:
        first = types.get(first, first)  # a method of an argument
    if first in imports(file):
        path = imports(file)[first].replace(".", "/")
        is_module = (ROOT / f"{path}.py").exists()
        file, first = (f"{path}.py", "") if is_module else (f"{path.rpartition('/')[0]}.py", path)
    name = ".".join(filter(None, [first.rpartition("/")[2], *rest]))
    known = functions(file) if (ROOT / file).exists() else ()
    return next(((file, n) for n in (name, f"{name}.__init__") if n in known), None)


def mentions(node, names):
    """Whether an expression outside of calls has one of the names, such as "t" or "self.plan"."""
    if isinstance(node, ast.Call):
        return False
    here = isinstance(node, NAMES) and ast.unparse(node) in names
    return here or any(mentions(child, names) for child in ast.iter_child_nodes(node))


NAMES = (ast.Name, ast.Attribute)


def entered(file, name, names, seen):
    """Yields the files of the functions that these names enter, this one first."""
    yield file
    if (file, name) in seen:
        return
    seen.add((file, name))
    names = set(names)
    for node in in_order(functions(file)[name]):
        match node:
            case ast.Assign(value=value, targets=[target]):
                for one, given in pairs(target, value):
                    if mentions(given, names):
                        names |= {ast.unparse(n) for n in ast.walk(one) if isinstance(n, NAMES)}
            case ast.For(iter=value, target=target) | ast.comprehension(iter=value, target=target):
                if mentions(value, names):
                    names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
            case ast.Call(args=args, keywords=keywords):
                if ast.unparse(node.func) in ("partial", "functools.partial"):
                    node = ast.Call(args[0], args[1:], keywords)
                if (place := callee(file, name, node)) is None:
                    continue
                parameters = [p.arg for p in in_signature(functions(place[0])[place[1]].args)]
                attributes = {n for n in names if n.startswith("self.")}
                bound = parameters[:1] == ["self"]
                given = list(zip(parameters[bound:], node.args, strict=False))
                given += [(k.arg, k.value) for k in node.keywords]
                passed = {p for p, value in given if p and mentions(value, names)}
                passed |= attributes if bound else set()
                if passed:
                    yield from entered(*place, passed, seen)


def pairs(target, value):
    """What is assigned to what: item by item if both are tuples."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def in_signature(arguments):
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def in_order(node):
    """The nodes of a function as they are evaluated: arguments before their call."""
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)
    yield node


def walk(file, function, parameter):
    """The walk of a parameter that enters this function."""
    files = list(entered(f"fedjax_lab/{file}", function, {parameter}, set()))
    stays = [f for f, before in zip(files, [None, *files], strict=False) if f != before]
    return Walk(len(stays), len(stays) - len(set(stays)))
