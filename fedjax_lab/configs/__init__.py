"""The configs that come with the package: `from fedjax_lab.configs import quickstart`.

Their files are in the repository's folder configs/, which a wheel installs in the place of this one
(setup.cfg, `package_dir`). In a checkout and in an editable install this file leads to them.
"""

from pathlib import Path

__path__.append(str(Path(__file__).parents[2] / "configs"))
