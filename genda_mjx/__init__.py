"""GenDa on MJX: unsupervised skill discovery as one XLA program. Start with `genda_mjx/program.py`."""

import envs as _  # noqa: F401  before brax, whose import of mjx would print that its optional Warp backend is missing
