"""Every model compiles for an H100, for training and for evaluation, within a memory limit.

The tests need the CUDA plugin (the extra aot-cuda), but no device.
"""

import absent
import pytest
import targets

PADDED = 1.25
TARGET = "h100"

pytestmark = [
    pytest.mark.compilers,
    pytest.mark.skipif(not targets.installed(TARGET), reason="the compiler is not installed"),
]


@pytest.mark.parametrize("name", absent.models())
def test_every_model_compiles(tmp_path, as_users_compile, name):
    absent.check_compiles(tmp_path, name, targets.topology(TARGET, 1), PADDED)
