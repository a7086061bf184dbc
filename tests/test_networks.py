"""Networks against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trainer_helpers import tiny, vector_spec

from genda_mjx import agents, networks


def dense(layer, x):
    return x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)


def test_critics_are_independent_and_normalise_after_the_activation():
    net = networks.twin_critic(8)
    x = np.random.default_rng(0).normal(size=(5, 3))
    params = net.init(jax.random.key(0), jnp.asarray(x))
    got = net.apply(params, jnp.asarray(x))
    assert got.shape == (2, 5, 1)
    for k in range(2):
        p = jax.tree.map(lambda leaf, k=k: np.asarray(leaf[k], np.float64), params["params"])
        h = x
        for i in range(2):
            h = np.maximum(dense(p["Trunk_0"][f"Dense_{i}"], h), 0)
            norm = p["Trunk_0"][f"LayerNorm_{i}"]
            h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6) * norm["scale"] + norm[
                "bias"
            ]
        np.testing.assert_allclose(got[k], dense(p["Dense_0"], h), rtol=1e-4, atol=1e-5)
    assert not np.allclose(got[0], got[1])


def test_gaussian_heads_and_range_of_the_log_std():
    net = networks.Gaussian(8, 3)
    x = np.random.default_rng(0).normal(size=(5, 4))
    params = net.init(jax.random.key(0), jnp.asarray(x))
    mean, log_std = net.apply(params, jnp.asarray(x))
    h = x
    for i in range(2):
        h = np.maximum(dense(params["params"]["Trunk_0"][f"Dense_{i}"], h), 0)
    heads = dense(params["params"]["Dense_0"], h)
    np.testing.assert_allclose(mean, heads[:, :3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_std, -5 + 3.5 * (np.tanh(heads[:, 3:]) + 1), rtol=1e-4, atol=1e-5)
    _, extreme = net.apply(params, 1e6 * jnp.asarray(x))
    assert extreme.min() >= -5 and extreme.max() <= 2


def test_initialisers_are_the_official_ones():
    width = 400
    phi = networks.MLP(width, 2).init(jax.random.key(0), jnp.zeros((1, width)))["params"]
    hidden = np.asarray(phi["Trunk_0"]["Dense_1"]["kernel"])
    assert np.abs(hidden).max() <= np.sqrt(6 / (2 * width)) and hidden.std() == pytest.approx(
        1 / np.sqrt(width), rel=0.02
    )
    encoder = networks.Gaussian(width, 5, networks.LECUN).init(jax.random.key(0), jnp.zeros((1, width)))["params"]
    hidden = np.asarray(encoder["Trunk_0"]["Dense_1"]["kernel"])
    assert np.abs(hidden).max() > np.sqrt(6 / (2 * width))  # a (truncated) normal reaches further than the uniform
    assert np.asarray(encoder["Dense_0"]["kernel"]).std() == pytest.approx(1 / np.sqrt(width), rel=0.05)


def test_the_cib_is_lecun_throughout():
    """Encoder and decoder of GenDa alone; a uniform of Xavier's would stay within its bound."""
    width = 400
    agent = agents.make(tiny(hidden=width), vector_spec(width, 2))
    params = agent.init(jax.random.key(0)).params
    largest = {
        name: np.abs(params[name]["params"]["Trunk_0"]["Dense_1"]["kernel"]).max()
        for name in ("encoder", "decoder", "phi")
    }
    bound = np.sqrt(6 / (2 * width))
    assert largest["encoder"] > bound and largest["decoder"] > bound and largest["phi"] <= bound


def test_log_probability_is_the_density_of_the_squashed_action():
    mean, log_std = jnp.array([[0.3, -0.2]]), jnp.array([[-0.4, 0.5]])
    actions, log_prob = jax.vmap(lambda k: networks.sample_tanh_gaussian(mean, log_std, k))(
        jax.random.split(jax.random.key(0), 2000)
    )
    a = np.asarray(actions, np.float64)[:, 0]
    u, std = np.arctanh(a), np.exp(np.asarray(log_std))
    normal = np.exp(-0.5 * ((u - np.asarray(mean)) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    inside = (np.abs(a) < 0.99).all(-1)  # beyond, the official 1e-6 in the logarithm shows
    expected = np.log(normal / (1 - a**2)).sum(-1)
    np.testing.assert_allclose(np.asarray(log_prob)[inside, 0], expected[inside], atol=2e-3)
    assert u[:, 0].mean() == pytest.approx(0.3, abs=0.05) and u[:, 1].std() == pytest.approx(np.exp(0.5), rel=0.05)


def test_bf16_keeps_float32_parameters_and_outputs():
    net = networks.MLP(16, 2, jnp.bfloat16)
    params = net.init(jax.random.key(0), jnp.ones((1, 4)))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    x = jax.random.normal(jax.random.key(1), (6, 4))
    rough, exact = net.apply(params, x), networks.MLP(16, 2).apply(params, x)
    assert rough.dtype == jnp.float32
    assert 0 < jnp.abs(rough - exact).max() < 0.05
