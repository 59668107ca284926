"""Config files: how they are found and read, and one-line errors."""

import pytest
from inputs import complaint

from fedjax_lab.configs import hfedf_digits, quickstart
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config, packaged

NESTED = "x = []\n    for _ in range(10**5): x = [x]\n    "


FILES = {  # {content of a config file: part of the error}
    "import sys; sys.exit(0)": "cannot be loaded: SystemExit: 0",
    "def get_config():\n    raise SystemExit": "cannot be loaded: SystemExit",
    "def get_config(:": "SyntaxError",
    "x = 1": "has no attribute 'get_config'",
    "get_config = 1": "not callable",
    "raise ValueError('long ' * 10**5)": "cannot be loaded: ValueError: long",
    "x = " + "-" * 20000 + "1": "cannot be loaded",
    "def get_config():\n    return get_config()": "RecursionError",
    "def get_config():\n    return None": "a config is a dict of sections, each a dict; got None",
    f"def get_config():\n    {NESTED}return x": "got [[[...]]]",
    f"def get_config():\n    {NESTED}return {{'run': {{'rounds': x}}}}": "config.run.rounds must",
    "x = '\udcff'": "UTF-8",
    "x = 1\0": "null bytes",
}


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_a_config_file_with_a_mistake_is_a_one_line_error(tmp_path, text):
    path = tmp_path / "config.py"
    path.write_bytes(text.replace("\udcff", "\xff").encode("latin-1"))
    message = complaint(lambda: resolve(load_config(str(path))))
    assert FILES[text].lower() in message.lower() and len(message) < 500


def test_a_config_path_that_is_not_a_file_is_rejected(tmp_path, monkeypatch):
    """The message lists the config files of the current folder, or the nearest packaged config."""
    monkeypatch.chdir(tmp_path)
    for name in ("quickstrat", "quickstrat:fedavg", "configs/quickstart.py"):
        assert complaint(load_config, name).endswith("did you mean 'quickstart'?")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folders.py").touch()
    message = complaint(load_config, str(tmp_path / "folder.py"))
    assert message.startswith("no config file ") and "folders.py'?" in message
    for path in ("a" * 5000, "a\0b"):
        assert len(complaint(load_config, path)) < 600


def test_a_config_file_may_have_colons_and_any_suffix_and_be_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "at 10:30"
    folder.mkdir()
    path = folder / "config.txt"
    path.write_text("def get_config(method='moon'):\n    return {'method': {'name': method}}")
    for text, method in ((f"{path}", "moon"), (f"{path}:fedavg", "fedavg")):
        assert load_config(text) == {"method": {"name": method}}
    (tmp_path / "near.py").write_text("def near(task): return task")
    assert load_config(f"{path}:near.py:near")["method"]["name"] == "near.py:near"
    path.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_config(str(path))


def test_packaged_configs_are_found_by_name_and_files_take_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {"quickstart", "hfedf_digits"} <= packaged().keys() and "__init__" not in packaged()
    assert load_config("quickstart") == quickstart.get_config()
    assert load_config("hfedf_digits:fedprox") == hfedf_digits.get_config("fedprox")
    (tmp_path / "quickstart").mkdir()  # a folder is not a config
    assert load_config("quickstart") == quickstart.get_config()
    (tmp_path / "quickstart").rmdir()
    (tmp_path / "quickstart").write_text("def get_config():\n    return {'run': {'rounds': 3}}")
    assert load_config("quickstart") == {"run": {"rounds": 3}}
