"""Lists the packages: `energon_dali` as it is, and `kernels` as `energon_dali.kernels`."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["energon_dali", "energon_dali.*"]),
        *(f"energon_dali.{name}" for name in find_packages(include=["kernels", "kernels.*"])),
    ]
)
