"""The command that draws learning curves and the analyses of five papers from runs.

python -m fedjax_lab.figures NAME FOLDER... [--out=DIR] [--format=png,pdf,svg] [--trust]
                             [options of NAME]

attack            accuracy, success of a backdoor and exclusion of attackers, by round
audit             what the attacks of fedjax_lab.audit have found, such as images
clients           accuracy of each client, by its number of examples and domain
confusion         which classes the model takes for which
curves            learning curves by rounds, megabytes and seconds, also of unfinished runs
client2vec        similarity of clients and of domains, and the time to compute an index
domain_gap        accuracy of each client's model on each domain
partition         classes and domains of each client's examples
encoder_exchange  FedConcat's Appendix C: probes on the encoders of two clients
fedc2i            the influence of clients on one another, by round
fedconcat         accuracy by megabytes, the clusters, and the choice of their number
fedpick           sparsity and Fisher scores of features, and the features that FedPick selects
hfedf             weights, embeddings, the spread of the clients' models and their calibration

FOLDER is the folder of a finished run, which may also be gs://BUCKET/FOLDER. curves, client2vec,
fedconcat and hfedf take several folders.
`NAME --help` describes the pictures and the options of NAME.

--out     folder to write the pictures to, and numbers.json if there are numbers; default:
          FOLDER/figures, in the first FOLDER
--format  format of the pictures: one or several of png (the default), pdf and svg
--trust   executes code that the folder of the run names, such as its user-defined method

Exit codes: 0 success; 1 the machine failed (disk, memory); 2 the input is invalid (reported in one
line); 130 interrupted.
"""

if __name__ == "__main__":  # before the imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedjax_lab import defaults
from fedjax_lab.analysis.figures import (
    attack,
    audited,
    clients,
    confusion,
    curves,
    domain_gap,
    partition,
)
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import make_parser
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, nearest, parse, printable, quoted
from fedjax_lab.experiment import references
from fedjax_lab.papers.client2vec import index_figures
from fedjax_lab.papers.fedc2i import influence_figures
from fedjax_lab.papers.fedconcat import cluster_figures, encoder_figures
from fedjax_lab.papers.fedpick import feature_figures
from fedjax_lab.papers.hfedf import spread_figures
from fedjax_lab.running import plots
from fedjax_lab.running.storage import cloud, metric_rows

# Each function takes the folder of a run, or several; its options are keyword-only arguments.
FIGURES: dict[str, Callable[..., Drawn]] = {
    "attack": attack.draw,
    "audit": audited.draw,
    "clients": clients.draw,
    "confusion": confusion.draw,
    "curves": curves.draw,
    "client2vec": index_figures.draw,
    "domain_gap": domain_gap.draw,
    "encoder_exchange": encoder_figures.draw,
    "fedc2i": influence_figures.draw,
    "fedconcat": cluster_figures.draw,
    "fedpick": feature_figures.draw,
    "hfedf": spread_figures.draw,
    "partition": partition.draw,
}
FORMATS = ("png", "pdf", "svg")


def main(argv: list[str]) -> int:
    """The command, without its name; returns the exit code."""
    return command.call(_main, argv)


def _main(argv):
    if not argv:
        raise BadInput("no figures are given; for example `fedjax-lab figures curves runs/my_run`")
    name, *rest = argv
    if name in ("-h", "--help"):
        print(__doc__)
        return 0
    if name not in FIGURES:
        raise BadInput(f"no figures {quoted(name)}; {nearest(name, FIGURES)}")
    if {"-h", "--help"} & set(rest):
        print(inspect.getmodule(FIGURES[name]).__doc__)
        return 0
    folders, out, formats, trust, options = _parse(name, rest)
    parallel.check_devices()
    with references.trusting(trust), cloud.read(folders) as local, cloud.staged(out) as target:
        for folder in local:
            if not folder.is_dir():
                problem = "is not a folder" if folder.exists() else "does not exist"
                raise BadInput(f"{folder} {problem}")
        with defaults.restored():
            drawn = FIGURES[name](*local, **options)
        write(drawn, target, formats)
    return 0


def _parse(name, arguments):
    """The folders of runs, the output folder, the formats, --trust, the options of the figures."""
    draw = FIGURES[name]
    parser = make_parser()
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--format", default=FORMATS[0])
    parser.add_argument("--trust", action="store_true")
    for option, default in options_of(draw).items():
        kind = str if isinstance(default, str) else int
        parser.add_argument(f"--{option}", type=kind, default=default)
    args = vars(parse(parser, arguments))
    folders, out = args.pop("folders"), args.pop("out")
    formats = list(dict.fromkeys(args.pop("format").split(",")))
    if not folders:
        raise BadInput(f"no folder is given; use `fedjax-lab figures {name} FOLDER`")
    parameters = inspect.signature(draw).parameters.values()
    if len(folders) > 1 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise BadInput(f"`figures {name}` accepts only one folder of a run, got {len(folders)}")
    for wanted in formats:
        if wanted not in FORMATS:
            raise BadInput(f"--format: no format {quoted(wanted)}; {nearest(wanted, FORMATS)}")
    for folder in folders:
        cloud.check("FOLDER", folder)
    cloud.check("--out", out)
    return folders, out or folders[0] / "figures", formats, args.pop("trust"), args


def options_of(draw: Callable[..., Drawn]) -> dict[str, str | int | None]:
    """The options of figures with their defaults; None is the default of an optional number."""
    parameters = inspect.signature(draw).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def write(drawn: Drawn, out: Path, formats: Sequence[str]) -> None:
    """Prints the text, writes the pictures and the numbers, and prints the paths of the files."""
    if drawn.text:
        print("\n".join(map(printable, drawn.text.splitlines())))
    metric_rows.make_folder(out)
    if drawn.numbers is not None:
        metric_rows.write_json(out / "numbers.json", drawn.numbers)
        print(cloud.address(out / "numbers.json"))
    for name, figure in drawn.pictures.items():
        for ending in formats:
            print(cloud.address(plots.save(figure, out / f"{name}.{ending}")))


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
