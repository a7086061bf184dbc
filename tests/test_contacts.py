"""Contacts: the choice of the nearest against numpy and against MJX's own collision driver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import raw_env
from mujoco.mjx._src import collision_driver

from envs.physics import contacts
from envs.physics.tree import attached, kinematics

WAYS = [contacts.nearest_by_sorting, contacts.nearest_by_ranks, contacts.nearest_in_rows]


@pytest.mark.parametrize("way", WAYS)
def test_the_nearest_come_in_order_and_the_earlier_of_equals_first(way):
    rng = np.random.default_rng(0)
    distance = rng.integers(-3, 4, size=(16, 29)).astype(np.float32)  # many equals
    entries = rng.standard_normal((16, 29, 3, 3)).astype(np.float32), rng.integers(0, 99, (16, 29)).astype(np.int32)
    found = jax.vmap(lambda d, e: way(d, e, 12))(jnp.asarray(distance), entries)
    index = np.argsort(distance, axis=1, kind="stable")[:, :12]
    for given, taken in zip(entries, found, strict=True):
        expected = np.stack([row[chosen] for row, chosen in zip(given, index, strict=True)])
        np.testing.assert_array_equal(taken, expected)


def test_only_a_program_for_a_cpu_sorts_a_short_list():
    def choose(distance):
        return contacts.nearest(distance, distance, 3)

    for platform, short_sorts in (("cpu", True), ("tpu", False), ("cuda", False)):
        for size, sorts in ((9, short_sorts), (contacts.SHORT + 1, True)):
            text = jax.jit(choose).trace(jnp.zeros(size)).lower(lowering_platforms=(platform,)).as_text()
            assert ("top_k" in text) == sorts


def test_contacts_are_those_of_mjx(monkeypatch):
    """Of the quadruped in its starts, to the bit: distances, positions, frames, parameters and geoms."""
    env = raw_env("quadruped")
    model, physics_model = env.model, env.physics_model

    def contacts_by(way, data):
        monkeypatch.setattr(contacts, "nearest", way)
        return contacts._contacts(physics_model.mjx_model, data)

    def every(qpos):
        poses = kinematics(physics_model.tree, qpos)
        pos, mat = attached(physics_model.tree, poses, model.geom_bodyid, model.geom_pos, model.geom_quat)
        rows = jnp.stack([jnp.stack(row, -1) for row in mat], -2)

        def of_one(xpos, xmat):
            data = physics_model.mjx_data.replace(geom_xpos=xpos, geom_xmat=xmat)
            theirs = collision_driver.collision(physics_model.mjx_model, data)._impl.contact
            return theirs, *(contacts_by(way, data) for way in WAYS)

        return jax.vmap(of_one)(jnp.stack(pos, -1).swapaxes(0, 1), rows.swapaxes(0, 1))

    theirs, *ours = jax.jit(every)(jnp.asarray(env.bank.qpos[:8]).T)
    assert theirs.dist.shape == (8, 12) and (np.asarray(theirs.dist) < 0.5).any()
    for found in ours:
        for left, right in zip(jax.tree.leaves(theirs), jax.tree.leaves(found), strict=True):
            np.testing.assert_array_equal(left, right)
