"""Pixels: what the camera shows, networks for pictures against plain ones, and whole runs on a body that is filmed."""

import csv
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import raw_env
from plain_networks import ACTION, Adam, gaussian, layer, mlp, pi, trunk, unit
from test_checkpoint import assert_same_run
from trainer_helpers import Walk, build, tiny

import envs
from envs import render
from envs.pixels import Pixels, filmed
from envs.tasks import goals
from genda_mjx import agents, convolutions, devices, encoders, evaluate, networks
from genda_mjx import build as assembly
from genda_mjx.agents import Batch, Spec
from genda_mjx.config import UserError, validate
from genda_mjx.downstream import controller
from genda_mjx.downstream import program as downstream
from genda_mjx.presets import preset
from genda_mjx.runs.evaluate import evaluate as look
from genda_mjx.runs.train import train

SIDE, DEPTH, CONTRAST = 48, 2, 3.0
SPEC = Spec(jax.ShapeDtypeStruct((SIDE, SIDE, 9), jnp.uint8), ACTION)


class Short(Pixels):
    """The point in small pictures and short episodes."""

    def __init__(self, body, floor="paper", steps=8):
        super().__init__(body, SIDE, floor)
        self.episode_length = steps


@pytest.fixture(scope="module")
def point() -> Short:
    return Short(raw_env("point"))


def small(**changes):
    options = {"pixels": True, "pixel_size": SIDE, "cnn_depth": DEPTH, "buffer_size": 128, "total_steps": 160}
    return tiny(**(options | changes))


# What an agent sees


def test_an_observation_is_the_last_three_frames_and_the_replay_keeps_one(point):
    drawn = jax.jit(lambda qpos: render.draw(point.scene, *render.poses(point.body, qpos)))

    def picture(state):
        return np.asarray(drawn(state.pipeline_state.pipeline_state.physics.qpos))

    state = jax.jit(point.reset)(jax.random.key(0))
    assert state.obs.shape == (SIDE, SIDE, 9) and state.obs.dtype == np.uint8
    shown = [picture(state)] * 3
    step = jax.jit(point.step)
    for _ in range(4):
        np.testing.assert_array_equal(state.obs, np.concatenate(shown[-3:], -1))
        np.testing.assert_array_equal(point.stored(state), shown[-1])
        state = step(state, jnp.ones(2))
        shown.append(picture(state))
    assert np.abs(shown[-1].astype(int) - shown[0]).max() > 0  # it has moved
    body = state.pipeline_state
    np.testing.assert_array_equal(state.info["position"], body.info["position"])
    assert point.trace(state).keys() == point.body.trace(body).keys() == {"position", "qpos"}


def test_a_place_can_be_read_from_the_floor_and_floors_differ(point):
    """Pictures at two places differ on the paper's floor and on gradation; on one colour, not beyond rounding."""
    far = {}
    for floor in render.FLOORS:
        env = Short(point.body, floor)
        near, away = (jax.jit(env.reset_at)(jax.random.key(0), jnp.array(xy)) for xy in ((0.0, 0.0), (20.0, 10.0)))
        far[floor] = np.abs(near.obs.astype(int) - away.obs).mean()
    assert far["paper"] > 10 and far["gradation"] > 10 and far["unicolor"] < 1
    with pytest.raises(ValueError, match=r"'green'.*paper, unicolor, gradation"):
        Short(point.body, "green")


# Networks


def plain_convolution(x, p):
    """Four nested loops."""
    kernel, bias = np.asarray(p["kernel"]), np.asarray(p["bias"])
    size = (x.shape[1] - 4) // 2 + 1
    out = np.zeros((len(x), size, size, kernel.shape[-1]), np.float32)
    for i in range(size):
        for j in range(size):
            window = x[:, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4]
            out[:, i, j] = np.tensordot(window, kernel, 3) + bias
    return np.where(out > 0, out, np.expm1(np.minimum(out, 0)))


def test_four_convolutions_are_the_papers():
    net = encoders.Convolutions(encoders.Eye(DEPTH), jnp.float32)
    picture = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 9), np.uint8)
    params = jax.jit(net.init)(jax.random.key(0), picture)
    x = picture.astype(np.float32) / 255
    for i in range(4):
        x = plain_convolution(x, params["params"][f"Convolution_{i}"])
    assert x.shape == (2, 2, 2, 8 * DEPTH)
    np.testing.assert_allclose(net.apply(params, picture), x.reshape(2, -1), atol=2e-5)
    paper = jax.eval_shape(encoders.Convolutions(encoders.PAPER, jnp.float32).init, jax.random.key(0), picture)
    assert [leaf["kernel"].shape[-1] for leaf in paper["params"].values()] == [48, 96, 192, 384]


def gradients(convolve):
    """Of the sum of squares, with respect to picture and kernel."""
    return jax.grad(lambda x, kernel: (convolve(x, kernel) ** 2).sum(), (0, 1))


def dilated(x, kernel):
    """XLA's own transposed convolution."""
    kernel = jnp.flip(kernel, (0, 1))
    return jax.lax.conv_transpose(x, kernel, (2, 2), "VALID", dimension_numbers=convolutions.LAYOUT)


def close(got, expected):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, atol=1e-5 * scale)


@pytest.mark.parametrize("size", [4, 6])
def test_convolutions_and_their_gradients_are_xlas_own_also_under_vmap(size):
    x, picture = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate(((3, 5, 5, 4), (3, 12, 12, 4))))
    kernels = jax.random.normal(jax.random.key(2), (2, size, size, 4, 6))

    @jax.jit
    def both(x, picture, kernels):
        mine = [(x, convolutions.up, dilated), (picture, convolutions.down, convolutions._plain)]
        got = [
            (jax.vmap(fn, (None, 0))(x, kernels), jax.vmap(gradients(fn), (None, 0))(x, kernels)) for x, fn, _ in mine
        ]
        one = [[(fn(x, k), gradients(fn)(x, k)) for k in kernels] for x, _, fn in mine]
        return got, [jax.tree.map(lambda *leaves: jnp.stack(leaves), *each) for each in one]

    got, expected = both(x, picture, kernels)
    assert got[0][0].shape == (2, 3, 8 + size, 8 + size, 6)
    jax.tree.map(close, got, expected)


@pytest.mark.parametrize("side", [48, 64, 80])
def test_a_decoder_returns_as_many_pixels(side):
    leaves = (jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((side, side, 9), jnp.uint8))
    net = networks.Decoder(8, leaves, eye=encoders.Eye(DEPTH))
    vector, picture = jax.eval_shape(lambda k: net.init_with_output(k, jnp.zeros((2, 5)))[0], jax.random.key(0))
    assert vector.shape == (2, 3) and picture.shape == (2, side, side, 9) and picture.dtype == jnp.float32


# An update against plain code: the order of the official code, one network and one optimiser at a time.


def elu(x):
    return jnp.where(x > 0, x, jnp.expm1(jnp.minimum(x, 0)))


def down(p, s):
    x = 0.5 + CONTRAST * (s.astype(jnp.float32) / 255 - 0.5)
    for i in range(4):
        one = p[f"Convolution_{i}"]
        x = jax.lax.conv_general_dilated(x, one["kernel"], (2, 2), "VALID", dimension_numbers=convolutions.LAYOUT)
        x = elu(x + one["bias"])
    return x.reshape(len(x), -1)


def features(p, x):
    """What a network's trunk sees of its inputs."""
    joined = p["Trunk_0"].get("Join_0")
    parts = [down(joined["Convolutions_0"], each) if each.dtype == jnp.uint8 else each for each in x]
    return jnp.concatenate(parts, -1)


def see(net, p, *x):
    return net(p, features(p["params"], x))


def critic(p, k, *x):
    p = jax.tree.map(lambda leaf: leaf[k], p["params"])
    return layer(p["Dense_0"], trunk(p["Trunk_0"], features(p, x), norm=True))[:, 0]


def decode(p, *x):
    p = p["params"]
    picture = p["TransposedConvolutions_0"]
    h = elu(layer(picture["Dense_0"], trunk(p["Trunk_0"], jnp.concatenate(x, -1))))
    h = h.reshape(-1, 1, 1, 8 * DEPTH)
    for i in range(4):
        one = picture[f"Convolution_{i}"]
        kernel = jnp.flip(one["kernel"], (0, 1))
        h = jax.lax.conv_transpose(h, kernel, (2, 2), "VALID", dimension_numbers=convolutions.LAYOUT) + one["bias"]
        h = elu(h) if i < 3 else h
    return h


def pictures_batch(seed: int, size: int) -> Batch:
    rng = np.random.default_rng(seed)
    s = [jnp.asarray(rng.integers(0, 256, (size, SIDE, SIDE, 9), np.uint8)) for _ in range(5)]
    a, z = np.tanh(rng.normal(size=(size, ACTION))), unit(jnp.asarray(rng.normal(size=(size, 2)), jnp.float32))
    return Batch(s[0], jnp.asarray(a, jnp.float32), *s[1:], z)


def reference_gradients(config, state, b, key):
    """Gradients of one update by network, each taken where the official code takes it."""
    _, key_cib, key_next, key_actor, _ = jax.random.split(key, 5)
    p, old, found = dict(state.params), state.params, {}

    def descend(name, loss):
        found[name] = jax.grad(loss)(old[name])
        p[name] = Adam(old[name], config.learning_rate).step(old[name], found[name])

    phi = lambda q, s: see(mlp, q, s)
    noise = jax.random.normal(key_cib, (len(b.a), config.agent.cib_dim))

    def cib_loss(encoder, decoder):
        mean, log_std = see(gaussian, encoder, b.s)
        decoded = decode(decoder, phi(old["phi"], b.s), mean + jnp.exp(log_std) * noise)
        kl = 0.5 * (jnp.exp(log_std) ** 2 + mean**2 - 1 - 2 * log_std).sum(-1).mean()
        return ((decoded - b.s / 255.0) ** 2).sum((1, 2, 3)).mean() + 0.1 * kl

    descend("encoder", lambda q: cib_loss(q, old["decoder"]))
    descend("decoder", lambda q: cib_loss(old["encoder"], q))
    z = b.z_roll

    def phi_loss(q):
        step = phi(q, b.s_next) - phi(q, b.s)
        slack = jnp.minimum(1 - (step**2).mean(-1), 1e-3)
        return -((step * z).sum(-1) + jnp.exp(old["log_lambda"]) * slack).mean()

    descend("phi", phi_loss)
    seen, seen_next = (see(gaussian, p["encoder"], s)[0] for s in (b.s, b.s_next))
    alpha = jnp.exp(old["log_alpha"])
    a_next, log_next = pi(*gaussian(old["actor"], seen_next, z), key_next)
    reward = ((phi(p["phi"], b.s_next) - phi(p["phi"], b.s)) * z).sum(-1)
    least = jnp.minimum(*(critic(state.targets["critic"], k, b.s_next, z, a_next) for k in range(2)))
    y = reward + config.discount * (least - alpha * log_next)
    descend("critic", lambda q: sum(((critic(q, k, b.s, z, b.a) - y) ** 2).mean() for k in range(2)) / 4)

    def actor_loss(q):
        a, log_prob = pi(*gaussian(q, seen, z), key_actor)
        return (alpha * log_prob - jnp.minimum(*(critic(p["critic"], k, b.s, z, a) for k in range(2)))).mean()

    descend("actor", actor_loss)
    return found


def test_an_update_on_pixels_equals_the_plain_one():
    """Adam's first moment after a first update is a tenth of the gradient; of steps, the sign alone would be left."""
    config = small(no_relabel=True, initial_lambda=30.0, batch_size=6, contrast=CONTRAST)
    agent = agents.make(config, SPEC)
    state, batch, key = jax.jit(agent.init)(jax.random.key(0)), pictures_batch(0, 6), jax.random.key(7)
    expected = jax.jit(lambda: reference_gradients(config, state, batch, key))()
    after, metrics = jax.jit(agent.update)(state, batch, key)
    assert all(np.isfinite(value) for value in metrics.values())
    moments = {name: group[0].mu for name, group in after.optimizers.items()}
    moments = {**moments["model"], **moments["critic"], **moments["actor"]}
    for name in ("encoder", "decoder", "phi", "critic", "actor"):
        scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected[name]))
        assert scale > 1e-4, name

        def same(moment, gradient, scale=scale):
            np.testing.assert_allclose(10 * moment, gradient, rtol=2e-3, atol=1e-4 * scale)

        jax.tree.map(same, moments[name], expected[name])


# Whole runs


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["genda", "metra", "csf", "diayn", "cic"])
def test_every_agent_learns_from_pixels(point, algo):
    """Cohorts and seeds ride along with one agent each."""
    more = {"cohorts": 2} if algo == "cic" else {"num_seeds": 2} if algo == "metra" else {}
    built = build(small(algo=algo, skill_dim=3, num_envs=4, **more), point)
    keys = jax.random.split(jax.random.key(0)) if more.get("num_seeds") else jax.random.key(0)
    state, metrics = built.program.run(built.program.init(keys), np.int32(1))
    for _ in range(2):
        state, metrics = built.program.run(state, np.int32(1))
    assert np.min(state.agent.updates) > 0
    assert all(np.isfinite(value).all() for value in metrics.values())
    stored = state.ring.episodes.observations
    assert stored.dtype == np.uint8 and stored.shape[-4:] == (9, SIDE, SIDE, 3)
    if more.get("num_seeds"):
        return
    run = evaluate.compile(point, built.agent, 3, built.program.abstract.agent)
    episodes = run(state.agent, evaluate.evaluation_key(0, 1), np.zeros(2, np.float32), np.False_)
    assert episodes.traces["position"].shape == (3, 9, 2)
    assert algo == "cic" or np.isfinite(episodes.latents).all()


@pytest.mark.slow
def test_a_resumed_run_equals_a_straight_one_and_is_shown_on_other_floors(point, tmp_path):
    def run(name, **changes):  # diayn compiles fastest; what is tested is the loop
        assert train(small(out=str(tmp_path / name), eval_episodes=3, algo="diayn", **changes), point)
        return tmp_path / name

    straight = run("straight")
    run("parts", total_steps=96)
    parts = run("parts", resume=True)
    rows = [list(csv.DictReader((folder / "metrics.csv").open())) for folder in (straight, parts)]
    assert [row["critic_loss"] for row in rows[0]] == [row["critic_loss"] for row in rows[1]]
    (parts / "metrics.csv").write_bytes((straight / "metrics.csv").read_bytes())  # the first part evaluated at its end
    assert_same_run(straight, parts, point)

    found = {}
    for floor in (None, "unicolor"):
        env = Short(point.body, floor or "paper")
        found[floor] = look(straight, episodes=3, floor=floor, env=env)
    assert found[None]["floor"] == "paper" and found["unicolor"]["floor"] == "unicolor"
    assert (straight / "eval" / "result_160.json").exists() and (
        straight / "eval" / "result_160_unicolor.json"
    ).exists()
    assert found[None]["mean_distance"] != found["unicolor"]["mean_distance"]  # the floor reaches the policy


@pytest.mark.slow
def test_a_controller_learns_over_skills_that_see_pixels(point):
    task = filmed(goals.make("point", "fs_rg", horizon=4), SIDE)
    short = {"skill_steps": 2, "num_episodes": 2, "macro_steps": 12, "warmup_episodes": 2, "eval_episodes": 2}
    config = controller.ControllerConfig(**short, gradient_steps=2, batch_size=4, hidden=8, cnn_depth=DEPTH)
    skills = agents.make(small(), Spec.of(point))
    plan = downstream.schedule(config, task.horizon)
    seen = (task.env.observation_spec, jax.ShapeDtypeStruct((2,), jnp.float32))
    own = controller.make(config, skills, seen)
    program, frozen = downstream.make(config, plan, task, skills, own), jax.jit(skills.init)(jax.random.key(1))
    state = program.init(jax.random.key(0))
    for _ in range(plan.iterations):
        state, metrics = program.iterate(state, frozen)
    assert int(state.agent.updates) > 0 and np.isfinite(metrics["critic_loss"])
    assert state.ring.episodes.observations.dtype == np.uint8
    played = program.evaluate(state.agent, frozen, jax.random.key(2))
    assert played.path.shape == (2, 5, 2) and not played.failed.any()


# Presets and mistakes


def test_presets():
    paper = preset("quadruped", "paper", pixels=True)
    assert (paper.num_envs, paper.utd, paper.batch_size, paper.buffer_size) == (4, 0.25, 256, 300_000)
    assert (paper.pixel_size, paper.cnn_depth, paper.agent.cib_dim, paper.agent.beta) == (64, 48, 2048, 1.0)
    assert preset("quadruped", "paper", "metra", pixels=True).skill_dim == 4
    assert preset("quadruped", "paper") == dataclasses.replace(preset("quadruped", "paper"), pixels=False)
    for name in ("paper", "small", "accelerator"):
        validate(preset("point", name, pixels=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pixels": True, "pixel_size": 50}, r"--pixel_size 50 .* multiple of 16 and at least 48, such as 48"),
        ({"pixels": True, "pixel_size": 32}, r"--pixel_size 32 .* such as 48"),
        ({"pixels": True, "cnn_depth": 0}, "--cnn_depth is 0"),
        ({"floor": "unicolor"}, "--floor unicolor is an option of pictures; add --pixels"),
        ({"cnn_depth": 8}, "--cnn_depth 8 .* add --pixels"),
        ({"contrast": 2.0}, r"--contrast 2.0 .* add --pixels"),
        ({"pixels": True, "contrast": 0.0}, r"--contrast is 0.0; it must be greater than 0"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(changes, words):
    with pytest.raises(UserError, match=words):
        validate(tiny(**changes))


def test_a_body_without_a_camera_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(envs.body_class("fish"), "camera", None)
    with pytest.raises(UserError, match=r"--pixels: fish has no camera.*point, quadruped, humanoid, dog"):
        assembly.check(small(env="fish", total_steps=10_000), mesh=devices.make_mesh(1))


def test_floors_belong_to_pixels(tmp_path):
    train(tiny(out=str(tmp_path / "run"), total_steps=80, algo="diayn", skill_dim=4), Walk())
    with pytest.raises(UserError, match=r"--floor unicolor: the run in .* sees no floor"):
        look(tmp_path / "run", floor="unicolor", env=Walk())
