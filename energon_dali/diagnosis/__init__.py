"""What a machine has and lacks for this package: the checks behind `energon-dali doctor`."""

from __future__ import annotations

from energon_dali.diagnosis.check import Check
from energon_dali.diagnosis.diagnosis import Diagnosis, WantedDevice, diagnose
from energon_dali.diagnosis.host import Finding, Host, ThisHost

__all__ = ["Check", "Diagnosis", "Finding", "Host", "ThisHost", "WantedDevice", "diagnose"]
