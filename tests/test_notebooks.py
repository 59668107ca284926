"""The notebooks: stored without outputs, and run in small from the first cell to the last."""

import base64
import functools
import importlib.util
import io
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import nbformat
import numpy as np
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from PIL import Image
from scipy import stats
from traitlets.config import Config

import fedjax_lab

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SMALL = {
    "one_run": "ROUNDS, SEEDS, SIZE, EXAMPLES, WIDTH = 4, [0, 1], 16, 20, 2",
    "add_a_method": "ROUNDS, SEEDS, SIZE, EXAMPLES, WIDTH = 2, [0, 1, 2], 16, 20, 2",
    "sweep_and_compare": """
METHODS, ALPHAS, SEEDS = "fedavg,scaffold", "1,10", "0,1"
ROUNDS, SIZE, EXAMPLES, WIDTH = 3, 16, 40, 2
""",
}
ASKED = {  # of the finished notebook, as an expression
    "one_run": """{
    "metrics": result.metrics,
    "examples": int(counts.sum()),
    "accuracy": [accuracy, measured],
}""",
    "add_a_method": """{
    "accuracy": {name: values.tolist() for name, values in accuracy.items()},
    "pair": [d.mean, d.low, d.high],
    "uploads": uploads["kernel"].tolist(),
    "aggregated": aggregated["kernel"].tolist(),
    "faulty": [
        with_fault(fedavg(task)).round[0].local(
            Weights({"a": jnp.float32(1)}, {"b": jnp.float32(1)}),
            SimpleNamespace(id=jnp.int32(id), private=()),
            SimpleNamespace(train=lambda w, loss: tree.scale(3.0, w)),
        )
        for id in (0, 1)
    ],
}""",
    "sweep_and_compare": '{"folder": str(folder)}',
}
ASK = """
import json, os
import fedjax_lab
from types import SimpleNamespace
from fedjax_lab.types import Weights
print(json.dumps([{"pid": os.getpid(), "package": fedjax_lab.__file__}, %s], default=float))
"""


class Executed(NamedTuple):
    """A notebook that has run in small."""

    cells: dict[str, nbformat.NotebookNode]  # by id
    process: dict[str, Any]  # its number, the package that it has imported
    asked: dict[str, Any]

    def text(self, id):
        """What a cell has printed."""
        return "".join(out.text for out in self.cells[id].outputs if out.output_type == "stream")

    def data(self, kind):
        """All that is shown in a format such as image/png."""
        outputs = [out for cell in self.cells.values() for out in cell.get("outputs", [])]
        return [out.data[kind] for out in outputs if kind in out.get("data", {})]


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def cell(notebook, id):
    (chosen,) = (cell for cell in notebook.cells if cell.id == id)
    return chosen


@pytest.fixture(scope="module")
def executed(session_cache, tmp_path_factory):
    """executed(name), which runs a notebook once. A cell that fails fails the test."""
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="nb") as short:
        for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
            patch.setenv(variable, str(folder / "jupyter"))  # nothing of the user's
        patch.setenv("JUPYTER_RUNTIME_DIR", short)
        # Sockets in files: the kernel warns of ports that others can listen to.
        sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{short}/kernel"}})
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(fedjax_lab.__file__).parent.parent),
            "TMPDIR": str(folder),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

        @functools.cache
        def run(name):
            notebook = read(name)
            place = notebook.cells.index(cell(notebook, "parameters")) + 1
            notebook.cells.insert(place, nbformat.v4.new_code_cell(SMALL[name], id="small"))
            notebook.cells.append(nbformat.v4.new_code_cell(ASK % ASKED[name], id="ask"))
            client = NotebookClient(notebook, timeout=300, config=sockets, coalesce_streams=True)
            client.execute(env=environment, cwd=str(folder))
            done = Executed({cell.id: cell for cell in notebook.cells}, {}, {})
            process, asked = json.loads(done.text("ask"))
            return done._replace(process=process, asked=asked)

        yield run


@pytest.mark.parametrize("name", NAMES)
def test_stored_without_outputs(name):
    """Valid, for the kernel that every Jupyter has, and with nothing of the machine it ran on."""
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.nbformat_minor >= 5  # cells have ids
    assert notebook.metadata.keys() == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info == {"name": "python"}
    assert cell(notebook, "parameters").metadata.tags == ["parameters"]
    for each in notebook.cells:
        assert not each.get("outputs") and each.get("execution_count") is None, each.id
        assert each.id == "parameters" or not each.metadata, each.id
    assert not re.search(r"/(home|root|work|tmp|Users|content)/|\b[A-Z]:\\\\", text)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    """To other notebooks beside this one."""
    sources = "".join(each.source for each in read(name).cells if each.cell_type == "markdown")
    for link in re.findall(r"\]\(([^)]+)\)", sources):
        assert (FOLDER / link).is_file(), link


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_without_the_package(name, monkeypatch):
    """It is installed from an address, with CUDA where there is a GPU; without one a line says so.

    The others begin with the same cells.
    """
    source = cell(read(name), "install").source
    assert source == cell(read(NAMES[0]), "install").source
    code = TransformerManager().transform_cell(source)
    asked = []

    class Shell:
        def run_line_magic(self, magic, line):
            asked.append((magic, line))

    def run(code):
        space = {"get_ipython": Shell}
        exec(code, space)
        return [(magic, line.format(**space)) for magic, line in asked]

    assert run(code) == []  # it is there
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="fedjax_lab .* REPOSITORY") as error:
        run(code)
    assert "\n" not in str(error.value)
    with_address = code.replace('REPOSITORY = ""', 'REPOSITORY = "https://host/x"')
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert run(with_address) == [("pip", 'install -q "fedjax_lab @ git+https://host/x"')]
    asked.clear()
    monkeypatch.setattr(shutil, "which", lambda name: "nvidia-smi")
    assert run(with_address) == [("pip", 'install -q "fedjax_lab[cuda12] @ git+https://host/x"')]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_to_the_end(name, executed):
    """This package, no warning, pictures in the page, no process left."""
    done = executed(name)
    assert done.process["package"] == fedjax_lab.__file__
    for each in done.cells.values():
        assert not [out for out in each.get("outputs", []) if out.get("name") == "stderr"], each
    pictures = done.data("image/png")
    assert pictures
    for picture in pictures:
        image = Image.open(io.BytesIO(base64.b64decode(picture)))
        assert min(image.size) > 100 and len(image.convert("RGB").getcolors(2**24)) > 10
    with pytest.raises(ProcessLookupError):
        os.kill(done.process["pid"], 0)


@pytest.mark.slow
def test_one_run(executed):
    """Evaluations of both seeds; the model, used by hand, is right as often as the run measured."""
    done = executed("one_run")
    rows = [(row["round"], row["seed"]) for row in done.asked["metrics"]]
    assert rows == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert done.asked["examples"] == 5 * 20 * 0.9
    assert done.asked["accuracy"][0] == pytest.approx(done.asked["accuracy"][1], abs=0.1)
    assert "did you mean 'mu'?" in done.text("resolve")
    last = [row for row in done.asked["metrics"] if row["round"] == 4]
    for name, row in {"street": "domains", "postal": "domains"}.items():
        values = [each[row][name] for each in last]
        (line,) = (text for text in done.text("closing-table").splitlines() if name in text)
        assert line.split()[1:4] == [
            f"{np.mean(values):.2f}",
            "+-",
            f"{np.std(values, ddof=1):.2f}",
        ]
    assert "summary.json" in done.text("workdir")


@pytest.mark.slow
def test_add_a_method(executed):
    """The aggregate is SciPy's trimmed mean; the fault and the pairs are as the text says."""
    asked = executed("add_a_method").asked
    expected = stats.trim_mean(np.array(asked["uploads"]), 0.43, axis=0)  # three of seven
    np.testing.assert_allclose(asked["aggregated"], expected, rtol=1e-5, atol=1e-6)
    (faulty, _), (honest, _) = asked["faulty"]
    assert faulty == [{"a": 1 - 5 * (3 - 1)}, {"b": 3}] and honest == [{"a": 3}, {"b": 3}]
    last = {name: np.array(values)[:, -1] for name, values in asked["accuracy"].items()}
    d = last["trimmed_mean_with_fault"] - last["fedavg_with_fault"]
    half = stats.t.ppf(0.975, 2) * np.std(d, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(asked["pair"], [d.mean(), d.mean() - half, d.mean() + half])
    assert "bit for bit" in executed("add_a_method").text("identity")
    assert "BadInput: method.trim=1" in executed("add_a_method").text("refusal")


@pytest.mark.slow
def test_sweep_and_compare(executed):
    """Four cells; a number of the table is that of the files; the page is inside the notebook."""
    done = executed("sweep_and_compare")
    folder = Path(done.asked["folder"])
    cells = sorted(path.parent.name for path in folder.glob("sweep/*/summary.json"))
    assert cells == [
        f"{m},partition.alpha={a}" for m in ("fedavg", "scaffold") for a in (1.0, 10.0)
    ]
    lines = (folder / "sweep" / cells[-1] / "metrics.jsonl").read_text().splitlines()
    last = [row["accuracy"]["mean"] for row in map(json.loads, lines) if row["round"] == 3]
    (table,) = done.data("text/markdown")
    assert f"| 2 | {np.mean(last):.2f} +- {np.std(last, ddof=1):.2f} |" in table
    (frame,) = done.data("text/html")
    page = base64.b64decode(re.search(r"base64,([^\"]+)", frame)[1]).decode()
    assert page == (folder / "report.html").read_text() and "scaffold" in page
    assert len(done.data("image/png")) == 2
