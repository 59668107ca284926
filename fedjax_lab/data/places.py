"""Where the files of a data set are searched."""

from collections.abc import Callable, Iterable
from pathlib import Path

from fedjax_lab.data.fetching import catalog
from fedjax_lab.data.safe import Fault
from fedjax_lab.errors import BadInput

PLACES = ("~/.cache/fedjax_lab", "data")


def fetched(name: str, by_hand: str) -> str:
    """The remedy for missing files of a data set that `fedjax-lab data get` fetches.

    The command comes last, because long messages are shortened in the middle.
    """
    return f"{by_hand}; or run `fedjax-lab data get {name}`, which fetches it"


def fetched_by_hand(name: str) -> str:
    """The remedy for missing files of a data set that must be fetched by hand."""
    by_hand = catalog.PUBLISHED[name].by_hand
    return f"{by_hand}; `fedjax-lab data get {name}` prints the full instructions"


def path_of(path: str, remedy: str, key: str = "path") -> Path:
    """The path that the user gives as config.data.`key`. Raises BadInput if it is empty."""
    if not path:
        raise BadInput(f"config.data.{key} is empty: {remedy}")
    return Path(path).expanduser()


def folder_of(path: str | Path) -> Path:
    """The folder of this path. Raises a Fault if it does not exist."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise Fault(f"{folder} is not a folder")
    return folder


def searched(folder: str) -> list[Path]:
    """The folders in which data are searched: `folder`, or else PLACES."""
    return [Path(place).expanduser() for place in ([folder] if folder else PLACES)]


def locate(folder: str, names: Iterable[str], kind: Callable = Path.is_file) -> Path:
    """The first existing file of these relative names, in `folder` or else in PLACES.

    kind: Path.is_file, or Path.is_dir to find a folder. Raises a Fault if none exists.
    """
    places, names = [folder_of(folder)] if folder else searched(""), tuple(names)
    path = next((p / name for p in places for name in names if kind(p / name)), None)
    if path is None:
        raise Fault(f"no {' or '.join(names)} in {' or '.join(map(str, places))}")
    return path
