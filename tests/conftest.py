"""Eight virtual devices, quick compilation, and caches that are the session's own.

Compiling is most of a test's time. Two flags of XLA make it three to four times quicker; processes
that tests start inherit them. A jaxlib without one of them ends with "Unknown flag in XLA_FLAGS".
"""

import os
import tempfile

QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"  # before jax is imported

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
os.environ["NPROC"] = "9"  # see `parallel.use_every_core`
jax.config.update("jax_disable_most_optimizations", True)

programs = tempfile.TemporaryDirectory()  # one and the same program is compiled once in a session
jax.config.update("jax_compilation_cache_dir", programs.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory):
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
