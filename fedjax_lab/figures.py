"""The command that draws learning curves, and the analyses of five papers, from runs.

python -m fedjax_lab.figures NAME FOLDER... [--out=DIR] [--format=png,pdf,svg] [options of NAME]

curves            learning curves against rounds, megabytes and seconds; of unfinished runs too
client2vec        how much alike clients and domains are; the time that an index takes
domain_gap        every client's model tested on every domain
encoder_exchange  FedConcat's Appendix C: probes on the encoders of two clients
fedc2i            the influence of clients on one another, by round
fedconcat         accuracy by megabytes, the clusters and their number
fedpick           sparsity and Fisher scores of features; what FedPick selects
hfedf             weights, embeddings, the spread of the clients' models and their calibration

FOLDER: of a finished run, also gs://BUCKET/FOLDER; curves, client2vec, fedconcat and hfedf take
several.
`NAME --help` tells what is drawn and which options there are.

--out     folder of the pictures, and of numbers.json where there are numbers; default:
          FOLDER/figures, in the first one
--format  of the pictures, one or several of png (the default), pdf and svg

Exit codes: 0 done; 1 the machine failed (disk, memory); 2 bad input, in one line; 130 interrupted.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedjax_lab import command, parallel
from fedjax_lab.analysis import plots
from fedjax_lab.analysis.figures import (
    client2vec,
    curves,
    domain_gap,
    encoder_exchange,
    fedc2i,
    fedconcat,
    fedpick,
    hfedf,
)
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.errors import BadInput, nearest, parse, quoted
from fedjax_lab.running import cloud, metrics

# Each takes the folder of a run, or several, and as keyword-only arguments its options.
FIGURES: dict[str, Callable[..., Drawn]] = {
    "curves": curves.draw,
    "client2vec": client2vec.draw,
    "domain_gap": domain_gap.draw,
    "encoder_exchange": encoder_exchange.draw,
    "fedc2i": fedc2i.draw,
    "fedconcat": fedconcat.draw,
    "fedpick": fedpick.draw,
    "hfedf": hfedf.draw,
}


FORMATS = ("png", "pdf", "svg")


def main(argv: list[str]) -> int:
    """The command, without its name; returns the exit code."""
    return command.call(_main, argv)


def _main(argv):
    if not argv:
        raise BadInput("which figures? python -m fedjax_lab.figures NAME FOLDER; --help tells more")
    name, *rest = argv
    if name in ("-h", "--help"):
        print(__doc__)
        return 0
    if name not in FIGURES:
        raise BadInput(f"no figures {quoted(name)}; {nearest(name, FIGURES)}")
    if {"-h", "--help"} & set(rest):
        print(inspect.getmodule(FIGURES[name]).__doc__)
        return 0
    folders, out, formats, options = _parse(name, rest)
    parallel.check_devices()
    with cloud.read(folders) as local, cloud.staged(out) as target:
        for folder in local:
            if not folder.is_dir():
                raise BadInput(f"{folder} is {'not a folder' if folder.exists() else 'not there'}")
        write(FIGURES[name](*local, **options), target, formats)
    return 0


def _parse(name, arguments):
    """The folders of runs, that of the pictures, their formats, and the options of the figures."""
    draw = FIGURES[name]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--format", default=FORMATS[0])
    for option, default in options_of(draw).items():
        kind = str if isinstance(default, str) else int
        parser.add_argument(f"--{option}", type=kind, default=default)
    args = vars(parse(parser, arguments))
    folders, out = args.pop("folders"), args.pop("out")
    formats = list(dict.fromkeys(args.pop("format").split(",")))
    if not folders:
        raise BadInput(f"which run? python -m fedjax_lab.figures {name} FOLDER")
    if len(folders) > 1 and not takes_several(draw):
        raise BadInput(f"{name} is drawn of one run, not of {len(folders)}")
    for wanted in formats:
        if wanted not in FORMATS:
            raise BadInput(f"--format: no pictures {quoted(wanted)}; {nearest(wanted, FORMATS)}")
    for folder in folders:
        cloud.check("FOLDER", folder)
    cloud.check("--out", out)
    return folders, out or folders[0] / "figures", formats, args


def options_of(draw: Callable[..., Drawn]) -> dict[str, str | int | None]:
    """The options of figures, and their defaults; None stands for a number that is not given."""
    parameters = inspect.signature(draw).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def takes_several(draw: Callable[..., Drawn]) -> bool:
    """Whether figures are drawn of any number of runs."""
    parameters = inspect.signature(draw).parameters.values()
    return any(p.kind is p.VAR_POSITIONAL for p in parameters)


def write(drawn: Drawn, out: Path, formats: Sequence[str]) -> None:
    """Prints the text, and writes the pictures and the numbers; tells where they are."""
    if drawn.text:
        print(drawn.text)
    metrics.make_folder(out)
    if drawn.numbers is not None:
        metrics.write_json(out / "numbers.json", drawn.numbers)
        print(cloud.address(out / "numbers.json"))
    for name, figure in drawn.pictures.items():
        for ending in formats:
            print(cloud.address(plots.save(figure, out / f"{name}.{ending}")))


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
