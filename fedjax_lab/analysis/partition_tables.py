"""Shows a partition of the data as a table, a picture and a CSV file, for --partition_only.

The picture has heat maps of the share of each class and each domain in a client's training
examples, and a bar for their number. If there are many clients, it shows a selection from the
smallest to the largest. If a feature skew changes images, it shows one image as several clients
would see it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_lab import defaults, streams
from fedjax_lab.analysis import formats
from fedjax_lab.data import writing
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.partitions import partitioning
from fedjax_lab.experiment import run_names
from fedjax_lab.experiment.federation import class_counts
from fedjax_lab.running import plots
from fedjax_lab.running.plots import Figure
from fedjax_lab.types import Federation

CLIENTS = 100  # the most clients in a picture
IMAGES = 8  # the most clients for which the image is shown
FIELD = 0.2  # size of a cell of a heat map, inches


class Held(NamedTuple):
    """The numbers of training examples that the C clients and then the N new clients hold."""

    classes: np.ndarray  # [C + N, K] by class
    domains: np.ndarray  # [C + N, D] by domain; D is 0 if there is only one domain
    num_new: int
    class_names: Sequence[str]
    domain_names: Sequence[str]
    tests: int = 0  # the number of examples in the global test set
    tests_of_nobody: int = 0  # the number of these that no client holds
    named: Sequence[str] = ()  # the names of the C + N clients; empty: they have only numbers

    @property
    def clients(self) -> list[str]:
        """The numbers of the clients."""
        return _numbers(len(self.classes) - self.num_new, len(self.classes))


def held_by(federation: Federation, dataset: Dataset) -> Held:
    """The numbers of examples that the clients of a federation hold."""
    domains = dataset.domains if len(dataset.domains) > 1 else ()

    def counted(labels, count):
        each = [class_counts(r, labels, count) for r in (federation.train, federation.new_train)]
        return np.concatenate(each)

    return Held(
        classes=counted(dataset.strata, len(dataset.stratum_names)),
        domains=counted(federation.domain, len(dataset.domains))[:, : len(domains)],
        num_new=0 if federation.new_train is None else len(federation.new_train),
        class_names=[partitioning.printable(name) for name in dataset.stratum_names],
        domain_names=[partitioning.printable(name) for name in domains],
        tests=0 if federation.global_test is None else len(federation.global_test),
        tests_of_nobody=_tests_of_nobody(federation),
        named=_named(federation, dataset),
    )


def _named(federation, dataset):
    """The names of the clients and then of the new clients."""
    new = [] if federation.new_train is None else run_names.names(dataset, federation.new_train)
    named = [*run_names.names(dataset, federation.train), *(f"new {name}" for name in new)]
    return [partitioning.printable(name) for name in named]


def _tests_of_nobody(federation: Federation) -> int:
    """The number of global test examples that no client holds.

    They belong to users who have no training examples, or whom the partition leaves out.
    """
    if federation.global_test is None:
        return 0
    held = [rows.list for rows in (federation.test, federation.new_test) if rows is not None]
    return int((~np.isin(federation.global_test, np.concatenate([*held, []]))).sum())


def table(held: Held) -> str:
    """A text table of the first clients and classes, totals and measures of skew.

    A second table for new clients follows if there are some.
    """
    names, first = (held.class_names, held.domain_names), len(held.classes) - held.num_new
    text = partitioning.table(
        held.classes[:first], names[0], held.domains[:first], names[1], held.named[:first]
    )
    if held.tests_of_nobody:
        text += (
            f"\n{held.tests_of_nobody} of {held.tests} test examples belong to no client; they are"
            " only in the global test set"
        )
    if not held.num_new:
        return text
    new = [name.removeprefix("new ") for name in held.named[first:]]
    text_of_new = partitioning.table(
        held.classes[first:], names[0], held.domains[first:], names[1], new
    )
    return f"{text}\n\nnew clients, which take no part in training:\n{text_of_new}"


def write(held: Held, path: Path) -> None:
    """Writes the counts of all clients as CSV: a line per client, a column per class and domain.

    If the clients have names, the last column has them.
    """
    named = held.named if list(held.named) != held.clients else ()
    names = [[name] for name in named] or [[]] * len(held.clients)
    each = zip(held.clients, held.classes, held.domains, names, strict=True)
    lines = [[client, k.sum(), *k, *d, *name] for client, k, d, name in each]
    header = ["client", "examples", *held.class_names, *held.domain_names, *["name"][: len(named)]]
    writing.replace(path, formats.csv_text([header, *lines], "\r\n").encode())


@defaults.restored()
def skewed_images(
    dataset: Dataset, federation: Federation, skew: Callable | None
) -> dict[str, np.ndarray]:
    """One training image after the feature skew of several clients, by the client's name.

    Args:
      dataset: the dataset.
      federation: its partition.
      skew: `Plan.feature_skew`; None: there is no feature skew.

    Returns:
      Images with values in [0, 1]; {} without a feature skew, or if the examples are not images.
    """
    x, skews = dataset.x, federation.traits.get("skew")
    if skew is None or skews is None or len(x.shape) != 4 or x.shape[3] not in (1, 3):
        return {}
    image = np.asarray(x[np.asarray(federation.train[0])[:1]])
    low, high = (0, 255) if x.dtype == np.uint8 else (image.min(), image.max())
    names, images = _numbers(len(federation.train), len(skews.client)), {}
    for i in np.unique(np.linspace(0, len(names) - 1, IMAGES).round().astype(int)):
        (key,) = streams.examples(jnp.asarray(skews.seed[i]), jnp.asarray(image.reshape(1, -1)))
        number = jnp.int32(skews.client[i])
        changed = np.asarray(skew(key, jnp.asarray(image[0], jnp.float32), number))
        images[names[i]] = np.clip((changed - low) / max(high - low, 1e-9), 0, 1)
    return images


def _numbers(first, count):
    """The numbers of `count` clients; those after the `first` ones are new clients."""
    return [*map(str, range(first)), *(f"new {i}" for i in range(count - first))]


@plots.in_style
def draw(held: Held, images: dict[str, np.ndarray] | None = None) -> Figure:
    """Draws the picture; images: the result of `skewed_images`."""
    names, sizes = held.named or held.clients, held.classes.sum(1)
    label, order = "client", np.arange(len(sizes))
    cuts = [len(sizes) - held.num_new] if held.num_new else []
    if len(sizes) > CLIENTS:
        places = np.linspace(0, len(sizes) - 1, CLIENTS).round().astype(int)
        order, cuts = np.argsort(sizes, kind="stable")[places], []
        label = f"{CLIENTS} of {len(sizes)} clients, by size"
    maps = []
    if len(held.class_names) > 1:
        maps.append((held.classes[order], plots.Side("class", held.class_names)))
    if held.domain_names:
        maps.append((held.domains[order], plots.Side("domain", held.domain_names)))
    rows = plots.Side(label, [names[int(i)] for i in order], cuts)
    return _drawn(maps, sizes[order], rows, images or {})


def _drawn(maps, sizes, rows, images):
    height = np.clip(FIELD * len(sizes), 1.7, 8)
    widths = [np.clip(FIELD * counts.shape[1], 1.2, 6) for counts, _ in maps]
    longest = max((len(str(name)) for _, columns in maps for name in columns.names), default=0)
    tall, of_images = 1.3 + 0.08 * longest + height, 1.1 * (len(images) > 0)
    beside = 0.5 + 0.08 * max(map(len, rows.names))
    figure = Figure((beside + sum(widths) + 1.5, tall + of_images), layout="constrained")
    above = figure
    if images:
        above, last = figure.subfigures(2, 1, height_ratios=[tall, of_images])
        _draw_images(last, images)
    (panels,) = above.subplots(
        1, len(maps) + 1, sharey=True, width_ratios=[*widths, 1.2], squeeze=False
    )
    for axes, (counts, columns), width in zip(panels, maps, widths, strict=False):
        shares = 100 * counts / np.maximum(sizes, 1)[:, None]
        image = axes.imshow(shares, "cividis", aspect="auto", vmin=0)
        plots.name_fields(
            axes.xaxis, columns, counts.shape[1], width / counts.shape[1], axes.axvline
        )
        plots.name_fields(axes.yaxis, rows, len(sizes), height / len(sizes), axes.axhline)
        above.colorbar(
            image, ax=axes, label="Share, %", location="top", aspect=10 * width, pad=0.15 / height
        )
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
    for axes in panels[1:]:
        axes.set_ylabel("")
        axes.tick_params(labelleft=False, left=False)
    _draw_sizes(panels[-1], sizes, None if maps else rows, height)
    return figure


def _draw_sizes(axes, sizes, rows, height):
    """Draws a bar for each size. rows: the labels; None: those of the heat map beside them."""
    if rows is not None:
        plots.name_fields(axes.yaxis, rows, len(sizes), height / len(sizes), axes.axhline)
        axes.invert_yaxis()
    axes.barh(np.arange(len(sizes)), sizes, height=0.9, color=plots.COLORS[0])
    axes.set(xlabel="Examples", xlim=(0, None))
    axes.grid(visible=False)


def _draw_images(figure, images):
    figure.suptitle("One image after the feature skew of these clients", fontsize="small")
    for axes, (name, image) in zip(figure.subplots(1, len(images)), images.items(), strict=True):
        axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
        axes.set_title(name, fontsize="small")
        axes.set_axis_off()
