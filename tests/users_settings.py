"""The doors of the package under settings of JAX that users have for code of their own.

With JAX_NUMPY_RANK_PROMOTION=raise, for example, tests and the inner functions that they call have
JAX's defaults, as inside of a door. The doors are called as users call them: with the settings of
the process. Threads and processes have these settings, too.
"""

import contextlib
import functools
import importlib
import inspect

import jax

from fedjax_lab import defaults

# Functions that users call, and modules whose public functions and methods users call.
DOORS = """
    fedjax_lab fedjax_lab.commands.figures fedjax_lab.commands.report fedjax_lab.commands.sweep
    fedjax_lab.experiment.experiment fedjax_lab.experiment.federation fedjax_lab.main
    fedjax_lab.models.task:make_task fedjax_lab.running.loading fedjax_lab.running.runner
    fedjax_lab.simulation.simulator fedjax_lab.testing.methods:check_method
    fedjax_lab.testing.models fedjax_lab.testing.partitions fedjax_lab.testing.sources
""".split()
SCOPE = contextlib.ExitStack()  # of this thread until it ends
USERS = {name: getattr(jax.config, name) for name in defaults.USUAL}
STRICT = {name: value for name, value in USERS.items() if value not in (defaults.USUAL[name], None)}


def enter():
    """Gives this thread JAX's defaults, and the doors the settings of the process."""
    if STRICT:
        SCOPE.enter_context(defaults.restored())
        for door in DOORS:
            module, _, name = door.partition(":")
            _wrap_functions(importlib.import_module(module), module, name)


def _wrap_functions(where, module, only=""):
    for name, value in list(vars(where).items()):
        if name.startswith("_") or getattr(value, "__module__", None) != module:
            continue
        if only and name != only:
            continue
        if inspect.isfunction(value):
            setattr(where, name, _with_users_settings(value))
        elif inspect.isclass(value):
            _wrap_functions(value, module)


def _with_users_settings(function):
    @functools.wraps(function)
    def door(*args, **kwargs):
        with contextlib.ExitStack() as stack:
            for name, value in STRICT.items():
                stack.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
            result = function(*args, **kwargs)
        return _functions_of(result) if function.__name__ == "simulator" else result

    return door


def _functions_of(simulator):
    fields = simulator._asdict()
    return simulator._replace(
        **{name: _with_users_settings(f) for name, f in fields.items() if callable(f)}
    )
