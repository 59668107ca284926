"""The published data sets that can be fetched: addresses, checksums, licenses, citations.

They are in catalog.toml, which describes its keys.
"""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, nearest, quoted

ARCHIVES = (".zip", ".tar.gz")


class File(NamedTuple):
    """A file that a publisher offers for download."""

    path: str  # relative to the folder of all data sets; an archive is unpacked beside this path
    size: int  # in bytes; 0: not published
    checksum: str  # ALGORITHM:DIGITS
    addresses: tuple[str, ...]  # the publisher's first, then mirrors

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Published(NamedTuple):
    """A published data set: either `files` can be fetched, or `by_hand` has instructions."""

    title: str
    home: str
    license: str
    citation: str
    target: str = ""  # the file or folder that results, relative to the folder of all data sets
    files: tuple[File, ...] = ()
    by_hand: str = ""
    reader: str = ""  # the data source that reads it; empty: the source of the same name
    settings: tuple[tuple[str, str], ...] = ()  # (key, value) pairs that this source needs

    @property
    def size(self) -> int:
        """The total size of all files in bytes; 0 if it is not published."""
        sizes = [file.size for file in self.files]
        return sum(sizes) if all(sizes) else 0

    @property
    def archives(self) -> list[File]:
        """The files to unpack. An archive that is itself the target is not unpacked."""
        return [
            file for file in self.files if file.path.endswith(ARCHIVES) and file.path != self.target
        ]

    @property
    def plain(self) -> list[File]:
        """The files that are kept as they are."""
        return [file for file in self.files if file not in self.archives]


def _published(name: str, table: dict) -> Published:
    """The data set of a table of catalog.toml."""
    table["target"] = table.get("target", "").replace("{}", name)
    folder, addresses = table.pop("folder", ""), table.pop("addresses", ())
    files = (_file(folder, addresses, *row) for row in table.pop("files", ()))
    settings = tuple((k, v.replace("{}", name)) for k, v in table.pop("settings", {}).items())
    return Published(**table, files=tuple(files), settings=settings)


def _file(folder, addresses, name, size, checksum):
    path = folder + name.rpartition("/")[2]
    return File(path, size, checksum, tuple(each.replace("{}", name) for each in addresses))


_TABLES = tomllib.loads(
    resources.files("fedjax_lab.data.fetching").joinpath("catalog.toml").read_text("utf-8")
)
PUBLISHED: dict[str, Published] = {
    name: _published(name, {**_TABLES["published"].get(table.pop("like", ""), {}), **table})
    for name, table in _TABLES["published"].items()
}
NOTHING_TO_FETCH: dict[str, str] = _TABLES["nothing_to_fetch"]  # the other data sources
GENERATED: dict[str, dict[str, str]] = _TABLES["generated"]  # license and citation by data source


def credited(dataset: Dataset, section: Mapping) -> Dataset:
    """The dataset with the license and citation of the published data set in the section `data`.

    A license or citation that the data source has set itself is kept. Both are empty if unknown.
    """
    name = section["name"]
    published = PUBLISHED.get(name) or PUBLISHED.get(section.get("dataset", ""))
    known = published._asdict() if published else GENERATED.get(name, {})
    return dataset._replace(
        license=dataset.license or known.get("license", ""),
        citation=dataset.citation or known.get("citation", ""),
    )


def look_up(name: str) -> Published:
    """The published data set `name`. Raises BadInput with the nearest name if there is none."""
    if name in NOTHING_TO_FETCH:
        raise BadInput(f"nothing to fetch: {name} {NOTHING_TO_FETCH[name]}")
    if name not in PUBLISHED:
        raise BadInput(f"no data set {quoted(name)}; {nearest(name, PUBLISHED)}")
    return PUBLISHED[name]


def at_mirror(data: Published, mirror: str) -> Published:
    """The data set with `mirror`/NAME as the only address of each file; the same if it is empty."""
    if not mirror:
        return data
    if not mirror.startswith(("http://", "https://")):
        raise BadInput(f"--mirror must begin with http:// or https://, got {quoted(mirror)}")
    base = mirror.rstrip("/")
    files = (file._replace(addresses=(f"{base}/{file.name}",)) for file in data.files)
    return data._replace(files=tuple(files))
