"""Particles spread over devices: the same as on one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


def test_particles_on_four_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    env = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    # the last jaxlib for Python 3.11
    warned = ["-W", "error", "-W", "ignore:jaxlib 0.10.2"]
    command = [sys.executable, *warned, str(Path(__file__).with_name("sharded_smc.py"))]
    found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.strip() == "same"
