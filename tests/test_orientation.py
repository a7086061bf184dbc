"""--observation oriented: the torso's axes are seen by policy and critic, and by no representation. What is learnt from
episodes that are turned about the vertical (--turned_share) needs them."""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from trainer_helpers import TINY

import envs
from envs import facing
from envs.body import BodyState
from genda_mjx import agents
from genda_mjx.agents import Batch, Spec
from genda_mjx.config import Config, UserError, validate

SEEN, ACTION = 5, 2
SPEC = Spec(jax.ShapeDtypeStruct((SEEN + facing.SIZE,), jnp.float32), ACTION, withheld=facing.SIZE)


def test_axes_are_mujocos():
    quaternion = np.random.default_rng(0).standard_normal(4)
    quaternion /= np.linalg.norm(quaternion)
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    found = facing.axes(jnp.asarray(quaternion)[:, None])[:, 0]
    np.testing.assert_allclose(found, matrix.reshape(3, 3)[:, :2].T.ravel(), atol=1e-6)


@pytest.mark.parametrize("body", ["quadruped", "fish"])
def test_a_body_observes_them_last_and_as_they_are(body):
    plain, turned = (envs.make(body, orientation=value, fixed_start=3, bank_size=4) for value in (False, True))
    assert turned.observation_size == plain.observation_size + facing.SIZE
    key = jax.random.key(0)
    before, after = plain.reset(key), turned.reset(key)
    np.testing.assert_array_equal(after.obs[: -facing.SIZE], before.obs)
    axes = facing.axes(after.pipeline_state.physics.qpos[3:7, None])[:, 0]
    np.testing.assert_allclose(after.obs[-facing.SIZE :], axes, atol=1e-6)


@pytest.mark.parametrize("algo", ["genda", "metra", "csf"])
def test_phi_does_not_see_them_and_the_policy_does(algo):
    agent = agents.make(TINY.replace(algo=algo), SPEC)
    state = agent.init(jax.random.key(0))
    s = jax.random.normal(jax.random.key(1), (4, SEEN + facing.SIZE))
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


def turn_world(body: BodyState, angle: float) -> BodyState:
    """The same moment of a body, turned about the vertical through the origin in MuJoCo's own coordinates."""
    about = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])

    def vector(x):
        found = np.zeros(3)
        mujoco.mju_rotVecQuat(found, np.asarray(x[:3], np.float64), about)
        return jnp.asarray(x).at[:3].set(found)

    physics = body.physics
    quaternion = np.zeros(4)
    mujoco.mju_mulQuat(quaternion, about, np.asarray(physics.qpos[3:7], np.float64))
    turned = dataclasses.replace(
        physics,
        qpos=vector(physics.qpos).at[3:7].set(quaternion),
        qvel=vector(physics.qvel),
        warmstart=vector(physics.warmstart),
    )
    return dataclasses.replace(body, physics=turned, drawn=vector(body.drawn) if body.drawn.size else body.drawn)


@pytest.mark.parametrize("name", ["fish", "quadruped", "humanoid", "dog"])
def test_a_turned_observation_is_that_of_a_turned_body(name):
    env = envs.make(name, orientation=True, bank_size=4)
    state = env.reset_at(jax.random.key(0), jnp.array([1.0, 2.0]))
    body = state.pipeline_state
    velocity = jax.random.normal(jax.random.key(1), body.physics.qvel.shape)
    body = dataclasses.replace(body, physics=dataclasses.replace(body.physics, qvel=velocity))
    before, after = (env._normalized(env._observe_raw(moment)) for moment in (body, turn_world(body, 0.7)))
    assert np.abs(after - before).max() > 0.1
    found = env.turned(jnp.stack([before, before]), jnp.array([0.7, 0.0]))
    np.testing.assert_allclose(found, jnp.stack([after, before]), atol=2e-5)


def test_a_turned_fish_swims_the_turned_way():
    env = envs.make("fish", orientation=True, bank_size=4)
    step, state = jax.jit(env.step), env.reset(jax.random.key(0))
    body = turn_world(state.pipeline_state, 2.0)
    other = state.replace(pipeline_state=body, obs=env._normalized(env._observe_raw(body)))
    for key in jax.random.split(jax.random.key(1), 20):
        action = jax.random.uniform(key, (env.action_size,), minval=-1)
        state, other = step(state, action), step(other, action)
    np.testing.assert_allclose(other.obs, env.turned(state.obs[None], jnp.array([2.0]))[0], atol=1e-4)


def batch_of(key: jax.Array, rows: int) -> Batch:
    keys = jax.random.split(key, 7)
    s, s_next, s_c, s_0, s_T = (jax.random.normal(k, (rows, *SPEC.observation.shape)) for k in keys[:5])
    a, z = jax.random.normal(keys[5], (rows, ACTION)), jax.random.normal(keys[6], (rows, 2))
    return Batch(s, a, s_next, s_c, s_0, s_T, z / jnp.linalg.norm(z, axis=-1, keepdims=True))


def test_turned_rows_are_learnt_like_episodes_that_went_there():
    """With all rows turned, an update is that of a turned batch in which no rollout skill is kept; only the gate, which
    decides about rows that are not turned, learns nothing from it."""

    def turned(observations, angles):
        return observations * jnp.where(angles[:, None] == 0, 1.0, -1.0)

    share = agents.make(TINY.replace(turned_share=1.0, keep_threshold=1.0), SPEC._replace(turned=turned))
    plain = agents.make(TINY.replace(keep_threshold=0.0), SPEC)
    state, batch = plain.init(jax.random.key(0)), batch_of(jax.random.key(1), 8)
    opposite = jax.tree.map(jnp.negative, (batch.s, batch.s_next, batch.s_c, batch.s_0, batch.s_T))
    there = batch.replace(**dict(zip(("s", "s_next", "s_c", "s_0", "s_T"), opposite, strict=True)))
    found, metrics = share.update(state, batch, jax.random.key(2))
    expected, _ = plain.update(state, there, jax.random.key(2))
    assert metrics["kept"] == 0
    gate = found.params.pop("gate")
    jax.tree.map(np.testing.assert_array_equal, gate, state.params["gate"])
    assert (jax.tree.leaves(gate)[0] != jax.tree.leaves(expected.params.pop("gate"))[0]).any()
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    half = agents.make(TINY.replace(turned_share=0.5, keep_threshold=1.0), SPEC._replace(turned=turned))
    _, metrics = half.update(state, batch_of(jax.random.key(1), 400), jax.random.key(2))
    assert 0.4 < metrics["kept"] < 0.6


def test_turning_begins_when_it_is_told_to():
    def turned(observations, angles):
        return observations * jnp.where(angles[:, None] == 0, 1.0, -1.0)

    own = {"keep_threshold": 1.0}  # as rolled, a row keeps its skill
    later = agents.make(TINY.replace(turned_share=1.0, turned_after=1, **own), SPEC._replace(turned=turned))
    state, batch = later.init(jax.random.key(0)), batch_of(jax.random.key(1), 8)
    state, metrics = later.update(state, batch, jax.random.key(2))
    assert metrics["kept"] == 1
    _, metrics = later.update(state, batch, jax.random.key(2))
    assert metrics["kept"] == 0


def test_what_cannot_be_turned_says_so():
    agent = agents.make(TINY.replace(turned_share=0.5), SPEC)  # as a controller over frozen skills does
    state = agent.init(jax.random.key(0))
    with pytest.raises(UserError, match="--observation oriented"):
        agent.update(state, batch_of(jax.random.key(1), 8), jax.random.key(2))
    for labels in ({"no_relabel": True}, {"relabel": "roll"}, {"relabel": "random"}):
        with pytest.raises(UserError, match="do not turn"):
            validate(Config().replace(turned_share=0.5, **labels))
    assert envs.make("point", bank_size=4).turned is None
    assert envs.make("fish", bank_size=4).turned is None
