"""GenDa on MJX: unsupervised skill discovery as one XLA program. Start with `genda_mjx/program.py`."""

import envs as _  # noqa: F401  before brax, whose import of mjx would print that its optional Warp backend is missing


def explore(run, **options):
    """A page in which the skills of a run folder run live; it shows itself in a notebook (`runs.explore.explore`)."""
    from genda_mjx.runs.explore import explore

    return explore(run, **options)
