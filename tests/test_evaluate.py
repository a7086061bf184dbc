"""Coverage and consistency against counts by hand."""

import jax
import numpy as np
import pytest
from conftest import raw_env
from trainer_helpers import Walk, build, tiny

from envs import measures
from envs.dog import Dog
from envs.humanoid import Humanoid
from genda_mjx import evaluate
from genda_mjx.agents.skills import SkillSpace


def test_coverage_counts_distinct_bins_before_the_last_position():
    path = np.array([[[0.1, 0.1], [0.9, 0.2], [1.1, 0.2], [-0.1, 0.0], [50.0, 50.0]]])
    assert measures.coverage(path, 1.0) == 3  # (0,0) twice, (1,0), (-1,0); the last one is not counted
    assert measures.coverage(np.concatenate([path, path]), 1.0) == 3
    far = np.array([[[1000.0, 0.0], [2000.0, 0.0], [0.0, 0.0]]])
    assert measures.coverage(far, 1.0) == 2  # not clipped to a grid
    assert measures.coverage(np.array([[[0.001, 0.0, 0.011], [0.009, 0.0, 0.021], [0, 0, 0]]]), 0.01) == 2  # voxels


def test_consistency_is_a_mean_cosine():
    start = np.zeros((2, 1, 2))
    ends = np.array([[[1.0, 0.0]], [[0.0, 2.0]]])
    straight = np.concatenate([start, ends], axis=1)
    assert measures.consistency(straight, straight + 7) == pytest.approx(1)
    turned = np.concatenate([start, np.array([[[0.0, 3.0]], [[0.0, -1.0]]])], axis=1)
    assert measures.consistency(straight, turned) == pytest.approx(-0.5)


def test_episodes_are_deterministic_shifted_and_random_on_demand():
    env = Walk()
    agent = build(tiny(), env).agent
    abstract = jax.eval_shape(agent.init, jax.random.key(0))
    run = evaluate.compile(env, agent, 6, abstract)
    state, key = agent.init(jax.random.key(0)), evaluate.evaluation_key(0, 40)
    zero = np.zeros(2, np.float32)
    first, again = (run(state, key, zero, np.False_) for _ in range(2))
    np.testing.assert_array_equal(first.traces["position"], again.traces["position"])
    assert first.traces["position"].shape == (6, 11, 2) and first.latents.shape == (6, 11, 2)
    shifted = run(state, key, np.array([5, -3], np.float32), np.False_)
    np.testing.assert_array_equal(shifted.skills, first.skills)
    np.testing.assert_allclose(
        shifted.traces["position"][:, 0] - first.traces["position"][:, 0], [[5, -3]] * 6, atol=1e-5
    )
    random = run(state, key, zero, np.True_)
    assert not np.allclose(random.traces["position"][:, 1:], first.traces["position"][:, 1:])
    later = run(state, evaluate.evaluation_key(0, 80), zero, np.False_)
    assert not np.array_equal(later.skills, first.skills)


def test_directness_and_distance_by_hand():
    square = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1], [0, 0]])  # back where it began
    line = np.array([[0.0, 0], [1, 0], [2, 0], [3, 0], [4, 0]])
    corner = np.array([[0.0, 0], [3, 0], [3, 4], [3, 4], [3, 4]])  # 7 m of way, 5 m away
    still = np.zeros((5, 2))
    assert measures.directness(np.stack([square, line])) == pytest.approx(0.5)
    assert measures.directness(np.stack([corner, still])) == pytest.approx(5 / 7 / 2)
    assert measures.mean_distance(np.stack([square, line, corner])) == pytest.approx(3)


def test_upright_is_the_torso_above_the_horizon():
    angle = np.radians([0, 89, 91, 180])  # about x, then about z: yaw does not matter
    tilted = np.stack([np.cos(angle / 2), np.sin(angle / 2), 0 * angle, 0 * angle], -1)
    turned = np.stack([np.cos(angle / 2), 0 * angle, 0 * angle, np.sin(angle / 2)], -1)
    assert measures.upright_share(tilted) == 0.5 and measures.upright_share(turned) == 1
    assert measures.upright_share(tilted, 0.9) == 0.25


@pytest.mark.parametrize("body", [Dog, Humanoid])
def test_a_trunk_that_lies_is_not_upright(body):
    angle = np.radians([0, 30, 70, 90, 110])  # about x: on its feet, leaning, and on its side, where some lie a bit up
    tilted = np.stack([np.cos(angle / 2), np.sin(angle / 2), 0 * angle, 0 * angle], -1)
    assert measures.upright_share(tilted, body.upright_cosine) == 2 / 5


@pytest.mark.parametrize("kind", ["directions", "list"])
def test_summary_names_everything_and_alignment_is_a_cosine(kind):
    """Episodes whose phi goes along their skill, across it and against it."""
    env, skills = Walk(), SkillSpace(kind, 2)
    agent = build(tiny(), env).agent._replace(skills=skills)
    z = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32)
    wanted = np.asarray(skills.target(z))
    gone = np.stack([wanted[0], wanted[1][::-1] * [1, -1], -wanted[2]])
    latents = np.stack([0 * gone, 5 * gone, 2 * gone], 1)  # half way they turn round
    positions = np.cumsum(np.ones((3, 3, 2)), 1)
    valid = np.array([True, True, False])
    found = evaluate.summary(env, agent, evaluate.Episodes({"position": positions}, latents, z, valid))
    across = wanted[1] @ gone[1] / (np.linalg.norm(wanted[1]) * np.linalg.norm(gone[1]))
    assert found["alignment"] == pytest.approx((1 + across - 1) / 3, abs=1e-6)
    assert found["late_alignment"] == pytest.approx(-found["alignment"], abs=1e-6)
    others = ["mean_distance", "directness", "alignment", "late_alignment", "failed_evaluations"]
    assert list(found) == ["coverage", *others]
    assert found["failed_evaluations"] == 1 and found["directness"] == pytest.approx(1)
    without = evaluate.summary(env, agent, evaluate.Episodes({"position": positions}, None, z, valid))
    assert "alignment" not in without


@pytest.mark.parametrize("name", ["fish", "quadruped"])
def test_a_body_records_its_coordinates_and_is_upright_if_it_stands(name):
    env = raw_env(name)
    state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4))
    trace = jax.device_get(jax.vmap(env.trace)(state))
    qpos = np.asarray(state.pipeline_state.physics.qpos)
    assert trace["qpos"].dtype == np.float16
    np.testing.assert_allclose(trace["qpos"], qpos, atol=2e-3)
    np.testing.assert_array_equal(trace["position"], qpos[:, : env.position_size])
    twice = {name: np.stack([rows, rows], 1) for name, rows in trace.items()}
    found = env.measure(twice)
    assert next(iter(found)) == env.headline == "coverage"
    assert found.get("upright_share") == (1.0 if name == "quadruped" else None)  # it starts near upright
