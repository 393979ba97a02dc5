"""The checks of `energon-dali doctor`: what a machine has and lacks for this package."""

from __future__ import annotations

from energon_dali.diagnosis.diagnosis import Diagnosis, WantedDevice, diagnose
from energon_dali.diagnosis.host import Check, Finding, Host

__all__ = ["Check", "Diagnosis", "Finding", "Host", "WantedDevice", "diagnose"]
