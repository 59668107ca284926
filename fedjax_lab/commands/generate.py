"""The command that prints what the language model of a run answers.

python -m fedjax_lab.generate DIR --prompt=TEXT [--tokens=64] [--temperature=0]
                              [--raw] [--untrained] [--client=N] [--draw=N] [--trust]

DIR is the folder of a run with config.task.name=tokens, finished or unfinished.

--prompt       what the model answers. It is the first turn of a conversation in the template of the
               run's data; if these have no tokenizer, the beginning of a text
--tokens       the largest number of tokens of the answer, which ends at a special token
--temperature  of the softmax from which tokens are drawn; 0: the most likely token
--raw          the prompt is the beginning of a text, whatever the data
--untrained    also prints the answer of the model before the first round
--client       the number of a client, whose model answers; without it the global model
--draw         the seed of the random numbers; default: 0
--trust        executes code that the folder of the run names

Exit codes: 0 success; 1 a failure of the machine (disk, memory); 2 invalid usage, config or data,
reported in one line; 130 interrupted.
"""

if __name__ == "__main__":  # before the imports, during which an interrupt may arrive
    from fedjax_lab.commands import command

    command.begin()

import sys

from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import make_parser
from fedjax_lab.errors import BadInput, parse
from fedjax_lab.running import loading


def main(argv: list[str]) -> int:
    """Runs the command with these arguments, without its name; returns the exit code."""
    return command.call(_main, argv, help_text=__doc__)


def _main(argv):
    args = _parse(argv)
    run = loading.load(args.folder, trust=args.trust)
    options = {key: getattr(args, key) for key in OPTIONS}
    if args.untrained:
        print(f"before training: {run.generate(args.prompt, untrained=True, **options)}")
        print(f"after {run.rounds} rounds: ", end="")
    print(run.generate(args.prompt, **options))
    return 0


def _parse(argv):
    """The arguments. Raises BadInput if they are invalid."""
    parser = make_parser("--prompt")
    parser.add_argument("folder", nargs="?")
    for flag, default in (("--tokens", 64), ("--temperature", 0.0), ("--draw", 0)):
        parser.add_argument(flag, type=type(default), default=default)
    parser.add_argument("--client", type=int)
    for flag in ("--raw", "--untrained", "--trust"):
        parser.add_argument(flag, action="store_true")
    args = parse(parser, argv)
    if args.folder is None or args.prompt is None:
        raise BadInput('a folder and a prompt are needed: fedjax-lab generate DIR --prompt="..."')
    return args


OPTIONS = "tokens", "temperature", "raw", "client", "draw"

if __name__ == "__main__":
    command.run(main, sys.argv[1:], prints_result=True)
