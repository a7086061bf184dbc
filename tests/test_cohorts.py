"""Staggered episodes: what lands in the ring is whole, fresh and counted, as if every cohort were alone."""

import jax
import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

COHORTS, SIZE, LENGTH = 5, 2, 10  # T/G = 2 steps an iteration
CONFIG = tiny(
    cohorts=COHORTS,
    num_envs=COHORTS * SIZE,
    buffer_size=20 * SIZE * LENGTH,
    utd=0.1,
    warmup_episodes=4,
    iterations_per_dispatch=20,
)


@pytest.fixture(scope="module")
def staggered():
    """(schedule, state and metrics after 20 iterations in one dispatch, program)."""
    built = build(CONFIG, Walk(LENGTH, fragile=True))
    plan, program = built.schedule, built.program
    state, metrics = program.run(program.init(jax.random.key(0)), np.int32(20))
    return plan, jax.device_get(state.replace(key=None)), jax.device_get(metrics), program


def test_schedule_of_cohorts(staggered):
    plan, state, metrics, _ = staggered
    assert (plan.steps_per_iteration, plan.episodes_at_once, plan.updates_per_iteration) == (20, 2, 2)
    assert plan.warmup_iterations == COHORTS - 1  # the steps of 4 episodes would be 2, but nothing ends in the first 4
    whole = 20 - (COHORTS - 1)
    assert int(state.ring.inserted) == whole * SIZE and int(state.ring.slot) == whole
    assert list(metrics["updates"]) == [0] * 4 + [2 * (i + 1) for i in range(16)]
    assert list(metrics["valid_episodes"][:4]) == [0] * 4


def test_every_episode_is_whole_and_of_one_skill(staggered):
    """The toy env observes its time and moves by its action, so a gap, a mix-up of cohorts or a late row shows."""
    _, state, _, _ = staggered
    filled = slice(0, int(state.ring.slot))
    episodes = jax.tree.map(lambda leaf: leaf[filled].reshape(-1, *leaf.shape[2:]), state.ring.episodes)
    np.testing.assert_array_equal(episodes.observations[..., 2], np.tile(np.arange(LENGTH + 1.0), (32, 1)))
    positions = episodes.observations[..., :2]
    np.testing.assert_allclose(np.diff(positions, axis=1), episodes.actions, atol=1e-5)
    starts = positions[:, 0]
    assert len(np.unique(starts, axis=0)) == 32 and len(np.unique(episodes.skill, axis=0)) == 32
    assert np.abs(starts).max() <= 0.1  # as the toy env resets
    failed = starts[:, 0] > 0
    assert 0 < failed.sum() < 32 and int(state.ring.rejected.sum()) == failed.sum()
    np.testing.assert_array_equal(state.ring.valid[filled].ravel(), ~failed)


def test_episodes_under_way_are_part_of_the_state(staggered):
    """20 iterations in one dispatch equal 7 and 13, in the middle of episodes."""
    _, together, _, program = staggered
    state = program.init(jax.random.key(0))
    for count in (7, 13):
        state, _ = program.run(state, np.int32(count))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.replace(key=None)), together)
    assert program.run._cache_size() == 1


@pytest.mark.parametrize(("cohorts", "held"), [(1, 4), (COHORTS, 2)])
def test_the_noise_of_actions_is_held_for_as_long_as_asked(cohorts, held):
    """Actions of the warm-up are noise alone: [4, 4, 2] steps with whole episodes, [2] * 5 with cohorts."""
    config = CONFIG.replace(cohorts=cohorts, num_envs=SIZE * cohorts, warmup_episodes=99, noise_steps=held)
    built = build(config, Walk(LENGTH))
    state, _ = built.program.run(built.program.init(jax.random.key(0)), np.int32(cohorts))
    actions = np.asarray(state.ring.episodes.actions)[0]  # [M, T, A]
    blocks = np.arange(LENGTH) // held
    changed = (np.diff(actions, axis=1) != 0).all(-1)
    np.testing.assert_array_equal(changed, np.tile(np.diff(blocks) != 0, (SIZE, 1)))
    assert (actions[0] != actions[1]).all()  # every copy has its own
