"""GenDa on MJX: unsupervised skill discovery as one XLA program. Start with `genda_mjx/program.py`."""
