"""Determines by tracing what a function depends on; nothing is compiled or computed."""

from collections.abc import Callable

import jax
from jax.extend.core import Var

from fedjax_lab.types import PyTree


def depends(function: Callable, on: PyTree, *others: PyTree) -> bool:
    """Whether the outputs of function(on, *others) depend on the values of `on`.

    The arguments may be arrays or their shapes. The result may be true although there is no
    dependence, because all outputs of a nested jit count as dependent on all of its inputs.
    """
    jaxpr = jax.make_jaxpr(function)(on, *others).jaxpr
    dependent = set(jaxpr.invars[: len(jax.tree.leaves(on))])
    for equation in jaxpr.eqns:
        if any(isinstance(v, Var) and v in dependent for v in equation.invars):
            dependent.update(equation.outvars)
    return any(isinstance(v, Var) and v in dependent for v in jaxpr.outvars)
