"""The command `python -m fedjax_lab.data`, see `fedjax_lab.commands.data`."""

if __name__ == "__main__":  # before the imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import sys

from fedjax_lab.commands import command, data

if __name__ == "__main__":
    command.run(data.main, sys.argv)
