"""What a user of `envs` relies on: the Brax interface, resets, normaliser, containment of failures, clear errors."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from brax.envs.base import Wrapper
from conftest import COPIES, batched, raw_env

import envs
from envs import batching, normalizer, resets

FISH = functools.cache(lambda: envs.make("fish"))


def test_brax_interface(any_env):
    state = any_env.reset(jax.random.key(0))
    assert state.obs.shape == (any_env.observation_size,) and state.obs.dtype == jnp.float32
    assert state.reward == 0 and state.done == 0 and any_env.episode_length == 200 and any_env.backend == "mjx"
    assert state.info["position"].shape == (any_env.position_size,) == ((3,) if any_env.name == "fish" else (2,))
    suite_dt = {"point": 0.05, "fish": 0.08, "quadruped": 0.04, "humanoid": 0.05, "dog": 0.03}
    assert any_env.dt == pytest.approx(suite_dt[any_env.name])
    assert any_env.physics_steps * any_env.model.opt.timestep == pytest.approx(any_env.dt)


def test_copies_do_not_depend_on_each_other(monkeypatch):
    """A copy steps the same alone, in a batch, in a batch of batches, and in a batch that a CPU steps part by part."""
    env = FISH()
    keys = jax.random.split(jax.random.key(1), 6)
    actions = jax.random.uniform(keys[0], (6, env.action_size), minval=-1)
    one = lambda key, action: env.step(env.reset(key), action).obs
    together = jax.jit(jax.vmap(one))(keys, actions)
    alone = jnp.stack([jax.jit(one)(k, a) for k, a in zip(keys[:2], actions[:2], strict=True)])
    nested = jax.jit(jax.vmap(jax.vmap(one)))(keys.reshape(2, 3), actions.reshape(2, 3, -1))
    np.testing.assert_allclose(alone, together[:2], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(nested.reshape(6, -1), together, rtol=2e-4, atol=2e-5)
    monkeypatch.setattr(batching, "PART", 2)
    step_all = jax.vmap(one)
    assert "scan[" in (jaxpr := str(jax.make_jaxpr(step_all)(keys, actions))) and "length=3" in jaxpr  # parts in turn
    np.testing.assert_allclose(jax.jit(step_all)(keys, actions), together, rtol=2e-4, atol=2e-5)


def test_step_is_deterministic_and_scannable():
    env = raw_env("point")

    @jax.jit
    def run(key):
        def step(state, _):
            return env.step(state, jnp.ones(2)), state.info["position"]

        return jax.lax.scan(step, env.reset(key), None, length=env.episode_length)[1]

    path = run(jax.random.key(0))
    assert (path == run(jax.random.key(0))).all()
    assert (path[-1] > 30).all(), "point must cross tens of metres in an episode"


def test_actions_are_clipped_and_mapped_to_the_control_range():
    env = raw_env("quadruped")
    start, step = batched("quadruped")
    state = start(jax.random.split(jax.random.key(0), COPIES), jnp.zeros(()))
    full, over = (step(state, jnp.full((COPIES, 12), a)) for a in (1.0, 7.0))
    np.testing.assert_array_equal(full.obs, over.obs)
    act = np.asarray(full.pipeline_state.physics.act[0])
    reached = 1 - (1 - env.model.opt.timestep / 0.1) ** env.physics_steps  # first-order filter, 0.1 s
    np.testing.assert_allclose(act, env.model.actuator_ctrlrange[:, 1] * reached, rtol=1e-4)


# Resets.


def test_humanoid_starts_free_of_contact_in_dm_controls_law():
    env = raw_env("humanoid")
    model = env.stock_spec().compile()
    data = mujoco.MjData(model)
    for qpos in env.bank.qpos[:200]:
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        assert data.ncon == 0
    low, high = model.jnt_range[1:].T
    hinges, quat = env.bank.qpos[:, 7:], env.bank.qpos[:, 3:7]
    assert (hinges >= low - 1e-5).all() and (hinges <= high + 1e-5).all()
    assert (quat > 0).all()  # four uniform numbers: the positive orthant only
    assert (env.bank.qpos[:, :3] == [0, 0, 1.5]).all() and (env.bank.qvel == 0).all()
    assert len(np.unique(env.bank.qpos[:, 7])) > 4000


def test_quadruped_starts_one_search_step_above_contact():
    env = raw_env("quadruped")
    model = env.stock_spec().compile()
    data = mujoco.MjData(model)
    for qpos in env.bank.qpos[:200]:
        for drop, touches in ((0.0, False), (0.01, True)):
            data.qpos[:] = qpos
            data.qpos[2] -= drop
            mujoco.mj_forward(model, data)
            assert (data.ncon > 0) == touches
    height, quat = env.bank.qpos[:, 2], env.bank.qpos[:, 3:7]
    assert 0.55 < height.mean() < 0.57 and height.min() > 0.51
    tilt = np.degrees(2 * np.arccos(np.sqrt(quat[:, 0] ** 2 + quat[:, 3] ** 2)))
    assert 2.5 < tilt.mean() < 4.5


def test_dog_and_fish_start_as_in_dm_control():
    dog, fish = raw_env("dog").bank, raw_env("fish").bank
    np.testing.assert_allclose(dog.qpos[:, :3], [[0.0404, 0, 0.4152]] * len(dog.qpos), atol=1e-3)
    np.testing.assert_allclose(dog.qvel[:, [0, 1, 5]].std(0), 2.0, rtol=0.05)
    assert (np.abs(dog.act) <= 1).all() and np.abs(dog.act.mean()) < 0.02
    yaw = 2 * np.arctan2(dog.qpos[:, 6], dog.qpos[:, 3]) % (2 * np.pi)
    assert np.histogram(yaw, 8, (0, 2 * np.pi))[0].min() > len(yaw) / 8 * 0.8
    np.testing.assert_allclose(fish.qpos[:, :3], [[0, 0, 0.1]] * len(fish.qpos), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(fish.qpos[:, 3:7], axis=1), 1, atol=1e-5)
    assert np.abs(fish.qpos[:, 3:7].mean(0)).max() < 0.05 and np.abs(fish.qpos[:, 7:]).max() <= 0.2
    low, high = fish.drawn.min(0), fish.drawn.max(0)
    np.testing.assert_allclose([low, high], [[-0.4, -0.4, 0.1], [0.4, 0.4, 0.3]], atol=0.01)


@pytest.mark.parametrize("body", ["humanoid", "dog"])
def test_a_body_stands_still_one_search_step_above_the_floor(body):
    model = envs.body_class(body).stock_spec().compile()
    data, rng, rotation, tilts = mujoco.MjData(model), np.random.default_rng(0), np.zeros(9), set()
    for _ in range(16):
        mujoco.mj_resetData(model, data)
        resets.stand(model, data, rng)
        assert (data.qvel == 0).all() and (data.act == 0).all() and (data.qpos[7:] == model.qpos0[7:]).all()
        mujoco.mju_quat2Mat(rotation, data.qpos[3:7])
        assert rotation[0] > 0.95 and rotation[8] > 0.95  # faces +x, stands upright
        tilts.add(rotation[8])
        for lower, touches in ((0.0, False), (0.01, True)):
            data.qpos[2] -= lower
            mujoco.mj_forward(model, data)
            assert (model.geom_bodyid[data.contact.geom] == 0).any() == touches
    assert len(tilts) == 16


def test_standing_starts_are_in_the_bank_and_not_for_a_fish():
    env = envs.make("humanoid", standing=True, bank_size=4)
    assert (env.bank.qpos[:, 2] > 1.2).all() and (env.bank.qpos[:, 3] > 0.99).all()
    assert resets.cache_key(env, 4) != resets.cache_key(raw_env("humanoid"), 4)
    with pytest.raises(ValueError, match="fish has no feet"):
        envs.make("fish", standing=True)


def test_bank_is_seeded_and_cached(tmp_path, monkeypatch):
    env = raw_env("fish")
    monkeypatch.setattr(resets, "CACHE", tmp_path)
    first = resets.bank(env, 20)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(resets, "_draw", lambda *_: pytest.fail("drawn again although cached"))
    again = resets.bank(env, 20)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    np.testing.assert_array_equal(first.qpos, env.bank.qpos[:20])  # the same law and seed, a shorter bank


def test_starts_can_be_shifted_and_fixed():
    env, shifted = raw_env("fish"), envs.make("fish", offset=(3.0, -2.0), normalize=False)
    key = jax.random.key(3)
    a, b, c = env.reset(key), shifted.reset(key), env.reset_at(key, jnp.array([3.0, -2.0]))
    np.testing.assert_allclose(b.info["position"] - a.info["position"], [3, -2, 0], atol=1e-6)
    np.testing.assert_allclose(a.obs[3:], b.obs[3:], atol=1e-6)  # all but the position looks the same, target included
    np.testing.assert_array_equal(b.obs, c.obs)
    fixed = envs.make("point", fixed_start=5, normalize=False)
    starts = jax.vmap(fixed.reset)(jax.random.split(key, 10)).info["position"]
    np.testing.assert_array_equal(starts, np.repeat(fixed.bank.qpos[5:6], 10, axis=0))


# Normaliser.


@pytest.mark.parametrize("name", envs.NAMES)
def test_normaliser_is_stored_for_every_body(name):
    mean, std = normalizer.load(name, raw_env(name).observation_size)
    assert np.isfinite(mean).all() and (std > 0).all()
    stored = json.loads(normalizer.FILE.read_text())[name]
    assert stored["failed"] == 0 and stored["episodes"] >= 256


def test_normalised_observations_are_standardised():
    env, raw = FISH(), raw_env("fish")
    state, plain = env.reset(jax.random.key(0)), raw.reset(jax.random.key(0))
    mean, std = normalizer.load("fish", 27)
    np.testing.assert_allclose(state.obs, (np.asarray(plain.obs) - mean) / (std + 1e-8), rtol=1e-4, atol=1e-5)


# Failures.


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e6])
def test_a_failing_copy_is_flagged_frozen_and_does_not_spread(poison):
    start, step = batched("quadruped")
    clean = start(jax.random.split(jax.random.key(0), COPIES), jnp.zeros(()))
    body = clean.pipeline_state
    qvel = body.physics.qvel.at[7, 9].set(poison)
    bad = clean.replace(pipeline_state=dataclasses.replace(body, physics=dataclasses.replace(body.physics, qvel=qvel)))
    actions = jax.random.uniform(jax.random.key(1), (3, COPIES, 12), minval=-1)
    for action in actions:
        clean, bad = step(clean, action), step(bad, action)
    others = np.arange(COPIES) != 7
    assert bad.info["failed"].tolist() == [i == 7 for i in range(COPIES)] and not clean.info["failed"].any()
    np.testing.assert_array_equal(bad.obs[others], clean.obs[others])
    assert np.isfinite(bad.obs).all() and np.isfinite(bad.info["position"]).all()


# Errors.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: envs.make("cheetah"), "point, fish, quadruped, humanoid, dog"),
        (lambda: envs.make("point", speed=3), "unknown option speed"),
        (lambda: envs.make("point", offset=(1, 2, 3)), "two numbers"),
        (lambda: envs.make("point", fixed_start=-1), "bank index"),
        (lambda: envs.make("point", bank_size=0), "bank_size"),
        (lambda: raw_env("point").step(raw_env("point").reset(jax.random.key(0)), jnp.zeros(3)), r"shape \(2,\)"),
        (lambda: normalizer.load("point", 99), "python -m envs.normalizer point"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Real clients: Brax's own trainers through Brax's own wrappers.


class MoveFast(Wrapper):
    """Reward: speed."""

    def step(self, state, action):
        after = self.env.step(state, action)
        speed = jnp.linalg.norm(after.info["position"] - state.info["position"]) / self.env.unwrapped.dt
        return after.replace(reward=speed)


@pytest.mark.slow
def test_brax_sac_trains_on_fish():
    from brax.training.agents.sac import train as sac

    seen = []
    sac.train(
        MoveFast(FISH()),
        num_timesteps=3_000,
        episode_length=100,
        num_envs=16,
        batch_size=32,
        num_evals=2,
        min_replay_size=500,
        max_replay_size=5_000,
        num_eval_envs=8,
        progress_fn=lambda step, m: seen.append((step, m)),
    )
    assert seen[-1][0] >= 3_000 and seen[-1][1]["eval/episode_reward"] > 0


@pytest.mark.slow
def test_brax_ppo_trains_on_the_point():
    from brax.training.agents.ppo import train as ppo

    seen = []
    ppo.train(
        MoveFast(envs.make("point")),
        num_timesteps=4_000,
        episode_length=100,
        num_envs=16,
        batch_size=16,
        num_minibatches=2,
        unroll_length=10,
        num_updates_per_batch=2,
        num_evals=2,
        num_eval_envs=8,
        progress_fn=lambda step, m: seen.append((step, m)),
    )
    assert seen[-1][0] >= 4_000 and seen[-1][1]["eval/episode_reward"] > 0
