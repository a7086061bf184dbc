"""experiments.reach: skills that point to a goal, without a controller."""

import dataclasses

import numpy as np
import pytest
from goal_helpers import RUN, ToyTask, perfect_skills
from trainer_helpers import Walk

from envs.tasks import layout
from experiments import reach
from genda_mjx.runs.stored import Skills

OPTIONS = reach.Options(run=None, task="toy", episodes=64, skill_steps=5)


def test_a_way_goes_round_the_wall():
    maze = layout.parse("S#G\n...\n", 2.0, "here")
    way, cell, walked = maze.way(), maze.start, [maze.start]
    while cell != maze.goal and len(walked) < 9:
        cell = tuple(way[cell])
        walked.append(cell)
    assert walked == [(0, 1), (0, 0), (1, 0), (2, 0), (2, 1)]
    aim = reach.aims(maze)(np.array([[0.3, 1.6], [2.2, -0.4]]), None)
    np.testing.assert_array_equal(aim, [[0, 0], [4, 0]])  # from cells (0, 1) and (1, 0), m


@pytest.mark.parametrize("turned", [False, True])
def test_perfect_skills_reach_every_goal_but_not_when_phi_is_misread(turned):
    """phi is the position times 3; read with the opposite sign, skills lead away."""
    positions = np.random.default_rng(0).normal(size=(32, 11, 2))
    to_phi = reach.displacement_in_phi(positions, 3 * positions)
    np.testing.assert_allclose(to_phi, 3 * np.eye(2), atol=1e-9)
    agent = perfect_skills()
    skills = Skills(RUN, 77, agent, agent.init(None))
    far = dataclasses.replace(ToyTask(Walk()), half=2.5)
    played = reach.reach(far, skills, -to_phi if turned else to_phi, OPTIONS)
    assert played.success.mean() < 0.2 if turned else played.success.all()
    said = reach.describe(played, OPTIONS.skill_steps)
    assert said.startswith(f"success {played.success.mean():.3f} in 64 episodes") and "| 315-360 |" in said
