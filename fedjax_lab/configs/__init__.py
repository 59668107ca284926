"""The configs that come with the package: `from fedjax_lab.configs import quickstart`.

Their files are in the repository's folder configs/, which a wheel installs instead of this folder
(setup.cfg, `package_dir`). In a checkout or an editable install, this file adds that folder to the
package's path.
"""

from pathlib import Path

__path__.append(str(Path(__file__).parents[2] / "configs"))
