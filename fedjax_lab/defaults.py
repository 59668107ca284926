"""JAX's usual promotion and transfers, whatever the user has set for code of their own."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import jax

# The values of JAX's settings, and the contexts that set them.
USUAL: dict[str, tuple[str, Callable[[str], AbstractContextManager]]] = {
    "jax_numpy_rank_promotion": ("allow", jax.numpy_rank_promotion),
    "jax_numpy_dtype_promotion": ("standard", jax.numpy_dtype_promotion),
    "jax_transfer_guard": ("allow", jax.transfer_guard),
    "jax_transfer_guard_host_to_device": ("allow", jax.transfer_guard_host_to_device),
    "jax_transfer_guard_device_to_device": ("allow", jax.transfer_guard_device_to_device),
    "jax_transfer_guard_device_to_host": ("allow", jax.transfer_guard_device_to_host),
}


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Inside the context, or the decorated function, JAX promotes and transfers as by default.

    JAX_NUMPY_RANK_PROMOTION=raise, JAX_NUMPY_DTYPE_PROMOTION=strict and JAX_TRANSFER_GUARD=disallow
    only turn what this package relies on into errors; they never change a result. A user's method
    or model that is called inside is not checked either.
    """
    with contextlib.ExitStack() as stack:
        for name, (value, context) in USUAL.items():
            if getattr(jax.config, name) not in (value, None):
                stack.enter_context(context(value))
        yield
