"""Sets up eight virtual devices and fast compilation.

Compilation takes most of a test's time. Two flags of XLA make it three to four times faster;
workers and processes that tests start inherit them.

With FEDJAX_LAB_TEST_DEVICE=1 the tests run on the device that JAX finds, and programs are compiled
as in a run. Matrix products then have the highest precision, because formulas are compared with
NumPy's. Tests that need more devices are skipped. Processes that tests start use the CPU, because
many devices serve only one process.

With FEDJAX_LAB_TEST_PROGRAMS=FOLDER compiled programs are kept in this folder, so that other tiers
need not compile them again. Processes that tests start do not use it.
"""

import os
from pathlib import Path

import by_method
import optional
import targets
import xla_flags

ON_DEVICE = bool(os.environ.get("FEDJAX_LAB_TEST_DEVICE"))
FLAGS = os.environ.get("XLA_FLAGS", "").split()
QUICK = ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit the flags of the first process
    FLAGS += xla_flags.known(QUICK)
if not ON_DEVICE:
    os.environ.update(targets.ENVIRONMENT)
    FLAGS.append(targets.ENVIRONMENT["XLA_FLAGS"])
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA prints only why a process dies
os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys(FLAGS))  # before jax is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import users_settings  # noqa: E402
from pacs import make_folders, picture  # noqa: E402

from fedjax_lab.engine import parallel  # noqa: E402


def use_device():
    """Uses the present devices; a test that makes a mesh of more devices is skipped."""
    number = len(jax.devices())
    jax.config.update("jax_default_matmul_precision", "highest")
    os.environ["JAX_PLATFORMS"] = "cpu"  # jax has read it; this is for processes that tests start
    make_mesh = parallel.make_mesh

    def make_mesh_or_skip(devices, group=1):
        if isinstance(devices, int) and devices > number:
            pytest.skip(f"needs {devices} devices", allow_module_level=True)
        return make_mesh(devices, group)

    parallel.make_mesh = make_mesh_or_skip


os.environ["NPROC"] = "9"  # see `parallel.use_every_core`
if ON_DEVICE:
    use_device()
else:
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
if programs := os.environ.get("FEDJAX_LAB_TEST_PROGRAMS"):
    jax.config.update("jax_compilation_cache_dir", programs)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
users_settings.enter()


# The tier `smoke`: fast tests of these files and folders, which together use every part of the
# package. It takes a minute, with the oldest and with further versions of Python and JAX.
SMOKE = """
    data/test_arrays data/test_digit data/test_hub data/test_image data/test_le data/test_prepared
    data/test_records data/test_sources data/test_text data/test_tff
    methods/test_client2vec methods/test_fedavg methods/test_fedbn methods/test_fedc2i
    methods/test_fedconcat methods/test_hfedf methods/test_identities methods/test_methods
    models/test_layers models/test_nets models/test_transformers
    transforms/test_aggregators transforms/test_compression transforms/test_neighbors
    transforms/test_privacy test_checkpoint test_config test_experiment test_host_state
    test_imports test_loggers test_main test_optim test_optional test_parallel test_plots
    test_report test_simulate test_stages test_sweep test_tensorboard test_tree
""".split()


def is_smoke(path):
    return path.relative_to(Path(__file__).parent).as_posix().startswith(tuple(SMOKE))


def pytest_addoption(parser):
    parser.addoption("--method", help="run the formula, identity and shared tests of this method")


def pytest_configure(config):
    by_method.use(config)


def pytest_ignore_collect(collection_path, config):
    """The tier `smoke` imports only its own files, and so do the tests of one method."""
    option, is_file = config.option, collection_path.suffix == ".py"
    if option.markexpr == "smoke" and is_file and not is_smoke(collection_path):
        return True
    if option.method and is_file and by_method.is_left_out(collection_path, option.method):
        return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items, config):
    """Marks the tests of the tiers `smoke` and `extras`, and leaves those of `--method`."""
    if config.option.method:
        by_method.select(items, config)
    for item in items:
        others = {mark.name for mark in item.iter_markers()} & {"slow", "compilers", "exhaustive"}
        if is_smoke(item.path) and not others:
            item.add_marker("smoke")
        if optional.needs_more(item.path) and not others:
            item.add_marker("extras")


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory):
    """Tests neither read nor write the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def as_users_compile():
    """Compiles programs as users compile them, instead of as fast as possible."""
    if ON_DEVICE:
        pytest.skip("compiles for devices that are not there")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def small_network(monkeypatch):
    """DSA-IGN with one layer of width 16."""
    from fedjax_lab.papers.client2vec import network

    monkeypatch.setattr(network, "HIDDEN", 16)
    monkeypatch.setattr(network, "LAYERS", 1)
    monkeypatch.setattr(network, "DROPOUT", network.DROPOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder for the tests of a module together."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def four_domains(tmp_path_factory):
    """400 images 8x8 of four classes in four domains."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 400)
    x = rng.integers(0, 60, (400, 8, 8, 1), dtype=np.uint8)
    for k in range(4):
        x[y == k, 2 * k : 2 * k + 2] += 150
    domain = np.array(list("abcd"))[np.arange(400) % 4]
    path = tmp_path_factory.mktemp("data") / "data.npz"
    split = np.where(np.arange(400) < 40, "test", "train")
    np.savez(path, x=x, y=y, domain=domain, split=split)
    return path


@pytest.fixture
def pacs(tmp_path):
    """A small PACS as unpacked from its archive, with other files that an archive may contain."""
    root = make_folders(tmp_path / "kfold")
    rng = np.random.default_rng(1)
    picture(rng, "RGBA").save(root / "photo" / "dog" / "pic_900.png")
    picture(rng, "P").save(root / "photo" / "dog" / "pic_901.png")
    (root / "photo" / "dog" / "._pic_000.JPG").write_bytes(b"\0\5\26\7")
    (root / "photo" / "dog" / "Thumbs.db").write_bytes(b"\0")
    (root / "photo" / ".DS_Store").write_bytes(b"\0")
    (root / "splits.txt").write_text("")
    (root / "__MACOSX" / "photo").mkdir(parents=True)
    return tmp_path
