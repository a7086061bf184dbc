"""experiments.place: how much of an action hangs on the place, of policies whose answer is known."""

import jax.numpy as jnp
import numpy as np
import pytest
from goal_helpers import RUN, perfect_skills
from trainer_helpers import Walk

from experiments import place
from genda_mjx.runs.stored import Skills

OPTIONS = place.Options(run=None, episodes=64)


@pytest.mark.parametrize("weight", [0.0, 0.05])
def test_a_policy_that_looks_at_its_place_is_found_out(weight):
    """Actions are 0.2 z and so much of the place: they change by weight * distance, and by 0.2 |z' - z| with the skill,
    which is 4 / pi on average for directions in the plane."""
    agent = perfect_skills()._replace(act=lambda state, obs, z, key: 0.2 * z + weight * obs[:, :2])
    skills = Skills(RUN, 77, agent, agent.init(None))
    other, elsewhere = place.changes(Walk(), skills, OPTIONS, (3.0, 10.0))
    np.testing.assert_allclose(elsewhere, [3 * weight, 10 * weight], atol=1e-5)
    assert other == pytest.approx(0.2 * 4 / jnp.pi, rel=0.1)
    said = place.describe((3.0, 10.0), other, elsewhere).splitlines()
    assert said[0] == "|  | 3 m away | 10 m away | another skill |" and said[3].endswith("| 1.00 |")
    assert said[2].startswith(f"| action changes by | {3 * weight:.3f} |")
