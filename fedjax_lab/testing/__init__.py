"""Checks for your own methods, models, partitions and data sources.

    from fedjax_lab.testing import check_method

    def test_my_method():
        check_method(my_method, mu=0.1)

Each check runs the part on a small toy problem and raises `CheckFailed`, with an explanation, if
the simulator cannot use the part. The checks of methods and models also train for a moment.
"""

from fedjax_lab.testing.failure import CheckFailed
from fedjax_lab.testing.methods import check_method
from fedjax_lab.testing.models import check_model
from fedjax_lab.testing.partitions import check_partition
from fedjax_lab.testing.sources import check_source

__all__ = ["CheckFailed", "check_method", "check_model", "check_partition", "check_source"]
