"""The fused update against a plain one, written from the order of the official code with its own arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_networks import (
    ACTION,
    BATCH,
    OBS,
    Plain,
    assert_same_but_for_rounding,
    critic,
    gaussian,
    layer,
    make_batch,
    mlp,
    pi,
    unit,
)
from trainer_helpers import tiny, vector_spec

from genda_mjx import agents
from genda_mjx.config import UserError, validate

SPEC = vector_spec(OBS, ACTION)


def gate(p, code):
    """The official classifier: an MLP on the one-hot code."""
    p = p["params"]
    h = jax.nn.silu(code @ p["rows"] + p["bias"])
    return layer(p["Dense_1"], jax.nn.silu(layer(p["Dense_0"], h)))[:, 0]


class Reference(Plain):
    """The order of the official code."""

    def __init__(self, config, state):
        super().__init__(config, state, gate=config.agent.gate_learning_rate)
        self.planes = state.buffers["planes"]

    def code(self, z):
        index = sum(jnp.where(z @ plane > 0, 2**j, 0) for j, plane in enumerate(self.planes))
        return jax.nn.one_hot(index, 2 ** len(self.planes))

    def seen(self, s):
        return s if self.c.agent.no_cib else gaussian(self.p["encoder"], s)[0]

    def update(self, b, key):
        c, own, p, old = self.c, self.c.agent, self.p, dict(self.p)
        _, key_cib, key_next, key_actor, key_prior = jax.random.split(key, 5)
        size = len(b.s)
        if not own.no_cib:  # 1
            noise = jax.random.normal(key_cib, (size, own.cib_dim))

            def cib_loss(encoder, decoder):
                mean, log_std = gaussian(encoder, b.s)
                decoded = mlp(decoder, mlp(old["phi"], b.s), mean + jnp.exp(log_std) * noise)
                kl = 0.5 * (jnp.exp(log_std) ** 2 + mean**2 - 1 - 2 * log_std).sum(-1).mean()
                return ((decoded - b.s) ** 2).sum(-1).mean() + 0.1 * kl

            self.descend("encoder", lambda q: cib_loss(q, old["decoder"]))
            self.descend("decoder", lambda q: cib_loss(old["encoder"], q))
        if own.no_relabel:  # 2, 3
            z_relab = z = b.z_roll
        else:
            keep = jax.nn.sigmoid(gate(p["gate"], self.code(b.z_roll))) < own.keep_threshold
            z_relab = unit(mlp(self.t["phi"], b.s_T) - mlp(self.t["phi"], b.s_0))
            z_c = unit(mlp(self.t["phi"], b.s_c) - mlp(self.t["phi"], b.s))
            half = (jnp.arange(size) < size // 2)[:, None]
            z = jnp.where(keep[:, None], b.z_roll, jnp.where(half, z_c, z_relab))

        def penalty(phi):
            step = mlp(phi, b.s_next) - mlp(phi, b.s)
            return jnp.minimum(1 - (step**2).mean(-1), 1e-3), step

        def phi_loss(phi):  # 4
            slack, step = penalty(phi)
            loss = -((step * z_relab).sum(-1) + jnp.exp(old["log_lambda"]) * slack).mean()
            v = unit(mlp(phi, b.s_T) - mlp(phi, b.s_0))
            pairs = jnp.where(jnp.eye(size, dtype=bool), 0, jnp.exp(v @ v.T))
            return loss + (0 if own.no_relabel else own.beta * jnp.log(pairs.sum(-1)).mean())

        self.descend("phi", phi_loss)
        self.descend("log_lambda", lambda eta: jnp.exp(eta) * penalty(old["phi"])[0].mean())

        alpha = jnp.exp(old["log_alpha"])  # 5
        a_next, log_next = pi(*gaussian(p["actor"], self.seen(b.s_next), z), key_next)
        reward = ((mlp(p["phi"], b.s_next) - mlp(p["phi"], b.s)) * z).sum(-1)
        least = jnp.minimum(*(critic(self.t["critic"], k, b.s_next, z, a_next) for k in range(2)))
        y = reward + c.discount * (least - alpha * log_next)
        self.descend("critic", lambda q: sum(((critic(q, k, b.s, z, b.a) - y) ** 2).mean() for k in range(2)) / 4)

        def actor_loss(q):  # 6
            a, log_prob = pi(*gaussian(q, self.seen(b.s), z), key_actor)
            value = jnp.minimum(*(critic(p["critic"], k, b.s, z, a) for k in range(2)))
            return (alpha * log_prob - value).mean()

        log_prob = pi(*gaussian(old["actor"], self.seen(b.s), z), key_actor)[1]
        self.descend("actor", actor_loss)
        self.descend("log_alpha", lambda x: -jnp.exp(x) * (log_prob.mean() - ACTION))  # 7
        self.average("phi", "critic")  # 8
        if not own.no_relabel:  # 9
            prior = jax.random.normal(key_prior, (size, c.skill_dim))
            codes = self.code(jnp.concatenate([z_relab, unit(prior)]))
            sign = jnp.where(jnp.arange(2 * size) < size, -1.0, 1.0)
            self.descend("gate", lambda q: jax.nn.softplus(sign * gate(q, codes)).mean())


@pytest.mark.parametrize("change", [{}, {"no_cib": True}, {"no_relabel": True}])
def test_update_equals_the_plain_order(change):
    config = tiny(batch_size=BATCH, initial_lambda=30.0, **change)
    agent = agents.make(config, SPEC)
    state = agent.init(jax.random.key(0))
    reference = Reference(config, state)
    update = jax.jit(agent.update)
    for i in range(3):
        batch, key = make_batch(i), jax.random.key(100 + i)
        state, metrics = update(state, batch, key)
        reference.update(batch, key)
        assert all(np.isfinite(value) for value in metrics.values())
    assert int(state.updates) == 3
    for got, expected in ((state.params, reference.p), (state.targets, reference.t)):
        for tree in (got, expected):  # only differences of phi enter its losses: its last bias has no gradient
            tree["phi"]["params"]["Dense_0"].pop("bias")
        jax.tree.map(assert_same_but_for_rounding, got, expected)


def test_labels_of_every_strategy_reach_the_policy():
    """With a critic that only learns (rate 0 elsewhere) the strategies differ through z alone."""
    q = {}
    for name in ("mix", "roll", "c", "tau", "random"):
        agent = agents.make(tiny(batch_size=BATCH, relabel=name, keep_threshold=0.0), SPEC)
        _, metrics = agent.update(agent.init(jax.random.key(0)), make_batch(0), jax.random.key(1))
        q[name] = float(metrics["reward"])
    assert len(set(q.values())) == 5


def test_mix_ratio_moves_between_tau_and_c():
    def reward(**change):
        agent = agents.make(tiny(batch_size=BATCH, keep_threshold=0.0, **change), SPEC)
        return float(
            jax.jit(agent.update)(agent.init(jax.random.key(0)), make_batch(0), jax.random.key(1))[1]["reward"]
        )

    assert reward(mix_ratio=0.0) == pytest.approx(reward(relabel="tau"), abs=1e-6)
    assert reward(mix_ratio=1.0) == pytest.approx(reward(relabel="c"), abs=1e-6)


def test_keep_floor_keeps_its_share_whatever_the_gate_says():
    """Under a gate that keeps nothing."""
    for floor, low, high in ((0.5, 1, BATCH - 1), (1.0, BATCH, BATCH)):
        agent = agents.make(tiny(batch_size=BATCH, keep_threshold=0.0, keep_floor=floor), SPEC)
        _, metrics = agent.update(agent.init(jax.random.key(0)), make_batch(0), jax.random.key(1))
        assert low <= round(float(metrics["kept"]) * BATCH) <= high


def test_keep_floor_begins_when_it_is_told_to():
    agent = agents.make(tiny(batch_size=BATCH, keep_threshold=0.0, keep_floor=1.0, keep_floor_after=2), SPEC)
    state, kept = agent.init(jax.random.key(0)), []
    for _ in range(3):
        state, metrics = agent.update(state, make_batch(0), jax.random.key(1))
        kept.append(float(metrics["kept"]))
    assert kept == [0, 0, 1]


def test_alpha_rises_while_actions_have_less_entropy_than_asked_for():
    """Of fresh networks: between -5 and 0.6 nats per motor."""
    for target, rises in ((-5.0, False), (0.6, True)):
        agent = agents.make(tiny(algo="metra", batch_size=BATCH, entropy_target=target), SPEC)
        before = agent.init(jax.random.key(0))
        after, metrics = jax.jit(agent.update)(before, make_batch(0), jax.random.key(1))
        assert -0.6 < float(metrics["log_prob"]) / ACTION < 5
        assert (after.params["log_alpha"] > before.params["log_alpha"]) == rises


def test_an_entropy_target_that_does_nothing_or_cannot_be_reached_is_refused():
    with pytest.raises(UserError, match="diayn keeps its temperature"):
        validate(tiny(algo="diayn", entropy_target=0.0))
    with pytest.raises(UserError, match=r"must be below 0\.69"):
        validate(tiny(entropy_target=0.7))


def test_beta_scales_uniformity():
    def phi_after(beta):
        agent = agents.make(tiny(batch_size=BATCH, beta=beta), SPEC)
        return agent.update(agent.init(jax.random.key(0)), make_batch(0), jax.random.key(1))[0].params["phi"]

    assert not np.allclose(*(jax.tree.leaves(phi_after(beta))[1] for beta in (0.0, 10.0)), atol=1e-6)


def test_gate_learns_where_relabelled_directions_are():
    """Directions all to the right: rollout skills to the right are relabelled, those to the left are kept."""
    config = tiny(batch_size=64)
    agent = agents.make(config, SPEC)
    state = agent.init(jax.random.key(0))
    batch = make_batch(0, 64)
    still = jax.tree.map(jnp.zeros_like, state.params["phi"])
    still["params"]["Dense_0"]["kernel"] = still["params"]["Dense_0"]["kernel"].at[0, 0].set(1.0)
    still["params"]["Trunk_0"]["Dense_1"]["kernel"] = still["params"]["Trunk_0"]["Dense_1"]["kernel"].at[0, 0].set(1.0)
    still["params"]["Trunk_0"]["Dense_0"]["kernel"] = still["params"]["Trunk_0"]["Dense_0"]["kernel"].at[0, 0].set(1.0)
    batch = batch.replace(s_0=jnp.zeros_like(batch.s_0), s_T=jnp.ones_like(batch.s_T))
    update = jax.jit(agent.update)
    for i in range(60):
        state = state.replace(targets=state.targets | {"phi": still})
        state, _ = update(state, batch, jax.random.key(i))
    state = state.replace(targets=state.targets | {"phi": still})
    for direction, kept in ((1.0, 0.0), (-1.0, 1.0)):
        z = jnp.tile(jnp.array([[direction, 0.05]]), (64, 1))
        _, metrics = update(state, batch.replace(z_roll=z), jax.random.key(0))
        assert float(metrics["kept"]) == kept


def test_act_is_deterministic_without_key_and_bounded():
    agent = agents.make(tiny(), SPEC)
    state = agent.init(jax.random.key(0))
    obs, z = 100 * jnp.ones((4, OBS)), agent.skills.sample(jax.random.key(1), 4)
    np.testing.assert_allclose(jnp.linalg.norm(z, axis=-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(agent.act(state, obs, z, None), agent.act(state, obs, z, None))
    first, second = (agent.act(state, obs, z, jax.random.key(k)) for k in (0, 1))
    assert first.shape == (4, ACTION) and not np.array_equal(first, second)
    assert jnp.abs(first).max() <= 1
    assert agent.represent(state, obs).shape == (4, 2)


def test_without_cib_the_actor_sees_the_state():
    for no_cib in (False, True):
        agent = agents.make(tiny(no_cib=no_cib, cib_dim=7), SPEC)
        params = agent.init(jax.random.key(0)).params
        seen = params["actor"]["params"]["Trunk_0"]["Dense_0"]["kernel"].shape[0] - 2
        assert seen == (OBS if no_cib else 7) and ("encoder" in params) != no_cib


def test_unknown_agent_lists_the_known():
    with pytest.raises(UserError, match=r"'nothing'.*genda"):
        agents.make(tiny(algo="nothing"), SPEC)
