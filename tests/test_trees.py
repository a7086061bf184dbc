"""Observations that are trees of stacked frames: stored once, stacked at sampling, seen alike by policy and learner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

from genda_mjx import encoders, evaluate, program, replay, rollout

HISTORY = 3


class Filmed(Walk):
    """The toy env with its last three places and times as separate leaves, the newest last; a reset repeats them."""

    history = HISTORY
    observation_spec = {  # noqa: RUF012
        "clock": jax.ShapeDtypeStruct((HISTORY,), jnp.float32),
        "place": jax.ShapeDtypeStruct((2 * HISTORY,), jnp.float32),
    }

    def reset_at(self, rng, xy):
        state = super().reset_at(rng, xy)
        place, clock = jnp.split(state.obs, [2])
        return state.replace(obs={"clock": jnp.tile(clock, HISTORY), "place": jnp.tile(place, HISTORY)})

    def step(self, state, action):
        last = jnp.append(state.obs["place"][-2:], state.obs["clock"][-1:])
        after = super().step(state.replace(obs=last), action)
        place, clock = jnp.split(after.obs, [2])
        push = lambda old, new: jnp.concatenate([old[len(new) :], new])
        return after.replace(obs={"clock": push(state.obs["clock"], clock), "place": push(state.obs["place"], place)})


def test_the_ring_keeps_single_frames_and_a_batch_has_what_the_policy_saw():
    env = Filmed()
    built = build(tiny(batch_size=64), env)
    parts = program.Parts(built.config, built.schedule, env, built.agent)
    start, z = rollout.start_episodes(env, built.agent, jax.random.key(0), jax.random.key(1), 4)
    choose = lambda obs, key: jax.random.uniform(key, (4, 2), minval=-1, maxval=1)
    last, seen = rollout.step_envs(env, start, choose, jax.random.key(2), env.episode_length, lambda state: state.obs)
    _, steps = rollout.step_envs(env, start, choose, jax.random.key(2), env.episode_length, env.stored)
    episodes = rollout.join(env, steps, last, z)
    assert episodes.observations["place"].shape == (4, 11, 2) and episodes.observations["clock"].shape == (4, 11, 1)
    seen = jax.device_get(rollout.whole_episodes(seen.kept, last.obs))
    jax.tree.map(np.testing.assert_array_equal, replay.stack(episodes.observations, HISTORY), seen)

    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
    ring = replay.insert(replay.empty(one, 4, 4), episodes, jnp.ones(4, bool))
    batch = jax.device_get(program.sample_batch(parts, ring, replay.places(ring), jax.random.key(3)))
    times = set()
    for i in range(64):
        e = int(np.flatnonzero((np.asarray(z) == batch.z_roll[i]).all(-1))[0])
        for rows in (batch.s, batch.s_next, batch.s_c, batch.s_0, batch.s_T):
            t = int(rows["clock"][i, -1])
            times.add(t)
            for name in ("clock", "place"):
                np.testing.assert_array_equal(rows[name][i], seen[name][e, t])
    assert times == set(range(11))  # the first frames, which repeat, and the last are among them


@pytest.mark.parametrize(  # the slow ones encode as these two do
    "algo", ["genda", "cic", *(pytest.param(name, marks=pytest.mark.slow) for name in ("metra", "csf", "diayn"))]
)
def test_every_agent_learns_from_a_tree(algo):
    env = Filmed()
    built = build(tiny(algo=algo, skill_dim=3), env)
    state = built.program.init(jax.random.key(0))
    for _ in range(2):
        state, metrics = built.program.run(state, np.int32(1))
    assert int(state.agent.updates) == 4
    assert all(np.isfinite(value).all() for value in metrics.values())
    assert state.ring.episodes.observations["place"].shape[-1] == 2
    run = evaluate.compile(env, built.agent, 6, built.program.abstract.agent)
    episodes = run(state.agent, evaluate.evaluation_key(0, 1), np.zeros(2, np.float32), np.False_)
    assert episodes.traces["position"].shape == (6, 11, 2)
    if built.agent.represent is not None:
        assert episodes.latents.shape == (6, 11, 3)


def test_a_decoder_s_features_are_split_as_the_observation_is():
    spec = Filmed.observation_spec
    features = jnp.arange(2.0 * encoders.size(spec)).reshape(2, -1)
    rebuilt = encoders.split(features, spec)
    assert rebuilt["clock"].shape == (2, 3) and rebuilt["place"].shape == (2, 6)
    np.testing.assert_array_equal(encoders.Join().apply({}, rebuilt), features)


def test_what_has_no_encoder_is_named():
    with pytest.raises(TypeError, match=r"no encoder for int32\[4, 8\]"):
        encoders.Join().apply({}, jnp.zeros((4, 8), jnp.int32))
