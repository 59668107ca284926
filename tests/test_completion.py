"""The script that completes the commands in a shell, by bash itself."""

import shutil
import subprocess

import optional
import pytest

from fedjax_lab.commands import command, completion

optional.module("shtab")


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("builtins.print", lambda text: printed.append(text))
        assert completion.main(["completion", "bash"]) == 0
    return printed[0]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
@pytest.mark.parametrize(
    "words, offered",
    [
        (["s"], ["sweep"]),
        (["sweep", "--tun"], ["--tune"]),
        (["data", "--mirr"], ["--mirror"]),
        (["report", "--basel"], ["--baseline"]),
        (["run", "--config", "quick"], ["quickstart"]),
        (["run", "--resume", "--work"], ["--workdir"]),
        (["run", "--config.local.l"], ["--config.local.lr"]),
    ],
)
def test_bash_completes_commands_flags_configs_and_keys(words, offered, script, tmp_path):
    (tmp_path / "script").write_text(script)
    line = " ".join(["fedjax-lab", *words])
    program = (
        f"source ./script; COMP_WORDS=({line}); COMP_CWORD={len(words)};"
        " _shtab_fedjax_lab; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == offered, done.stderr


def test_an_unknown_shell_is_one_line(capsys):
    assert completion.main(["completion", "bsh"]) == 2
    assert "no shell 'bsh'; did you mean 'bash'?" in capsys.readouterr().err
    assert completion.main(["completion"]) == 2
    assert "completion" in command.COMMANDS
