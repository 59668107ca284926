"""The command that attacks a run: what could be learned from its uploads and its models.

python -m fedjax_lab.audit RUN --attack=NAME [--attack.KEY=VALUE ...] [--rounds=N] [--seed=0]
                           [--trust]
python -m fedjax_lab.audit --attack=NAME --help

RUN is the folder of a finished or unfinished run, which may also be gs://BUCKET/FOLDER. The attack
starts from a checkpoint; the data of the run are read again.

--attack      the name of an attack; `--attack=NAME --help` explains it and its settings
--attack.KEY  a setting of the attack
--rounds      the number of rounds after which the checkpoint was saved; default: the newest one;
              0: the model before the first round, of which there is no checkpoint
--seed        the seed; default: the run's first seed
--trust       executes code that the folder of the run names, such as its user-defined method

The results are printed and added to RUN/audit.jsonl, which `fedjax-lab report` shows.
`fedjax-lab figures audit RUN` draws them.

Exit codes: 0 success; 1 the machine failed (disk, memory); 2 the input is invalid (reported in one
line); 130 interrupted.
"""

if __name__ == "__main__":  # before the imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import inspect
import re
import sys
import textwrap

from fedjax_lab.analysis import audit_tables, formats
from fedjax_lab.auditing import audits
from fedjax_lab.commands import command, descriptions
from fedjax_lab.commands.arguments import make_parser
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, nearest, parse
from fedjax_lab.experiment import registry
from fedjax_lab.running import compilation_cache
from fedjax_lab.running.storage import cloud


def main(argv: list[str]) -> int:
    """Runs the command with these arguments, without its name; returns the exit code."""
    return command.call(_main, argv)


def _main(argv):
    settings, others = _settings(argv)
    wants_help = bool({"-h", "--help"} & set(others))
    others = [each for each in others if each not in ("-h", "--help")]
    if wants_help and not any(each.startswith("--attack=") for each in others):
        print(f"{__doc__}\nattacks: {', '.join(audits.names())}")
        return 0
    parser = make_parser("--attack")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trust", action="store_true")
    args = parse(parser, others)
    if args.attack is None:
        raise BadInput(f"no attack is given: --attack=NAME; {nearest('', audits.names())}")
    function = audits.look_up(args.attack)
    if wants_help:
        print(_described(args.attack, function))
        return 0
    if args.folder is None:
        raise BadInput("no folder of a run is given; for example `fedjax-lab audit runs/my_run`")
    cloud.check("RUN", args.folder)
    parallel.check_devices()
    compilation_cache.enable()
    result = audits.audit(args.folder, args.attack, args.rounds, args.seed, args.trust, settings)
    print("\n".join([*result.remarks, "", formats.terminal(audit_tables.table(result.rows))]))
    return 0


def _settings(argv):
    """The settings of --attack.KEY=VALUE and --attack.KEY VALUE by key, and other arguments."""
    settings, others, argv = {}, [], list(argv)
    while argv:
        argument, *argv = argv
        match = re.fullmatch(r"--attack\.([^=]*)(?:=(.*))?", argument, re.DOTALL)
        if match is None:
            others.append(argument)
            continue
        if match[2] is None and (not argv or re.match(r"--?[A-Za-z]", argv[0])):
            raise BadInput(f"{argument} needs a value; use {argument}=VALUE")
        settings[match[1]] = argv.pop(0) if match[2] is None else match[2]
    return settings, others


def _described(name, function):
    """The description of an attack, and the defaults and meanings of its settings."""
    values = registry.keyword_defaults(function)
    limits = registry.limits_of(function)
    words = descriptions.setting_meanings(function, list(values))
    lines = [inspect.getmodule(function).__doc__]
    for key, value in values.items():
        lines.append(f"--attack.{key}={value}")
        lines += textwrap.wrap(
            descriptions.with_limit(words[key], limits.get(key)),
            descriptions.WIDTH,
            initial_indent=" " * descriptions.INDENT,
            subsequent_indent=" " * descriptions.INDENT,
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
