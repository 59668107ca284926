"""The notebooks are stored without outputs, and run completely with small settings."""

import base64
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import numpy as np
import pytest
import repository_address
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from PIL import Image
from scipy import stats
from slow_cases import exhaustive_but
from traitlets.config import Config

import fedjax_lab

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
OF_PAPERS = "ROUNDS, SIZE, EXAMPLES, TEST = 2, 16, 20, 50"
SMALL = {
    "one_run": "ROUNDS, SEEDS, SIZE, EXAMPLES, WIDTH = 4, [0, 1], 16, 20, 2",
    "add_a_method": "ROUNDS, SEEDS, SIZE, EXAMPLES, TEST, WIDTH = 2, [0, 1, 2], 16, 20, 50, 2",
    "own_loop": "ROUNDS, SIZE, EXAMPLES, TEST = 2, 16, 40, 50",
    "sweep_and_compare": """
METHODS, ALPHAS, SEEDS = "fedavg,scaffold", "1,10", "0,1"
ROUNDS, SIZE, EXAMPLES, WIDTH = 3, 16, 40, 2
""",
    "fedpick_masks": f"{OF_PAPERS}; WIDTH = 2",
    "fedconcat_clusters": f"{OF_PAPERS}; WIDTH = 2",
    "fedc2i_influence": OF_PAPERS,
    "hfedf_embeddings": OF_PAPERS,
    "client2vec_index": f"{OF_PAPERS}; EPOCHS, WIDTH = 1, 2",
}
ASKED = {  # an expression that a finished notebook evaluates
    "one_run": '{"metrics": result.metrics, "examples": int(counts.sum()),'
    ' "accuracy": [accuracy, measured]}',
    "add_a_method": '{"rows": rows, "pair": [d.mean, d.low, d.high]}',
    "sweep_and_compare": '{"folder": str(folder)}',
    "hfedf_embeddings": '{"spread": drawn.numbers["spread"]}',
}
ASK = """
import json
import fedjax_lab
print(json.dumps([fedjax_lab.__file__, %s], default=float))
"""


class Executed(NamedTuple):
    """A notebook that has run with small settings."""

    cells: dict[str, nbformat.NotebookNode]  # by id
    package: str  # the file of the package that it has imported
    asked: dict[str, Any]

    def text(self, id):
        """The text that a cell has printed."""
        return "".join(out.text for out in self.cells[id].outputs if out.output_type == "stream")

    def data(self, kind):
        """All outputs in a format such as image/png."""
        outputs = [out for cell in self.cells.values() for out in cell.get("outputs", [])]
        return [out.data[kind] for out in outputs if kind in out.get("data", {})]


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def check_one_run(done):
    """Both seeds are evaluated; the accuracy computed by hand equals the measured one."""
    rows = [(row["round"], row["seed"]) for row in done.asked["metrics"]]
    assert rows == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert done.asked["examples"] == 5 * 20 * 0.9
    assert done.asked["accuracy"][0] == pytest.approx(done.asked["accuracy"][1], abs=0.1)
    assert "did you mean 'mu'?" in done.text("resolve")
    last = [row for row in done.asked["metrics"] if row["round"] == 4]
    for name in ("street", "postal"):
        values = [each["domains"][name] for each in last]
        (line,) = (text for text in done.text("closing-table").splitlines() if name in text)
        expected = f"{np.mean(values):.2f} +- {np.std(values, ddof=1):.2f}"
        assert line.split()[1:4] == expected.split()
    assert "summary.json" in done.text("workdir")


def check_add_a_method(done):
    """The check of the method passes or fails as the text says; intervals equal SciPy's."""
    assert done.text("check") == "q_fedavg passes\n"
    assert done.text("failure").startswith("CheckFailed: ")
    worst = {
        name: np.array([min(row["domains"].values()) for row in rows])
        for name, rows in done.asked["rows"].items()
    }
    d = worst["q_fedavg"] - worst["fedavg"]
    half = stats.t.ppf(0.975, 2) * np.std(d, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(done.asked["pair"], [d.mean(), d.mean() - half, d.mean() + half])


def check_sweep_and_compare(done):
    """Four cells are run, the table agrees with the files, and the page is in the notebook."""
    folder = Path(done.asked["folder"])
    cells = sorted(path.parent.name for path in folder.glob("sweep/*/summary.json"))
    pairs = [(m, a) for m in ("fedavg", "scaffold") for a in (1.0, 10.0)]
    assert cells == [f"{m},partition.alpha={a}" for m, a in pairs]
    lines = (folder / "sweep" / cells[-1] / "metrics.jsonl").read_text().splitlines()
    last = [row["accuracy"]["mean"] for row in map(json.loads, lines) if row["round"] == 3]
    (table,) = done.data("text/markdown")
    assert f"| 2 | {np.mean(last):.2f} +- {np.std(last, ddof=1):.2f} |" in table
    (frame,) = done.data("text/html")
    page = base64.b64decode(re.search(r"base64,([^\"]+)", frame)[1]).decode()
    assert page == (folder / "report.html").read_text() and "scaffold" in page
    assert len(done.data("image/png")) == 2


def check_hfedf(done):
    spread = {Path(k).name: v for k, v in done.asked["spread"].items()}
    assert set(spread["fedavg"].values()) == {0} and min(spread["hfedf"].values()) > 0


CHECKS = {  # the numbers of the other notebooks are those of figures, which have their own tests
    "one_run": check_one_run,
    "add_a_method": check_add_a_method,
    "sweep_and_compare": check_sweep_and_compare,
    "hfedf_embeddings": check_hfedf,
}


def cell(notebook, id):
    (chosen,) = (cell for cell in notebook.cells if cell.id == id)
    return chosen


@pytest.fixture(scope="module")
def executed(session_cache, tmp_path_factory):
    """A function that runs a notebook once. If a cell fails, the test fails.

    All notebooks run in one process, one after the other, and no name of the previous one is left.
    The process starts once, and a program that two notebooks need is compiled once.
    """
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="nb") as short:
        for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
            patch.setenv(variable, str(folder / "jupyter"))  # no files of the user
        patch.setenv("JUPYTER_RUNTIME_DIR", short)
        # Sockets are files: the kernel warns about ports that other users can listen to.
        sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{short}/kernel"}})
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(fedjax_lab.__file__).parent.parent),
            "TMPDIR": str(folder),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }

        client = NotebookClient(read(NAMES[0]), timeout=600, config=sockets, coalesce_streams=True)

        @functools.cache
        def run(name):
            client.nb = notebook = in_small(name, folder)
            client.execute(env=environment, cwd=str(folder), cleanup_kc=False)
            done = Executed({cell.id: cell for cell in notebook.cells}, "", {})
            package, asked = json.loads(done.text("ask"))
            return done._replace(package=package, asked=asked)

        yield run
        if client.km is not None:  # a notebook has run
            client._cleanup_kernel()


def in_small(name, folder):
    """Returns the notebook with its small settings; it resets names first and ends with results."""
    notebook = read(name)
    place = notebook.cells.index(cell(notebook, "parameters")) + 1
    notebook.cells.insert(place, nbformat.v4.new_code_cell(SMALL[name], id="small"))
    forget = f"%reset -f\n%cd -q {folder}"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(forget, id="forget"))
    notebook.cells.append(nbformat.v4.new_code_cell(ASK % ASKED.get(name, {}), id="ask"))
    return notebook


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs(name):
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
    sources = "".join(each.source for each in notebook.cells if each.cell_type == "markdown")
    for link in re.findall(r"\]\(([^)]+)\)", sources):
        assert link.startswith("https://") or (FOLDER / link).is_file(), link
    first, install = notebook.cells[:2]
    badge = re.match(r"\[!\[Open in Colab\]\(https://[^)]+\.svg\)\]\(([^)]+)\)\n\n# ", first.source)
    repository = re.search(r'^REPOSITORY = "https://github.com/([^"]+)"', install.source, re.M)
    path = f"github/{repository[1]}/blob/main/notebooks/{name}.ipynb"
    assert badge[1] == f"https://colab.research.google.com/{path}"


def test_a_notebook_installs_the_package_if_it_is_missing(monkeypatch):
    (source,) = {cell(read(name), "install").source for name in NAMES}
    code = TransformerManager().transform_cell(source.replace("_OWNER_", "someone", 1))
    asked = []

    class Shell:
        def run_line_magic(self, magic, line):
            asked.append((magic, line))

    def run():
        asked.clear()
        space = {"get_ipython": Shell}
        exec(code, space)
        address = f"git+{space['REPOSITORY']}"
        return [(magic, line.format(**space).replace(address, "HERE")) for magic, line in asked]

    assert run() == []  # it is installed
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert run() == [("pip", 'install -q "fedjax_lab @ HERE"')]
    monkeypatch.setattr(shutil, "which", lambda name: "nvidia-smi")
    assert run() == [("pip", 'install -q "fedjax_lab[cuda12] @ HERE"')]


@pytest.mark.parametrize(
    "remote",
    [
        "https://github.com/a-b/fed.x",
        "git@github.com:a-b/fed.x.git",
        "ssh://git@github.com/a-b/fed.x",
    ],
)
def test_a_fork_writes_its_address_to_the_notebooks(remote, tmp_path):
    shutil.copytree(FOLDER, tmp_path / "notebooks")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    repository_address.main(tmp_path)
    for path in (tmp_path / "notebooks").glob("*.ipynb"):
        title, install, *_ = nbformat.read(path, as_version=4).cells
        assert f"google.com/github/a-b/fed.x/blob/main/notebooks/{path.name}" in title.source
        assert 'REPOSITORY = "https://github.com/a-b/fed.x"' in install.source


def test_an_address_that_colab_cannot_open_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="from GitHub only"):
        repository_address.on_github("https://gitlab.com/a/b")
    with pytest.raises(SystemExit, match="from GitHub only"):
        repository_address.main(tmp_path)


# A notebook takes half a minute; CI runs the shortest.
@pytest.mark.parametrize("name", exhaustive_but(["one_run"], NAMES))
def test_a_notebook_runs_to_the_end(name, executed):
    """It imports this package, prints no warning and shows pictures; its results are right."""
    done = executed(name)
    assert done.package == fedjax_lab.__file__
    for each in done.cells.values():
        assert not [out for out in each.get("outputs", []) if out.get("name") == "stderr"], each
    pictures = done.data("image/png")
    assert pictures
    for picture in pictures:
        image = Image.open(io.BytesIO(base64.b64decode(picture)))
        assert min(image.size) > 100 and len(image.convert("RGB").getcolors(2**24)) > 10
    if name in CHECKS:
        CHECKS[name](done)
