"""Every transform of FedAvg compiles for an H100.

The tests need the CUDA plugin (the extra aot-cuda), but no device.
"""

import absent
import pytest
import targets

TARGET = "h100"

pytestmark = [
    pytest.mark.compilers,
    pytest.mark.skipif(not targets.installed(TARGET), reason="the compiler is not installed"),
]


@pytest.mark.parametrize(("section", "name", "settings"), absent.transforms())
def test_every_transform_compiles(tmp_path, as_users_compile, section, name, settings):
    if section == "privacy":
        pytest.importorskip("dp_accounting")
    devices, wrapped = targets.topology(TARGET, 1), {section: {"name": name, **settings}}
    (programs,) = absent.fedavg_with(tmp_path, devices, **wrapped).lower().values()
    assert programs.play.compile().as_text()
