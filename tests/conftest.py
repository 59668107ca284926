"""Eight virtual devices, and caches of programs and generated data that are the session's own."""

import os
import tempfile

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
os.environ["NPROC"] = "9"  # see `parallel.use_every_core`
jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of a test's time

programs = tempfile.TemporaryDirectory()  # one and the same program is compiled once in a session
jax.config.update("jax_compilation_cache_dir", programs.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing is read from or left in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def small_network(monkeypatch):
    """DSA-IGN of one layer of width 16."""
    from fedjax_lab.models import dsa_ign

    monkeypatch.setattr(dsa_ign, "HIDDEN", 16)
    monkeypatch.setattr(dsa_ign, "LAYERS", 1)
    monkeypatch.setattr(dsa_ign, "DROPOUT", dsa_ign.DROPOUT)
