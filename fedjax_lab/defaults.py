"""JAX's usual promotion and transfers, whatever the user has set for code of their own."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

# The values of JAX's settings; the context of JAX that sets one is its name without "jax_".
USUAL = {
    "jax_numpy_rank_promotion": "allow",
    "jax_numpy_dtype_promotion": "standard",
    "jax_transfer_guard": "allow",
    "jax_transfer_guard_host_to_device": "allow",
    "jax_transfer_guard_device_to_device": "allow",
    "jax_transfer_guard_device_to_host": "allow",
}


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Inside the context, or the decorated function, JAX promotes and transfers as by default.

    JAX_NUMPY_RANK_PROMOTION=raise, JAX_NUMPY_DTYPE_PROMOTION=strict and JAX_TRANSFER_GUARD=disallow
    only turn what this package relies on into errors; they never change a result. A user's method
    or model that is called inside is not checked either. Nothing is set if JAX is not imported yet:
    data are read without it.
    """
    jax: Any = sys.modules.get("jax")
    with contextlib.ExitStack() as stack:
        for name, value in USUAL.items() if jax else ():
            if getattr(jax.config, name) not in (value, None):
                stack.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
        yield
