"""Coverage and consistency against counts by hand."""

import jax
import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

from genda_mjx import evaluate


def test_coverage_counts_distinct_bins_before_the_last_position():
    path = np.array([[[0.1, 0.1], [0.9, 0.2], [1.1, 0.2], [-0.1, 0.0], [50.0, 50.0]]])
    assert evaluate.coverage(path, 1.0) == 3  # (0,0) twice, (1,0), (-1,0); the last one is not counted
    assert evaluate.coverage(np.concatenate([path, path]), 1.0) == 3
    far = np.array([[[1000.0, 0.0], [2000.0, 0.0], [0.0, 0.0]]])
    assert evaluate.coverage(far, 1.0) == 2  # not clipped to a grid
    assert evaluate.coverage(np.array([[[0.001, 0.0, 0.011], [0.009, 0.0, 0.021], [0, 0, 0]]]), 0.01) == 2  # voxels


def test_consistency_is_a_mean_cosine():
    start = np.zeros((2, 1, 2))
    ends = np.array([[[1.0, 0.0]], [[0.0, 2.0]]])
    straight = np.concatenate([start, ends], axis=1)
    assert evaluate.consistency(straight, straight + 7) == pytest.approx(1)
    turned = np.concatenate([start, np.array([[[0.0, 3.0]], [[0.0, -1.0]]])], axis=1)
    assert evaluate.consistency(straight, turned) == pytest.approx(-0.5)


def test_episodes_are_deterministic_shifted_and_random_on_demand():
    env = Walk()
    _, agent, _ = build(tiny(), env)
    abstract = jax.eval_shape(agent.init, jax.random.key(0))
    run = evaluate.compile(env, agent, 6, abstract)
    state, key = agent.init(jax.random.key(0)), evaluate.evaluation_key(0, 40)
    zero = np.zeros(2, np.float32)
    first, again = (run(state, key, zero, np.False_) for _ in range(2))
    np.testing.assert_array_equal(first.positions, again.positions)
    assert first.positions.shape == (6, 11, 2) and first.latents.shape == (6, 11, 2)
    shifted = run(state, key, np.array([5, -3], np.float32), np.False_)
    np.testing.assert_array_equal(shifted.skills, first.skills)
    np.testing.assert_allclose(shifted.positions[:, 0] - first.positions[:, 0], [[5, -3]] * 6, atol=1e-5)
    random = run(state, key, zero, np.True_)
    assert not np.allclose(random.positions[:, 1:], first.positions[:, 1:])
    later = run(state, evaluate.evaluation_key(0, 80), zero, np.False_)
    assert not np.array_equal(later.skills, first.skills)
