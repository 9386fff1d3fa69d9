"""What is on trial, by the environment variable ``NEM_TRIAL``: ``pad``, ``pdl``, or both with a comma between."""

import os

_ON = {name.strip() for name in os.environ.get("NEM_TRIAL", "").split(",")} - {""}
if _ON - {"pad", "pdl"}:
    raise ValueError(f"NEM_TRIAL: unknown {sorted(_ON - {'pad', 'pdl'})}")
PAD = "pad" in _ON  # theta's rows are filled up with zeros
PDL = "pdl" in _ON  # kernels start before the one in front of them has ended, and wait for it themselves
