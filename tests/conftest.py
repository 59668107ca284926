"""Eight virtual devices, and a cache for generated data that is the session's own."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of a test's time


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing is read from or left in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
