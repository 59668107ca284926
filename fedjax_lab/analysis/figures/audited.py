"""Pictures of what attacks have found: see `fedjax-lab audit`.

python -m fedjax_lab.figures audit FOLDER [--attack=inversion]

--attack  the attack whose latest audit is drawn; default: all that have pictures
"""

from pathlib import Path

from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.auditing import audits, findings
from fedjax_lab.errors import BadInput


def draw(workdir: Path, *, attack: str = "") -> Drawn:
    """The pictures of the latest audit with each attack, or with the named one.

    The file of an attack may have a function `pictures`: its arrays -> {name: figure}.
    """
    made = {attack} if attack else {row["attack"] for row in findings.read(workdir)}
    drawers = {name: audits.drawer(name) for name in sorted(made)}
    pictures = {
        f"{name}_{picture}": figure
        for name, pictures in drawers.items()
        if pictures is not None
        for picture, figure in pictures(findings.read_arrays(workdir, name)).items()
    }
    if not pictures:
        raise BadInput(f"{workdir} has no audit with pictures; run `fedjax-lab audit` first")
    return Drawn(pictures)
