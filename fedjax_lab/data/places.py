"""Where the files of a data set are searched."""

from collections.abc import Callable
from pathlib import Path

from fedjax_lab.data.fetching import catalog
from fedjax_lab.errors import BadInput

PLACES = ("~/.cache/fedjax_lab", "data")


def fetched(name: str, by_hand: str) -> str:
    """The remedy for missing files of a data set that `fedjax-lab data get` fetches.

    The command comes last, because long messages are shortened in the middle.
    """
    return f"{by_hand}; or run `fedjax-lab data get {name}`, which fetches it"


def told(name: str) -> str:
    """The remedy for missing files of a data set that must be fetched by hand."""
    by_hand = catalog.PUBLISHED[name].by_hand
    return f"{by_hand}; `fedjax-lab data get {name}` prints the full instructions"


def locate(folder: str, names: tuple[str, ...], remedy: str, kind: Callable = Path.is_file) -> Path:
    """The first existing file of these relative names, in `folder` or else in PLACES.

    kind: Path.is_file, or Path.is_dir to find a folder. Raises BadInput if none exists.
    """
    places = [Path(place).expanduser() for place in ([folder] if folder else PLACES)]
    if folder and not places[0].is_dir():
        raise BadInput(f"{places[0]} is not a folder: {remedy}")
    path = next((p / name for p in places for name in names if kind(p / name)), None)
    if path is None:
        looked, wanted = " or ".join(map(str, places)), " or ".join(names)
        raise BadInput(f"no {wanted} in {looked}: {remedy}")
    return path
