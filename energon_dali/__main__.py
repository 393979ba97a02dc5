"""`python -m energon_dali` is the `energon-dali` command, also where the package is not installed."""

from __future__ import annotations

from energon_dali.cli.main import main

if __name__ == "__main__":
    main(prog_name="energon-dali")
