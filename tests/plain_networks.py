"""The networks, Adam and the order of an update as plain code, to hold the agents against."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from genda_mjx import agents

OBS, ACTION, BATCH = 5, 3, 16


def make_batch(seed: int, size: int = BATCH, z: Array | None = None) -> agents.Batch:
    """Random rows; the skills are directions in the plane unless given."""
    keys = iter(jax.random.split(jax.random.key(seed), 7))
    state = lambda: jax.random.normal(next(keys), (size, OBS))
    direction = unit(jax.random.normal(next(keys), (size, 2)))
    return agents.Batch(
        s=state(),
        a=jnp.tanh(state()[:, :ACTION]),
        s_next=state(),
        s_c=state(),
        s_0=state(),
        s_T=state(),
        z_roll=direction if z is None else z,
    )


class Adam:
    """Adam of one network, as in the paper that introduced it."""

    def __init__(self, params, rate):
        self.rate, self.t = rate, 0
        self.m = jax.tree.map(jnp.zeros_like, params)
        self.v = jax.tree.map(jnp.zeros_like, params)

    def step(self, params, grads):
        self.t += 1
        self.m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.m, grads)
        self.v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, self.v, grads)
        return jax.tree.map(
            lambda p, m, v: p - self.rate * (m / (1 - 0.9**self.t)) / (jnp.sqrt(v / (1 - 0.999**self.t)) + 1e-8),
            params,
            self.m,
            self.v,
        )


def layer(p, x):
    return x @ p["kernel"] + p["bias"]


def trunk(p, x, norm=False):
    for i in range(2):
        x = jax.nn.relu(layer(p[f"Dense_{i}"], x))
        if norm:
            n = p[f"LayerNorm_{i}"]
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6) * n["scale"] + n["bias"]
    return x


def mlp(p, *x):
    return layer(p["params"]["Dense_0"], trunk(p["params"]["Trunk_0"], jnp.concatenate(x, -1)))


def gaussian(p, *x):
    mean, raw = jnp.split(mlp(p, *x), 2, axis=-1)
    return mean, -5 + 3.5 * (jnp.tanh(raw) + 1)


def critics(p, k, *x):
    """All outputs of critic k."""
    p = jax.tree.map(lambda leaf: leaf[k], p["params"])
    return layer(p["Dense_0"], trunk(p["Trunk_0"], jnp.concatenate(x, -1), norm=True))


def critic(p, k, *x):
    return critics(p, k, *x)[:, 0]


def unit(x):
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-8)


def pi(mean, log_std, key):
    u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    a = jnp.tanh(u)
    density = jax.scipy.stats.norm.logpdf(u, mean, jnp.exp(log_std)) - jnp.log(1 - a**2 + 1e-6)
    return a, density.sum(-1)


class Plain:
    """One network, one optimiser, one loss at a time."""

    def __init__(self, config, state, **rates):
        self.c, self.p, self.t = config, dict(state.params), dict(state.targets)
        self.adam = {name: Adam(value, rates.get(name, config.learning_rate)) for name, value in self.p.items()}

    def descend(self, name, loss):
        self.p[name] = self.adam[name].step(self.p[name], jax.grad(loss)(self.p[name]))

    def average(self, *names):
        for name in names:
            self.t[name] = jax.tree.map(lambda t, x: 0.995 * t + 0.005 * x, self.t[name], self.p[name])


def assert_same_but_for_rounding(got, expected):
    """Adam turns the rounding of a gradient that is nearly 0 into a step, so one element in a hundred may differ."""
    far = np.abs(np.asarray(got) - np.asarray(expected)) > 2e-5 + 2e-3 * np.abs(expected)
    assert far.sum() <= 1 + 0.01 * far.size
    np.testing.assert_allclose(got, expected, atol=2e-3)
