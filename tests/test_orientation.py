"""--observation oriented: the torso's axes are seen by policy and critic, and by no representation."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from trainer_helpers import TINY

import envs
from envs.body import ORIENTATION_SIZE, torso_axes
from genda_mjx import agents
from genda_mjx.agents import Spec
from genda_mjx.config import Config, UserError, validate

SEEN, ACTION = 5, 2
SPEC = Spec(jax.ShapeDtypeStruct((SEEN + ORIENTATION_SIZE,), jnp.float32), ACTION, withheld=ORIENTATION_SIZE)


def test_axes_are_mujocos():
    quaternion = np.random.default_rng(0).standard_normal(4)
    quaternion /= np.linalg.norm(quaternion)
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    found = torso_axes(jnp.asarray(quaternion)[:, None])[:, 0]
    np.testing.assert_allclose(found, matrix.reshape(3, 3)[:, :2].T.ravel(), atol=1e-6)


@pytest.mark.parametrize("body", ["quadruped", "fish"])
def test_a_body_observes_them_last_and_as_they_are(body):
    plain, turned = (envs.make(body, orientation=value, fixed_start=3, bank_size=4) for value in (False, True))
    assert turned.observation_size == plain.observation_size + ORIENTATION_SIZE
    key = jax.random.key(0)
    before, after = plain.reset(key), turned.reset(key)
    np.testing.assert_array_equal(after.obs[:-ORIENTATION_SIZE], before.obs)
    axes = torso_axes(after.pipeline_state.physics.qpos[3:7, None])[:, 0]
    np.testing.assert_allclose(after.obs[-ORIENTATION_SIZE:], axes, atol=1e-6)


@pytest.mark.parametrize("algo", ["genda", "metra", "csf"])
def test_phi_does_not_see_them_and_the_policy_does(algo):
    agent = agents.make(TINY.replace(algo=algo), SPEC)
    state = agent.init(jax.random.key(0))
    s = jax.random.normal(jax.random.key(1), (4, SEEN + ORIENTATION_SIZE))
    other = s.at[:, SEEN:].add(1.0)
    z = agent.skills.sample(jax.random.key(2), 4)
    np.testing.assert_array_equal(agent.represent(state, s), agent.represent(state, other))
    assert not np.allclose(agent.represent(state, s), agent.represent(state, s.at[:, SEEN - 1].add(1.0)))
    assert not np.allclose(agent.act(state, s, z, None), agent.act(state, other, z, None))


def test_what_has_no_torso_or_sees_pictures_refuses():
    with pytest.raises(ValueError, match="point has no torso"):
        envs.make("point", orientation=True)
    with pytest.raises(UserError, match="--observation oriented"):
        validate(Config().replace(pixels=True, observation="oriented"))
