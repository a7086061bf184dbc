"""The ring against a plain numpy list of episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

from genda_mjx import program, replay, rollout

LENGTH = 6


def numbered(first: int, n: int):
    """n episodes that can be told apart: the value of a row is 100 * episode number + time."""
    number = first + np.arange(n)
    rows = (100 * number[:, None] + np.arange(LENGTH + 1)).astype(np.float32)
    return {"obs": rows[..., None], "image": (number % 251).astype(np.uint8), "number": number.astype(np.int32)}


def test_thousands_of_random_inserts_against_numpy():
    rng = np.random.default_rng(0)
    insert = jax.jit(replay.insert, donate_argnums=0)
    draw = jax.jit(lambda ring, key: replay.sample_episodes(replay.places(ring), key, 64))
    for capacity, n in ((12, 1), (12, 3), (8, 8)):
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), numbered(0, 1))
        ring = replay.empty(one, capacity, n)
        kept: list[tuple[int, bool]] = []  # (episode number, valid), oldest first
        for i in range(1000):
            valid = rng.random(n) < rng.choice([0.0, 0.5, 1.0])
            ring = insert(ring, numbered(i * n, n), jnp.asarray(valid))
            kept = [*kept, *zip(range(i * n, (i + 1) * n), valid, strict=True)][-capacity:]
            if i % 7 == 0:
                allowed = {number for number, ok in kept if ok}
                assert int(replay.places(ring).count) == len(allowed)
                held = np.asarray(ring.episodes["number"])
                assert set(held[np.asarray(ring.valid)]) == allowed
                if allowed:
                    places = np.asarray(draw(ring, jax.random.key(i)))
                    assert set(held.ravel()[places]) <= allowed
        assert int(ring.inserted) == 1000 * n
        assert ring.episodes["image"].dtype == jnp.uint8
        np.testing.assert_array_equal(ring.episodes["obs"][..., 2, 0], 100.0 * np.asarray(ring.episodes["number"]) + 2)


def test_rejected_episodes_are_counted():
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), numbered(0, 1))
    ring = replay.empty(one, 4, 2)
    for valid in ([True, False], [False, False], [True, True]):
        ring = replay.insert(ring, numbered(0, 2), jnp.array(valid))
    assert (int(ring.rejected.sum()), int(ring.inserted), int(replay.places(ring).count), int(ring.slot)) == (
        3,
        6,
        2,
        1,
    )


def test_episodes_that_are_not_whole_leave_no_trace():
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), numbered(0, 1))
    ring = replay.insert(replay.empty(one, 4, 2), numbered(0, 2), jnp.ones(2, bool), jnp.bool_(False))
    assert (int(ring.rejected.sum()), int(ring.inserted), int(replay.places(ring).count), int(ring.slot)) == (
        0,
        0,
        0,
        0,
    )
    ring = replay.insert(ring, numbered(6, 2), jnp.ones(2, bool), jnp.bool_(True))
    assert (int(ring.inserted), int(replay.places(ring).count), int(ring.slot)) == (2, 2, 1)
    np.testing.assert_array_equal(ring.episodes["number"][0], [6, 7])


def test_sampling_is_uniform_over_valid_episodes():
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), numbered(0, 1))
    ring = replay.empty(one, 8, 4)
    ring = replay.insert(ring, numbered(0, 4), jnp.array([True, False, True, True]))
    places = np.asarray(replay.sample_episodes(replay.places(ring), jax.random.key(0), 30_000))
    counts = np.bincount(places, minlength=8)
    assert counts[[1, 4, 5, 6, 7]].sum() == 0
    np.testing.assert_allclose(counts[[0, 2, 3]] / 30_000, 1 / 3, atol=0.02)


def test_horizon_law():
    t, t_c = map(np.asarray, replay.sample_times(jax.random.key(0), 60_000, LENGTH, 3))
    assert set(t) == set(range(LENGTH))
    for time in range(LENGTH):
        longest = max(min(3, LENGTH - 1 - time), 1)
        c, counts = np.unique(t_c[t == time] - time, return_counts=True)
        assert list(c) == list(range(1, longest + 1))  # reaches s_T only from the last step
        np.testing.assert_allclose(counts / counts.sum(), 1 / longest, atol=0.03)


def test_insert_size_must_divide_capacity():
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), numbered(0, 1))
    with pytest.raises(ValueError, match="multiple"):
        replay.empty(one, 7, 2)


def test_batch_rows_belong_together():
    """Every field of a batch comes from one valid episode, at the right times."""
    env = Walk(episode_length=10, fragile=True)
    built = build(tiny(batch_size=200, max_horizon=5), env)
    agent, parts = built.agent, program.Parts(built.config, built.schedule, env, built.agent)
    state = agent.init(jax.random.key(0))
    episodes, valid = rollout.collect(env, agent, state, jax.random.key(1), 8, True)
    assert 0 < valid.sum() < 8
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
    ring = replay.insert(replay.empty(one, 16, 8), episodes, valid)
    batch = jax.device_get(program.sample_batch(parts, ring, replay.places(ring), jax.random.key(2)))
    data, valid = jax.device_get(episodes), np.asarray(valid)
    for i in range(200):
        e = int(np.flatnonzero((data.skill == batch.z_roll[i]).all(-1))[0])
        assert valid[e]
        t = int(batch.s[i, 2])  # the toy env observes its time
        np.testing.assert_array_equal(batch.s[i], data.observations[e, t])
        np.testing.assert_array_equal(batch.s_next[i], data.observations[e, t + 1])
        np.testing.assert_array_equal(batch.a[i], data.actions[e, t])
        np.testing.assert_array_equal(batch.s_0[i], data.observations[e, 0])
        np.testing.assert_array_equal(batch.s_T[i], data.observations[e, 10])
        c = int(batch.s_c[i, 2]) - t
        assert 1 <= c <= max(min(5, 9 - t), 1)
        np.testing.assert_array_equal(batch.s_c[i], data.observations[e, t + c])
