"""Asks jaxlib which flags of XLA it knows; it ends a process that sets another one."""

import os
import re
import subprocess
import sys

PARSE = "from jaxlib import xla_client; xla_client.CompileOptions()"
UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")


def known(flags):
    """Returns those of the flags, such as "--xla_cpu_max_isa=AVX2", that jaxlib accepts."""
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags)}
    child = subprocess.run(
        [sys.executable, "-c", PARSE], env=environment, capture_output=True, text=True
    )
    if not child.returncode:
        return list(flags)
    unknown = UNKNOWN.search(child.stderr)
    return [flag for flag in flags if unknown and flag not in unknown[1].split()]
