"""References: text that names a function or class outside of the registry.

A reference is MODULE:FUNCTION or PATH/FILE.py:FUNCTION. A path is relative to the current folder. A
file is executed once in a process, and again if its content has changed at a call of `refresh`.
References in the folder of a run are executed only if this process has named the same code, or
inside of `trusting`.
"""

import contextlib
import contextvars
import functools
import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedjax_lab.errors import MACHINE, BadInput, add_part, nearest, quoted, reason_of
from fedjax_lab.experiment.keys import PARTS

Source = dict[str, str | None]  # `module`, `file` and `sha256` (of the file) of a function


class _Execution(NamedTuple):
    """The most recent execution of a file."""

    digest: str  # of the content that was executed
    module: ModuleType
    is_current: bool = True  # the file had the same content at the last call of `refresh`


_executions: dict[str, _Execution] = {}  # by absolute path
_first_digests: dict[tuple[str, int], str] = {}  # of a module's file at the first `source_of`
_nameless: dict[str, Callable] = {}  # functions that are not an attribute of a module, by reference
# The modules that this process has named, with that of the optimizers that every config may name.
_named_modules: set[str] = {"__main__", "optax"}
_trusts = contextvars.ContextVar("trusts", default=False)  # see `trusting`


def parts_of(config: Mapping) -> Iterator[tuple[str, str, str]]:
    """(dotted key, kind, name) of each function that a config names."""
    for key, kind in PARTS.items():
        section, _, rest = key.partition(".")
        values: Any = config.get(section)
        names = (values.get(rest) if hasattr(values, "get") else None) or ()
        if not isinstance(names, (str, list, tuple)):
            raise BadInput(f"config.{key} must be text, got {quoted(names)}")
        for name in (names,) if isinstance(names, str) else names:
            if not isinstance(name, str):
                raise BadInput(f"a value of config.{key} must be text, got {quoted(name)}")
            yield key, kind, name


# From text to functions.


def is_reference(text: str) -> bool:
    """Whether the text is not a plain name."""
    return ":" in text


def find(text: str) -> Callable:
    """The function or class that a reference names. Raises BadInput if it does not exist."""
    if text in _nameless:
        return _nameless[text]
    if not lasts(text):
        raise BadInput(
            f"{text} is a lambda or a local function, which exists only in the process that made"
            " it; define it at the top level of a file"
        )
    where, _, name = text.rpartition(":")
    module = file_module(where) if is_file(where) else _imported(where)
    try:
        function: Any = functools.reduce(getattr, name.split("."), module)
    except AttributeError as error:
        if where == "__main__":
            raise BadInput(
                f"{name} was defined in a notebook and does not exist here; define it in a file"
            ) from error
        callables = [key for key, value in vars(module).items() if _offers(module, key, value)]
        raise BadInput(
            f"{where} has no function {quoted(name)}; {nearest(name, callables)}"
        ) from error
    return function


def lasts(text: str) -> bool:
    """Whether a reference is valid in other processes too."""
    return "<" not in text.rpartition(":")[2]


def is_file(where: str) -> bool:
    """Whether the part of a reference before the colon is a path, not a module."""
    return where.endswith(".py") or not all(word.isidentifier() for word in where.split("."))


def _offers(module, key, value):
    """Whether a module itself defines a public function or class of that name."""
    defined_here = getattr(value, "__module__", module.__name__) == module.__name__
    return callable(value) and defined_here and not key.startswith("_")


def file_module(path: str) -> ModuleType:
    """The module of a file. Raises BadInput if there is no such file, or if executing it fails."""
    absolute = os.path.abspath(path)
    if absolute == _main_file():
        return sys.modules["__main__"]
    last = _executions.get(absolute)
    if last is not None and last.is_current:
        return last.module
    check_file(path, "file")
    return execute(path)


def refresh() -> None:
    """Marks files that have changed, so that their next use executes them again.

    Between two calls, all functions of a file come from the same content, whose digest `source_of`
    returns.
    """
    for path, last in list(_executions.items()):
        is_current = os.path.isfile(path) and digest(path) == last.digest
        _executions[path] = last._replace(is_current=is_current)


def execute(path: str) -> ModuleType:
    """Executes a file, which can import modules from its folder. Raises BadInput if that fails."""
    absolute = os.path.abspath(path)
    of_path = hashlib.sha256(absolute.encode(errors="surrogateescape")).hexdigest()[:8]
    module = ModuleType(f"{Path(path).stem}_{of_path}")  # a unique name
    module.__file__ = absolute
    _search(os.path.dirname(absolute))
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look there for the types of fields
    try:
        with errors_with_lines(path):
            content = Path(absolute).read_bytes()
            exec(compile(content, absolute, "exec"), vars(module))
    except BaseException:
        sys.modules.pop(module.__name__)
        if before is not None:
            sys.modules[module.__name__] = before
        raise
    _executions[absolute] = _Execution(hashlib.sha256(content).hexdigest(), module)
    return module


@contextlib.contextmanager
def errors_with_lines(path: str) -> Iterator[None]:
    """Converts exceptions of a user's code to BadInput, in one line with the line in that file."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # includes sys.exit, which would end the command silently
        if isinstance(error, OSError) and error.errno in MACHINE:
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == os.path.abspath(path)]
        place = f" (line {lines[-1]})" if lines else ""
        raise BadInput(f"{path} cannot be loaded: {reason_of(error)}{place}") from error


def check_file(path: str, what: str, names: Iterable[str] = (), first: Sequence[str] = ()) -> None:
    """Raises BadInput, with the nearest valid choice, unless the path is that of a file.

    what: the kind of file for the message, such as "config file".
    names: valid choices besides the Python files in the same folder; first: the first of them.
    """
    try:
        if Path(path).is_file():
            return
        nearby = [str(p) for p in Path(path).parent.glob("*.py") if p.is_file()]
    except (OSError, ValueError) as error:  # too long, not readable, or with a NUL byte
        reason = getattr(error, "strerror", error)
        raise BadInput(f"no {what} {quoted(path)}: {reason}") from error
    raise BadInput(f"no {what} {quoted(path)}; {nearest(path, [*nearby, *names], first)}")


def _imported(name):
    _search(os.getcwd())
    is_new = name.partition(".")[0] not in sys.modules
    try:
        with errors_with_lines(name):
            module = importlib.import_module(name)
    except BadInput as error:
        absent = error.__cause__
        if isinstance(absent, ModuleNotFoundError) and f"{name}.".startswith(f"{absent.name}."):
            where = "neither the current folder nor PYTHONPATH contains it"
            raise BadInput(f"no module {quoted(absent.name)}; {where}") from error
        raise
    if is_new:
        add_part(name)
    _named_modules.add(name)
    return module


def _search(folder):
    """Appends a folder to the module search path, unless it is already there."""
    if folder not in sys.path:
        sys.path.append(folder)


# From functions to text.


def text_of(function: Callable) -> str:
    """The reference of a function or class.

    If no module has it under a name, the reference is valid only in this process.
    """
    home = sys.modules.get(getattr(function, "__module__", None) or "")
    executed = [last.module for last in _executions.values()]
    for module in filter(None, (home, *executed, sys.modules["__main__"])):
        if name := _name_in(module, function):
            return f"{_where(module)}:{name}"
    name = getattr(function, "__qualname__", "")
    name = name if "<" in name else f"<{name or type(function).__name__}>"
    text = first = f"{_where(home) if home else 'python'}:{name}"
    count = 1
    while _nameless.get(text, function) is not function:
        count += 1
        text = f"{first}-{count}"
    _nameless[text] = function
    return text


def _name_in(module, function):
    """The name under which the module has the function; None if it does not have it."""
    name = getattr(function, "__qualname__", "")
    with contextlib.suppress(AttributeError):
        value = functools.reduce(getattr, name.split("."), module)
        if value is function or (_path_of(module) and _is_same(value, function)):
            return name
    return next((key for key, value in vars(module).items() if value is function), None)


def _is_same(one, other):
    """Whether both have the same name in the same module, which may have been executed again."""
    names = ("__module__", "__qualname__")
    return all(getattr(one, name, 1) == getattr(other, name, 2) for name in names)


def _where(module):
    """The part before the colon in references to functions of the module."""
    path = _path_of(module)
    if path is None:
        _named_modules.add(module.__name__)
        return module.__name__
    beside = os.path.relpath(path)
    return path if beside.startswith(os.pardir) else beside


def _path_of(module):
    """The absolute path of a module that was executed as a file; None for other modules."""
    if module is sys.modules["__main__"]:
        return _main_file()
    return next((path for path, last in _executions.items() if last.module is module), None)


def _as_file(path):
    """The absolute path of a file; None if it does not exist, for example <stdin>."""
    return os.path.abspath(path) if path and os.path.isfile(path) else None


def _main_file():
    return _as_file(getattr(sys.modules["__main__"], "__file__", None))


# Where functions came from.


def source_of(text: str, function: Callable) -> Source:
    """The source of the function with that reference; `sha256` is None if it is not known."""
    where = text.rpartition(":")[0]
    if not lasts(text):
        return {"module": None, "file": None, "sha256": None}
    if is_file(where):
        path = os.path.abspath(where)
        last = _executions.get(path)
        return {"module": None, "file": path, "sha256": last.digest if last else digest(path)}
    path = _defining_file(where, function)
    if path is None:
        return {"module": where, "file": None, "sha256": _digest_of_code(function)}
    first = _first_digests.setdefault((path, id(function)), digest(path))
    return {"module": where, "file": path, "sha256": first}


def _defining_file(module, function):
    """The file with the function's code; None for a function that a notebook defines."""
    with contextlib.suppress(TypeError, OSError):
        path = _as_file(inspect.getsourcefile(inspect.unwrap(function)))
        if path and module != "__main__":
            return path
    return _as_file(getattr(sys.modules.get(module), "__file__", None))


def _digest_of_code(function):
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def digest(path: str) -> str:
    """The SHA-256 of a file, as sha256sum prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Inside the context, code that a run's folder names may be executed if `trust`."""
    token = _trusts.set(trust or _trusts.get())
    try:
        yield
    finally:
        _trusts.reset(token)


def recalled(text: str, source: Source, owner: Path) -> str:
    """A reference to the function with that source that is valid in any current folder.

    text: the original reference, valid in the folder in which it was written.
    owner: the folder of the run that has the reference.

    Raises BadInput unless the code may be executed: see `trusting`.
    """
    path, (where, _, name) = source.get("file"), text.rpartition(":")
    if is_file(where) and path and (os.path.isfile(path) or not os.path.isfile(where)):
        text = f"{path}:{name}"
    _check_trusted(text, path, owner)
    if is_file(where) or not path or where in sys.modules:
        return text
    for folder in Path(path).parents:
        stem = folder.joinpath(*where.split("."))
        if stem.with_suffix(".py").is_file() or (stem / "__init__.py").is_file():
            _search(str(folder))
            break
    return text


def _check_trusted(text, path, owner):
    """Raises BadInput for a reference to code that this process has not named, unless trusted.

    A dotted name can lead to a module that the named one has imported, such as `os`.
    """
    where, _, name = text.rpartition(":")
    file = os.path.abspath(where)
    named = file in (*_executions, _main_file()) if is_file(where) else where in _named_modules
    named = named and "." not in name
    if not (named or _trusts.get() or not lasts(text)):
        code = text if is_file(where) or not path else f"{text} ({path})"
        raise BadInput(
            f"{owner} names code that would be executed: {code}; if you trust this code, add"
            " --trust, in Python trust=True, or name its file as this run did, with --config"
        )


# Functions that installed packages provide.


def offered(group: str) -> dict[str, Any]:
    """The entry points of a group by name; if two share a name, the first by value is used."""
    from importlib import metadata  # imported only if a name is not built in

    points = sorted(metadata.entry_points(group=group), key=lambda point: point.value)
    return {point.name: point for point in reversed(points)}


def load_offered(point: Any) -> Callable:
    """The function of an entry point. Raises BadInput if it cannot be loaded."""
    package = point.dist.name if point.dist else "a package"
    is_new = point.module.partition(".")[0] not in sys.modules
    with errors_with_lines(f"{point.name!r} of {package} ({point.value})"):
        part = point.load()
    if is_new:
        add_part(point.module)
    return part
