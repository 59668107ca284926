"""What a method must be, checked before anything is compiled. BadInput says what is not so."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_lab.errors import BadInput, cut, quoted
from fedjax_lab.types import Array, Method, PyTree, Stage, State

TAKES = {  # what the functions of a method and of its exchanges are called with
    "init": ("key", "num_clients"),
    "predict": ("message", "client", "x"),
    "newcomer": ("state",),
    "sample": ("key", "server", "population", "m"),
    "tune": ("message", "client", "work"),
    "join": ("server", "client", "work"),
    "scored": ("server", "id"),
    "record": ("state",),
    "send": ("server", "id"),
    "local": ("message", "client", "work"),
    "aggregate": ("server", "uploads", "cohort"),
    "alone": ("server", "split"),
    "updates": ("message", "id", "upload"),
}


def check_stages(stages: Any) -> None:
    """BadInput unless these are stages whose functions can be called as a run calls them."""
    if not isinstance(stages, tuple) or not all(isinstance(stage, Stage) for stage in stages):
        raise BadInput(f"the stages of a method must be a tuple of Stage, not {quoted(stages)}")
    for stage in stages:
        _check_method(stage.method)
        if stage.method.validation and stage.view is not None and stage.view.embedded:
            raise BadInput("embeddings have no validation rows, for which the method asks")


def _check_method(method):
    if not isinstance(method, Method):
        raise BadInput(f"the method of a stage must be a Method, not {quoted(method)}")
    if not method.round:
        raise BadInput("the round of a method must have at least one Exchange")
    in_turn = any(exchange.one_by_one for exchange in method.round)
    if method.validation and (method.pooled or in_turn):
        raise BadInput(
            "a method with validation=True must not be pooled, nor have a one_by_one exchange"
        )
    for part in (method, *method.round):
        for field, function in part._asdict().items():
            if field in TAKES and function is not None:
                _check_call(field, function)


def _check_call(field, function):
    """BadInput unless it can be called with what the field of that name takes."""
    if not callable(function):
        raise BadInput(f"`{field}` of a method must be a function, not {quoted(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C: it does not tell
        return
    try:
        signature.bind(*TAKES[field])
    except TypeError as error:
        name = getattr(function, "__qualname__", field)
        raise BadInput(
            f"`{field}` of a method must take ({', '.join(TAKES[field])}), but {name} takes"
            f" {cut(str(signature), 80)}"
        ) from error


def first_state(method: Method, key: Array, num_clients: int) -> State:
    """What `init` gives. BadInput unless it has private state for so many clients."""
    assert method.init is not None  # only a method whose stage has a `start` has none
    state = method.init(key, num_clients)
    if not isinstance(state, State):
        raise BadInput(f"`init` of a method must return a State, not {quoted(state)}")
    shapes = [jnp.shape(a) for a in jax.tree.leaves(state.private)]
    for shape in shapes:
        if shape[:1] != (num_clients,):
            raise BadInput(
                f"`init` of a method must give private state to {num_clients} clients: each array"
                f" [{num_clients}, ...], not {list(shape)}"
            )
    return state


def check_sample(drawn: Any) -> tuple[Array, Array]:
    """(ids, shares), which `sample` has returned. BadInput unless these are arrays [M]."""
    if isinstance(drawn, tuple) and len(drawn) == 2:
        ids, shares = drawn
        are_whole = jnp.issubdtype(jnp.result_type(ids), jnp.integer)
        if are_whole and jnp.ndim(ids) == 1 and jnp.shape(ids) == jnp.shape(shares):
            return drawn
    raise BadInput(
        "the sampling of a method must return (ids, shares), whole numbers [M] and numbers [M], not"
        f" {shown(drawn)}"
    )


def check_local(returned: Any, private: PyTree) -> tuple[PyTree, PyTree]:
    """(upload, private), which `local` has returned. BadInput unless it returned both, and the
    second in the shapes of the private state that the client had."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise BadInput(f"`local` of a method must return (upload, private), not {shown(returned)}")
    check_alike("`local` of a method must return (upload, private)", returned[1], private)
    return returned


def check_model(function: str, given: Any) -> tuple[PyTree, PyTree]:
    """(message, private), which this function of a method has given. BadInput unless it is that."""
    if type(given) is not tuple or len(given) != 2:  # weights alone are a NamedTuple of two
        raise BadInput(f"`{function}` of a method must give (message, private), not {shown(given)}")
    return given


def check_alike(what: str, given: PyTree, expected: PyTree) -> None:
    """BadInput, which begins with `what`, unless two trees have the same structure and shapes."""
    import chex  # here, so that importing the package takes no longer

    try:
        chex.assert_trees_all_equal_shapes(given, expected)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(
            f"{what} in the shapes that `init` gave, {shown(expected)}, not {shown(given)}"
        ) from error


def check_logits(logits: Any, count: int) -> None:
    """BadInput unless there are logits [count, K], which else would broadcast."""
    if getattr(logits, "shape", ())[:1] != (count,) or logits.ndim != 2:
        raise BadInput(
            f"`predict` of a method must give logits [B, K], for {count} examples [{count}, K], not"
            f" {shown(logits)}"
        )


def check_augmented(augmented: Any, x: Array) -> Array:
    """What an augmentation made of examples x. BadInput unless these are as many in their shape."""
    if getattr(augmented, "shape", None) != x.shape:
        raise BadInput(
            f"an augmentation must give examples {list(x.shape)} as it gets them, not"
            f" {shown(augmented)}"
        )
    return augmented


def check_skewed(skewed: Any, x: Array) -> Array:
    """What a feature skew made of an example x. BadInput unless it is one in the same shape."""
    if getattr(skewed, "shape", None) != x.shape:
        raise BadInput(
            f"a feature skew must give an example {list(x.shape)} as it gets it, not"
            f" {shown(skewed)}"
        )
    return skewed


def shown(tree: PyTree) -> str:
    """A tree with the types and shapes of its arrays in their place, shortened."""
    if tree is None:
        return "None"
    return cut(str(jax.tree.map(_shown, tree)), 120)


def _shown(leaf):
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
