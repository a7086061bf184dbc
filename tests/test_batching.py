"""Copies last under every transformation, and stepping in parts: in programs for a CPU, in no other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import raw_env
from jax.sharding import PartitionSpec as P

from envs import batching

COPIES = 2 * batching.PART
LOOP = "stablehlo.while"


def centred(x: jax.Array, shift: jax.Array) -> jax.Array:
    """A toy of N copies, x [k, N]: each copy is centred and shifted by its own amount [N]."""
    return x - x.mean(axis=0) + shift


ONE = batching.copies_last(centred)
X, SHIFT = jax.random.normal(jax.random.key(0), (COPIES, 3)), jnp.arange(COPIES, dtype=jnp.float32)
EXPECTED = np.asarray(X) - np.asarray(X).mean(1, keepdims=True) + np.asarray(SHIFT)[:, None]


def lowered_for(platform: str, function, *arguments) -> str:
    """The program as text, for a chip that this computer need not have."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def scanned(x, shift):
    """Two steps of a scan; a copy that is centred twice is centred, so the result is that of one."""
    return jax.lax.scan(lambda carry, _: (jax.vmap(ONE)(carry, shift), None), x, None, length=2)[0]


def sharded(x, shift):
    """On a mesh of one device, as the training program runs."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(jax.vmap(ONE), mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x, shift)


def mapped(x, shift):
    """Two calls in turn, of all copies each."""
    both = jax.lax.map(lambda pair: jax.vmap(ONE)(*pair), (jnp.stack([x, x]), jnp.stack([shift, shift])))
    return both[1]


def nested(x, shift):
    """A vmap over runs of a vmap over copies."""
    out = jax.vmap(jax.vmap(ONE))(x.reshape(4, COPIES // 4, 3), shift.reshape(4, COPIES // 4))
    return out.reshape(COPIES, 3)


TRANSFORMED = {"vmap": jax.vmap(ONE), "scan": scanned, "shard_map": sharded, "map": mapped, "nested": nested}


@pytest.mark.parametrize("how", TRANSFORMED)
def test_every_transformation_gives_what_numpy_gives(how):
    np.testing.assert_allclose(jax.jit(TRANSFORMED[how])(X, SHIFT), EXPECTED, atol=1e-4)


def test_without_jit_and_for_a_single_copy():
    np.testing.assert_allclose(jax.vmap(ONE)(X, SHIFT), EXPECTED, atol=1e-4)
    np.testing.assert_allclose(ONE(X[5], SHIFT[5]), EXPECTED[5], atol=1e-5)


def test_an_argument_that_all_copies_share():
    found = jax.jit(jax.vmap(ONE, in_axes=(0, None)))(X, SHIFT[7])
    np.testing.assert_allclose(found, EXPECTED - np.asarray(SHIFT)[:, None] + 7, atol=1e-4)


@pytest.mark.parametrize("how", ["vmap", "shard_map", "nested"])
def test_only_a_program_for_a_cpu_works_in_parts(how):
    assert LOOP in lowered_for("cpu", TRANSFORMED[how], X, SHIFT)
    for platform in ("tpu", "cuda"):
        assert LOOP not in lowered_for(platform, TRANSFORMED[how], X, SHIFT)


@pytest.mark.parametrize("copies", [1, batching.PART, batching.PART + 1])
def test_counts_that_are_not_several_parts_stay_whole(copies):
    assert LOOP not in lowered_for("cpu", jax.vmap(ONE), jnp.zeros((copies, 3)), jnp.zeros(copies))


def test_a_cpu_decides_nothing_at_run_time():
    """The choice of the platform leaves no branch in the compiled program."""
    compiled = jax.jit(jax.vmap(ONE)).lower(X, SHIFT).compile().as_text()
    assert "while(" in compiled and "conditional(" not in compiled


def part_shapes(env, text: str) -> tuple[bool, bool]:
    """Does a program of COPIES copies hold velocities of one PART, and of all copies at once, copies last?"""
    part, whole = (f"tensor<{env.model.nv}x{copies}xf32>" in text for copies in (batching.PART, COPIES))
    return part, whole


def test_step_of_a_body_for_a_chip_that_is_not_here():
    env = raw_env("point")
    state = jax.eval_shape(jax.vmap(env.reset), jax.random.split(jax.random.key(0), COPIES))
    step, action = jax.vmap(env.step), jax.ShapeDtypeStruct((COPIES, env.action_size), jnp.float32)
    in_parts, _ = part_shapes(env, lowered_for("cpu", step, state, action))
    assert in_parts
    for platform in ("tpu", "cuda"):
        assert part_shapes(env, lowered_for(platform, step, state, action)) == (False, True)
    # jax does not promise to keep the call by which a TPU is told the order of an array (physics/cholesky.py).
    named = [jax.export.DisabledSafetyCheck.custom_call("LayoutConstraint")]
    exported = jax.export.export(jax.jit(step), platforms=("tpu",), disabled_checks=named)(state, action)
    assert part_shapes(env, exported.mlir_module()) == (False, True)


def test_nothing_asks_for_the_backend_while_it_is_traced(monkeypatch):
    """MJX's collision detection included, which the quadruped uses."""
    env = raw_env("quadruped")
    keys = jax.random.split(jax.random.key(0), COPIES)
    state = jax.eval_shape(jax.vmap(env.reset), keys)
    for question in ("default_backend", "devices", "local_devices"):
        monkeypatch.setattr(jax, question, lambda *_, **__: pytest.fail("asked for the backend"))
    action = jax.ShapeDtypeStruct((COPIES, env.action_size), jnp.float32)
    after = jax.eval_shape(jax.vmap(env.step), state, action)
    assert after.obs.shape == (COPIES, env.observation_size)
