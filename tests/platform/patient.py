"""A pytest plugin (``-p tests.platform.patient``): under emulation, making examples is slow and no fault."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
