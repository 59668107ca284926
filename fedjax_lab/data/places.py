"""Where the files of a data set are looked for."""

from collections.abc import Callable
from pathlib import Path

from fedjax_lab.errors import BadInput

PLACES = ("~/.cache/fedjax_lab", "data")


def locate(folder: str, names: tuple[str, ...], remedy: str, kind: Callable = Path.is_file) -> Path:
    """The first file of these relative names, in `folder` or else in PLACES; BadInput if none.

    With kind=Path.is_dir the first folder.
    """
    places = [Path(place).expanduser() for place in ([folder] if folder else PLACES)]
    if folder and not places[0].is_dir():
        raise BadInput(f"{places[0]} is not a folder: {remedy}")
    path = next((p / name for p in places for name in names if kind(p / name)), None)
    if path is None:
        looked, wanted = " or ".join(map(str, places)), " or ".join(names)
        raise BadInput(f"no {wanted} in {looked}: {remedy}")
    return path
