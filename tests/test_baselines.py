"""The baselines: their losses against numpy, their updates against plain ones, and the trainer with each of them."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import plain_networks as plain
import pytest
from plain_networks import ACTION, BATCH, OBS, critic, critics, gaussian, make_batch, mlp, pi
from trainer_helpers import Walk, build, tiny, vector_spec

from genda_mjx import agents, networks
from genda_mjx.agents import cic, csf, diayn, skills
from genda_mjx.runs.arguments import parse
from genda_mjx.runs.checkpoint import Checkpoints, split
from genda_mjx.runs.train import train

RNG = np.random.default_rng(0)
B, D = 7, 3
SPEC = vector_spec(OBS, ACTION)
ALGOS = {"metra": {}, "csf": {}, "diayn": {"skill_dim": 6, "initial_alpha": 0.1}, "cic": {"skill_dim": 6}}


def normal(*shape) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


# Skills


def test_centred_one_hots_push_apart():
    z = np.eye(4, dtype=np.float32)
    expected = np.where(np.eye(4), 1.0, -1 / 3)
    np.testing.assert_allclose(skills.centred(z), expected, atol=1e-6)
    np.testing.assert_array_equal(skills.centred(np.ones((2, 1), np.float32)), 0)  # a single skill: nothing to tell


def test_priors():
    one_hots = np.asarray(skills.one_hots(jax.random.key(0), 6000, 6))
    assert np.isin(one_hots, (0, 1)).all() and (one_hots.sum(-1) == 1).all()
    np.testing.assert_allclose(one_hots.mean(0), 1 / 6, atol=0.03)
    gaussian = np.asarray(skills.normals(jax.random.key(0), 2000, 64))
    np.testing.assert_allclose(np.linalg.norm(gaussian, axis=-1).mean(), 8, atol=0.1)  # not scaled to length 1
    assert np.linalg.norm(gaussian, axis=-1).std() > 0.5
    np.testing.assert_array_equal(skills.each_in_turn(7, 3).argmax(-1), [0, 1, 2, 0, 1, 2, 0])


@pytest.mark.parametrize(("algo", "dim", "alpha"), [("diayn", 50, 0.1), ("cic", 64, 0.01)])
def test_presets_win_over_those_of_the_body(algo, dim, alpha):
    for env, small in (("fish", (256, 0.2)), ("point", (8, 0.125))):
        config = parse(["--env", env, "--algo", algo, "--preset", "small"])
        assert (config.skill_dim, config.initial_alpha) == (dim, alpha)
        assert (config.num_envs, config.utd) == small  # one schedule for all agents
        paper = parse(["--env", env, "--algo", algo])
        assert (paper.num_envs, paper.utd * 8 * 200) == (8, 50)  # the CSF repository's
    assert parse(["--env", "fish", "--algo", algo, "--skill_dim", "5"]).skill_dim == 5
    assert parse(["--env", "fish", "--algo", "csf"]).skill_dim == 3


# Losses


def test_csf_contrastive_loss():
    step, z, negatives = normal(B, D), normal(B, D), normal(11, D)
    expected = -np.mean([step[i] @ z[i] - 5 * np.log(sum(np.exp(step[i] @ n) for n in negatives)) for i in range(B)])
    assert csf.contrastive_loss(step, z, negatives) == pytest.approx(expected, rel=1e-5)


def test_csf_target_takes_the_pessimist_of_each_sample_whole():
    z = np.array([[1.0, 0.0], [1.0, 0.0]], np.float32)
    psi = np.array([[[1.0, 9.0], [5.0, 7.0]], [[2.0, 3.0], [4.0, 8.0]]], np.float32)  # critic, sample, dimension
    step = np.array([[0.5, 0.25], [0.0, -1.0]], np.float32)
    # Along z the first critic is lower for sample 0, the second for sample 1; each is taken with both dimensions.
    np.testing.assert_allclose(csf.successor_target(step, psi, z, 0.5), [[1.0, 4.75], [2.0, 3.0]])
    # Against z the other ones are.
    np.testing.assert_allclose(csf.successor_target(step, psi, -z, 0.5), [[1.5, 1.75], [2.5, 2.5]])
    blocked = jax.grad(lambda s, p: csf.successor_target(s, p, z, 0.5).sum(), argnums=(0, 1))
    assert all((gradient == 0).all() for gradient in blocked(jnp.asarray(step), jnp.asarray(psi)))


def test_csf_critic_loss_sums_over_critics_only():
    psi, target = normal(2, B, D), normal(B, D)
    expected = sum(np.mean([(psi[k, i, j] - target[i, j]) ** 2 for i in range(B) for j in range(D)]) for k in range(2))
    assert csf.successor_loss(psi, target) == pytest.approx(expected, rel=1e-5)


def test_diayn_reward_and_loss():
    logits, chosen = normal(B, 5), RNG.integers(0, 5, B)
    z = np.eye(5, dtype=np.float32)[chosen]
    q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [np.log(q[i, chosen[i]]) - np.log(1 / 5) for i in range(B)]
    np.testing.assert_allclose(diayn.skill_reward(logits, z), expected, rtol=1e-4, atol=1e-5)
    assert diayn.discriminator_loss(logits, z) == pytest.approx(-np.mean(expected), rel=1e-4)
    np.testing.assert_allclose(diayn.skill_reward(np.zeros((B, 5)), z), 0, atol=1e-6)  # knowing nothing pays nothing


@pytest.mark.parametrize("size", [B, 2])  # of two, the sum hardly exceeds what is taken out: the clamp shows
def test_cic_contrastive_loss(size):
    query, key = normal(size, D), normal(size, D)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    s = np.exp(q.astype(np.float64) @ k.T / 0.5)
    expected = [-np.log(s[i, i] / (max(s[i].sum() - np.e**2, 1e-6) + 1e-6)) for i in range(size)]
    assert cic.contrastive_loss(query, key) == pytest.approx(np.mean(expected), rel=1e-4)


def test_cic_nearest_neighbours_against_a_double_loop():
    source, target = normal(B, D), normal(B, D)
    expected = [sorted(np.linalg.norm(source[i] - target[j]) for j in range(B))[:4] for i in range(B)]
    np.testing.assert_allclose(cic.nearest_distances(source, target, 4), expected, rtol=1e-5)


def test_cic_running_variance():
    moments, seen = cic.no_moments(), []
    mean, s, n = 0.0, 1.0, 1e-4
    for scale in (1.0, 3.0, 0.2):
        x = scale * normal(50, 16) + scale
        moments, seen = cic.observe(moments, x), seen + [x.ravel()]
        delta, total = x.mean() - mean, n + x.size
        s = (s * n + x.var(ddof=1) * x.size + delta**2 * n * x.size / total) / total
        mean, n = mean + delta * x.size / total, total
        np.testing.assert_allclose(moments, (mean, s, n), rtol=1e-4)
    everything = np.concatenate(seen)
    np.testing.assert_allclose(moments[:2], (everything.mean(), everything.var()), rtol=1e-2)


def test_cic_reward_grows_with_distance_and_floors():
    distances = np.array([[0.0, 1e-3], [2.0, 4.0]], np.float32)
    expected = [0.0, np.log(1 + ((2 / 4 - 5e-4) + (4 / 4 - 5e-4)) / 2)]
    np.testing.assert_allclose(cic.entropy_reward(distances, jnp.float32(4)), expected, rtol=1e-5)


def test_spectral_norm_of_every_layer_against_svd():
    net = networks.MLP(16, 6)
    params = jax.tree.map(lambda leaf: 3 * leaf, net.init(jax.random.key(0), jnp.zeros((1, 6))))
    vectors = networks.spectral_vectors(jax.random.key(1), params)
    assert len(vectors) == 3
    first, _ = networks.spectral_normalised(params, vectors)
    for _ in range(300):
        normalised, vectors = networks.spectral_normalised(params, vectors)
    for layer in (lambda p: p["Trunk_0"]["Dense_0"], lambda p: p["Trunk_0"]["Dense_1"], lambda p: p["Dense_0"]):
        kernel, once, done = (np.asarray(layer(tree["params"])["kernel"]) for tree in (params, first, normalised))
        largest = np.linalg.svd(kernel, compute_uv=False)[0]
        np.testing.assert_allclose(done, kernel / largest, rtol=1e-3, atol=1e-5)
        assert np.linalg.svd(once, compute_uv=False)[0] >= 1  # one iteration never overestimates
        np.testing.assert_array_equal(layer(normalised["params"])["bias"], layer(params["params"])["bias"])


# Updates


class Reference(plain.Plain):
    """What the baselines share, in the order of their repositories; `model` is each one's own part."""

    def update(self, b, key):
        key_next, key_actor = jax.random.split(key)
        reward = self.model(b)
        alpha = jnp.exp(self.p["log_alpha"])
        a_next, log_next = pi(*gaussian(self.p["actor"], b.s_next, b.z_roll), key_next)
        least = jnp.minimum(*(critic(self.t["critic"], k, b.s_next, b.z_roll, a_next) for k in range(2)))
        y = reward + self.c.discount * (least - alpha * log_next)
        error = lambda p: sum(0.5 * ((critic(p, k, b.s, b.z_roll, b.a) - y) ** 2).mean() for k in range(2))
        self.descend("critic", error)
        value = lambda a: jnp.minimum(*(critic(self.p["critic"], k, b.s, b.z_roll, a) for k in range(2)))
        self.policy(b, value, key_actor)
        self.average("critic")

    def policy(self, b, value, key):
        alpha = jnp.exp(self.p["log_alpha"])
        act = lambda p: pi(*gaussian(p, b.s, b.z_roll), key)
        log_prob = act(self.p["actor"])[1]
        self.descend("actor", lambda p: (alpha * act(p)[1] - value(act(p)[0])).mean())
        self.temperature(log_prob)

    def temperature(self, log_prob):
        self.descend("log_alpha", lambda x: -x * (log_prob.mean() - ACTION / 2))


def centred(z, d):
    return (z - 1 / d) * d / (d - 1)


class Metra(Reference):
    def model(self, b):
        z = b.z_roll
        if self.c.agent.discrete:
            z = centred(z, self.c.skill_dim)
        move = lambda phi: mlp(phi, b.s_next) - mlp(phi, b.s)
        spare = lambda phi: jnp.minimum(1 - (move(phi) ** 2).mean(-1), 1e-3)
        before, multiplier = spare(self.p["phi"]).mean(), jnp.exp(self.p["log_lambda"])
        self.descend("phi", lambda phi: -((move(phi) * z).sum(-1) + multiplier * spare(phi)).mean())
        self.descend("log_lambda", lambda eta: eta * before)
        return (move(self.p["phi"]) * z).sum(-1)


class Csf(Reference):
    def update(self, b, key):
        key_negatives, key_next, key_actor = jax.random.split(key, 3)
        z = b.z_roll
        d, along = self.c.skill_dim, z
        if self.c.agent.discrete:
            drawn = np.asarray(jax.random.randint(key_negatives, (256,), 0, d))
            along, negatives = centred(z, d), centred(np.eye(d, dtype=np.float32)[drawn], d)
        else:
            negatives = plain.unit(jax.random.normal(key_negatives, (256, d)))
        move = lambda phi: mlp(phi, b.s_next) - mlp(phi, b.s)
        others = lambda phi: jnp.log(jnp.exp(move(phi) @ negatives.T).sum(-1))
        self.descend("phi", lambda phi: -((move(phi) * along).sum(-1) - 5 * others(phi)).mean())
        a_next, _ = pi(*gaussian(self.p["actor"], b.s_next, z), key_next)
        psi = [critics(self.t["critic"], k, b.s_next, z, a_next) for k in range(2)]
        first = ((psi[0] * along).sum(-1) <= (psi[1] * along).sum(-1))[:, None]
        y = move(self.p["phi"]) + self.c.discount * jnp.where(first, psi[0], psi[1])
        self.descend("critic", lambda p: sum(((critics(p, k, b.s, z, b.a) - y) ** 2).mean() for k in range(2)))
        self.average("critic")
        value = lambda a: jnp.minimum(*((critics(self.p["critic"], k, b.s, z, a) * along).sum(-1) for k in range(2)))
        self.policy(b, value, key_actor)


class Diayn(Reference):
    def model(self, b):
        told = lambda p: jnp.log((jax.nn.softmax(mlp(p, b.s_next)) * b.z_roll).sum(-1)) - jnp.log(1 / self.c.skill_dim)
        self.descend("discriminator", lambda p: -told(p).mean())
        return told(self.p["discriminator"])

    def temperature(self, log_prob):
        """Fixed."""


class Cic(Reference):
    def __init__(self, config, state):
        super().__init__(config, state)
        self.vectors = [np.asarray(u) for u in state.buffers["skill_vectors"]]
        self.mean, self.s, self.n = 0.0, 1.0, 1e-4

    def model(self, b):
        names = ("state_embed", "transition_embed", "skill_embed")
        old = {name: self.p[name] for name in names}
        pairs = []
        leaves, tree = jax.tree.flatten(old["skill_embed"])
        for leaf in map(np.asarray, leaves):
            if leaf.ndim == 2:
                v = plain.unit(leaf @ self.vectors[len(pairs)])
                pairs.append((v, plain.unit(v @ leaf)))
        self.vectors = [u for _, u in pairs]

        def loss(p):
            bounded, rest = [], iter(pairs)
            for leaf in jax.tree.leaves(p["skill_embed"]):
                v, u = next(rest) if leaf.ndim == 2 else (None, None)
                bounded.append(leaf if v is None else leaf / (v @ leaf @ u))
            query = plain.unit(mlp(tree.unflatten(bounded), b.z_roll))
            seen = [mlp(p["state_embed"], s) for s in (b.s, b.s_next)]
            key = plain.unit(mlp(p["transition_embed"], *seen))
            s = jnp.exp(query @ key.T / 0.5)
            return -jnp.log(jnp.diag(s) / (jnp.maximum(s.sum(-1) - np.e**2, 1e-6) + 1e-6)).mean()

        for name in names:  # one Adam over the three, all from the old parameters
            self.descend(name, lambda p, name=name: loss(old | {name: p}))
        now, following = (np.asarray(mlp(self.p["state_embed"], s)) for s in (b.s, b.s_next))
        near = np.stack([np.sort(np.linalg.norm(g - following, axis=-1))[:16] for g in now])
        delta, total = near.mean() - self.mean, self.n + near.size
        self.s = (self.s * self.n + near.var(ddof=1) * near.size + delta**2 * self.n * near.size / total) / total
        self.mean, self.n = self.mean + delta * near.size / total, total
        return np.log(1 + np.maximum(near / self.s - 5e-4, 0).mean(-1))


@pytest.mark.parametrize(
    ("reference", "algo", "change"),
    [
        (Metra, "metra", {}),
        (Metra, "metra", {"discrete": True, "skill_dim": 4}),
        (Csf, "csf", {}),
        (Csf, "csf", {"discrete": True, "skill_dim": 4}),
        (Diayn, "diayn", {"skill_dim": 6, "initial_alpha": 0.1}),
        (Cic, "cic", {"skill_dim": 6}),
    ],
    ids=["metra", "metra-discrete", "csf", "csf-discrete", "diayn", "cic"],
)
def test_update_equals_the_plain_order(reference, algo, change):
    config = tiny(algo=algo, **change)
    agent = agents.make(config, SPEC)
    state = agent.init(jax.random.key(0))
    # With all biases 0 an embedding that is then scaled to length 1 has gradients that are rounding alone.
    moved = lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)) if leaf.ndim == 1 else leaf
    state = state.replace(params=jax.tree.map(moved, state.params))
    size = 24 if algo == "cic" else BATCH  # more than the 16 neighbours
    expected = reference(config, state)
    update = jax.jit(agent.update)
    for i in range(3):
        batch = make_batch(i, size, z=agent.skills.sample(jax.random.key(50 + i), size))
        state, metrics = update(state, batch, jax.random.key(100 + i))
        expected.update(batch, jax.random.key(100 + i))
        assert all(np.isfinite(value) for value in metrics.values())
    assert int(state.updates) == 3
    if "phi" in state.params:  # only differences of phi enter the losses: its last bias has no gradient
        for tree in (state.params, expected.p):
            tree["phi"]["params"]["Dense_0"].pop("bias")
    jax.tree.map(plain.assert_same_but_for_rounding, state.params, expected.p)
    jax.tree.map(plain.assert_same_but_for_rounding, state.targets, expected.t)
    if algo == "diayn":
        assert state.params["log_alpha"] == np.log(np.float32(0.1))
    if algo == "cic":
        moments = state.buffers["distances"]
        np.testing.assert_allclose(moments, (expected.mean, expected.s, expected.n), rtol=1e-3)
        for got, vector in zip(state.buffers["skill_vectors"], expected.vectors, strict=True):
            np.testing.assert_allclose(got, vector, atol=1e-3)


def test_csf_critic_has_a_value_for_each_dimension():
    agent = agents.make(tiny(algo="csf", skill_dim=3), SPEC)
    params = agent.init(jax.random.key(0)).params
    assert params["critic"]["params"]["Dense_0"]["kernel"].shape == (2, 16, 3) and "log_lambda" not in params


# The trainer with each agent


class Poisoned(Walk):
    """Copies that fail also return NaN observations."""

    def step(self, state, action):
        after = super().step(state, jnp.nan_to_num(action))
        return after.replace(obs=jnp.where(after.info["failed"], jnp.nan, after.obs))


@pytest.mark.parametrize("algo", ALGOS)
def test_failed_episodes_stay_out_and_resume_is_exact(algo, tmp_path):
    config = tiny(algo=algo, iterations_per_dispatch=3, **ALGOS[algo])
    built = build(config, Poisoned(fragile=True))
    agent, program = built.agent, built.program
    state, _ = program.run(program.init(jax.random.key(3)), np.int32(2))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(80, state, config)
    straight, metrics = program.run(state, np.int32(3))
    resumed, again = program.run(checkpoints.load(80, jax.eval_shape(program.init, jax.random.key(0))), np.int32(3))
    checkpoints.close()

    assert 0 < int(straight.ring.rejected.sum()) < 20 and np.isnan(straight.ring.episodes.observations).any()
    for name, values in metrics.items():
        assert np.isfinite(values).all(), name
    arrays = lambda state: jax.tree.leaves(jax.device_get(split(state)))
    for one, other in zip(arrays(straight), arrays(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    jax.tree.map(np.testing.assert_array_equal, metrics, again)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(straight.agent))

    z = agent.skills.show(jax.random.key(0), 8)
    obs = jax.random.normal(jax.random.key(1), (8, 3))
    first, second = (agent.act(straight.agent, obs, z, jax.random.key(k)) for k in (0, 1))
    assert first.shape == (8, 2) and np.abs(first).max() <= 1 and not np.array_equal(first, second)
    np.testing.assert_array_equal(*(agent.act(straight.agent, obs, z, None) for _ in range(2)))
    if agent.represent:
        assert agent.represent(straight.agent, jnp.ones((4, 3))).shape == (4, config.skill_dim)


# Learning


def learn(folder, algo: str) -> list[dict[str, float]]:
    """Rows of `train.py --env point --preset small --algo ...` after its warm-up."""
    config = parse(["--env", "point", "--preset", "small", "--algo", algo, "--out", str(folder)])
    train(config)
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    return [{name: float(value) for name, value in row.items() if value} for row in rows if row["alpha"]]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["metra", "csf"])
def test_skills_cover_twice_what_a_random_policy_does(algo, tmp_path):
    last = learn(tmp_path / algo, algo)[-1]
    assert last["coverage"] >= 2 * last["random_coverage"]


@pytest.mark.slow
def test_diayn_tells_its_skills_apart(tmp_path):
    rows = learn(tmp_path / "diayn", "diayn")
    assert rows[-1]["accuracy"] >= 5 / 50  # chance is 1 in 50
    assert rows[-1]["alpha"] == pytest.approx(0.1)


@pytest.mark.slow
def test_cic_contrastive_loss_falls(tmp_path):
    losses = [row["contrastive_loss"] for row in learn(tmp_path / "cic", "cic")]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1
