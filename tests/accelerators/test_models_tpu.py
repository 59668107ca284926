"""Every model compiles for a TPU v5e, for training and for evaluation, within a memory limit.

The tests need libtpu (the extra aot-tpu), but no device.
"""

import absent
import pytest
import targets

PADDED = 2.5  # a TPU lays out narrow layers, such as those of hfedf_cnn, in tiles of 128 lanes
TARGET = "v5e:2x2"

pytestmark = [
    pytest.mark.compilers,
    pytest.mark.skipif(not targets.installed(TARGET), reason="the compiler is not installed"),
]


@pytest.mark.parametrize("name", absent.models())
def test_every_model_compiles(tmp_path, as_users_compile, name):
    absent.check_compiles(tmp_path, name, targets.topology(TARGET, 1), PADDED)
