"""Every loss against numpy, and gradients stopped where the official code stops them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genda_mjx.agents import cib, relabel, sac
from genda_mjx.agents import representation as rep

RNG = np.random.default_rng(0)
B, D = 7, 3


def normal(*shape) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_unit_and_its_gradient_at_zero():
    x = normal(B, D)
    np.testing.assert_allclose(rep.unit(x), x / (np.linalg.norm(x, axis=-1, keepdims=True) + 1e-8), rtol=1e-5)
    assert jnp.isfinite(jax.grad(lambda x: rep.unit(x).sum())(jnp.zeros((1, D)))).all()


def test_constraint_is_the_mean_over_dimensions_clipped_from_above():
    step = np.array([[2.0, 0.0], [0.1, 0.1], [1.0, 1.0]], np.float32)
    np.testing.assert_allclose(rep.step_constraint(step, 1e-3), [1 - 4 / 2, 1e-3, 0.0], atol=1e-6)
    pushed = jax.grad(lambda s: rep.step_constraint(s, 1e-3).sum())(jnp.asarray(step))
    assert (pushed[0] != 0).any() and (pushed[1] == 0).all()  # no push where it is satisfied


def test_representation_loss():
    step, z, constraint = normal(B, D), normal(B, D), normal(B)
    expected = -np.mean([step[i] @ z[i] + 5.0 * constraint[i] for i in range(B)])
    assert rep.representation_loss(step, z, constraint, jnp.float32(5)) == pytest.approx(expected, rel=1e-5)
    blocked = jax.grad(lambda z, m: rep.representation_loss(step, z, constraint, m), argnums=(0, 1))
    for gradient in blocked(jnp.asarray(z), jnp.float32(5)):
        assert (gradient == 0).all()  # labels and the multiplier are constants here


def test_multiplier_rises_when_violated():
    constraint = jnp.array([-2.0, 1e-3])
    loss = lambda eta, c: rep.multiplier_loss(jnp.exp(eta), c)
    assert loss(jnp.float32(0.7), constraint) == pytest.approx(np.exp(0.7) * (-2 + 1e-3) / 2, rel=1e-5)
    slope, through_constraint = jax.grad(loss, argnums=(0, 1))(jnp.float32(0.7), constraint)
    assert slope < 0 and (through_constraint == 0).all()


def test_uniformity_against_a_double_loop():
    v = np.asarray(rep.unit(normal(B, D)))
    expected = np.mean([np.log(sum(np.exp(v[i] @ v[j]) for j in range(B) if j != i)) for i in range(B)])
    assert rep.uniformity_loss(v) == pytest.approx(expected, rel=1e-5)
    crowded, spread = np.tile(v[:1], (4, 1)), np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)
    assert rep.uniformity_loss(spread) < rep.uniformity_loss(crowded)


def test_critic_target():
    reward, q_next, log_prob = normal(B), normal(2, B), normal(B)
    expected = [reward[i] + 0.9 * (min(q_next[0, i], q_next[1, i]) - 0.2 * log_prob[i]) for i in range(B)]
    np.testing.assert_allclose(sac.critic_target(reward, q_next, log_prob, jnp.float32(0.2), 0.9), expected, rtol=1e-5)
    blocked = jax.grad(lambda *args: sac.critic_target(*args, 0.9).sum(), argnums=(0, 1, 2, 3))
    for gradient in blocked(*map(jnp.asarray, (reward, q_next, log_prob)), jnp.float32(0.2)):
        assert (gradient == 0).all()


def test_critic_loss_is_half_the_mean_over_both_critics():
    q, target = normal(2, B), normal(B)
    expected = np.mean([0.5 * (q[k, i] - target[i]) ** 2 for k in range(2) for i in range(B)])
    assert sac.critic_loss(q, target) == pytest.approx(expected, rel=1e-5)


def test_actor_loss():
    q, log_prob = normal(2, B), normal(B)
    expected = np.mean([0.3 * log_prob[i] - min(q[0, i], q[1, i]) for i in range(B)])
    assert sac.actor_loss(q, log_prob, jnp.float32(0.3)) == pytest.approx(expected, rel=1e-4)
    assert jax.grad(lambda alpha: sac.actor_loss(q, log_prob, alpha))(jnp.float32(0.3)) == 0


def test_temperature_loss():
    log_prob = np.array([1.0, 2.0], np.float32)
    loss = lambda log_alpha, lp: sac.temperature_loss(jnp.exp(log_alpha), lp, -4.0)
    assert loss(jnp.float32(-1.0), log_prob) == pytest.approx(-np.exp(-1.0) * (1.5 - 4.0), rel=1e-5)
    slope, through_policy = jax.grad(loss, argnums=(0, 1))(jnp.float32(-1.0), jnp.asarray(log_prob))
    assert slope > 0  # entropy -1.5 is above the target -4: alpha falls
    assert (through_policy == 0).all()


def test_cib_losses():
    decoded, s, mean, log_std = normal(B, 5), normal(B, 5), normal(B, 4), normal(B, 4)
    expected = np.mean([sum((decoded[i, j] - s[i, j]) ** 2 for j in range(5)) for i in range(B)])
    assert cib.reconstruction_loss(decoded, s) == pytest.approx(expected, rel=1e-5)
    std = np.exp(log_std)
    expected = np.mean([sum(0.5 * (std**2 + mean**2 - 1 - 2 * log_std)[i]) for i in range(B)])
    assert cib.kl_loss(mean, log_std) == pytest.approx(expected, rel=1e-5)
    assert cib.kl_loss(np.zeros((2, 4)), np.zeros((2, 4))) == 0


def test_skill_code_is_the_side_of_every_plane():
    planes = np.asarray(relabel.draw_planes(jax.random.key(0), 8, 2))
    np.testing.assert_allclose(np.linalg.norm(planes, axis=-1), 1, rtol=1e-5)
    angles = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    z = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    codes = np.asarray(relabel.skill_code(z, planes))
    by_hand = [sum(int(z[i] @ planes[j] > 0) << j for j in range(8)) for i in range(2000)]
    np.testing.assert_array_equal(codes, by_hand)
    assert len(set(by_hand)) == 16  # in the plane 8 lines through the origin make 16 sectors


def test_gate_keeps_what_relabelling_rarely_reaches():
    logit = np.log(np.array([0.1, 0.39, 0.41, 0.9]) / np.array([0.9, 0.61, 0.59, 0.1])).astype(np.float32)
    np.testing.assert_array_equal(relabel.keep_rollout(logit, 0.4), [True, True, False, False])
    assert not relabel.keep_rollout(jnp.array([-100.0]), 0.0).any()


def test_gate_loss_is_binary_cross_entropy():
    relabelled, prior = normal(4), normal(4)
    p = lambda x: 1 / (1 + np.exp(-x))
    expected = -np.mean([*np.log(p(relabelled)), *np.log(1 - p(prior))])
    assert relabel.gate_loss(relabelled, prior) == pytest.approx(expected, rel=1e-5)


def test_mix_takes_the_asked_share():
    z_tau, z_c = normal(8, 2), normal(2, 2)
    mixed = np.asarray(relabel.mix(z_c, z_tau))
    np.testing.assert_array_equal(mixed[:2], z_c)
    np.testing.assert_array_equal(mixed[2:], z_tau[2:])
    np.testing.assert_array_equal(relabel.mix(z_c[:0], z_tau), z_tau)
