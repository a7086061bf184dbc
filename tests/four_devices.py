"""Data parallelism on four virtual devices; tests/test_devices.py runs this file in a process that has them."""

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import raw_env
from jax.sharding import PartitionSpec as P
from trainer_helpers import Walk, build, tiny, vector_spec

from envs.pixels import Pixels
from genda_mjx import agents, devices, schedule
from genda_mjx.agents import Batch, Spec
from genda_mjx.build import batch_shapes
from genda_mjx.config import Config, UserError
from genda_mjx.presets import preset
from genda_mjx.runs.checkpoint import Checkpoints
from genda_mjx.runs.train import train

SPEC = vector_spec(observation=5, action=2)
SIZE = 16  # of the batch
PICTURES = Spec(jax.ShapeDtypeStruct((48, 48, 9), np.uint8), 2)


def test_there_are_four():
    assert devices.make_mesh().size == 4
    with pytest.raises(UserError, match="--num_devices 5, but jax sees 4"):
        devices.make_mesh(5)


def dealt(x: np.ndarray) -> np.ndarray:
    """Rows 0, 4, 8, ... first, then 1, 5, 9, ...: split in four, device d has the rows j * 4 + d."""
    return x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def random_batch(config: Config, agent: agents.Agent, spec: Spec) -> Batch:
    rng = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.dtype == np.uint8:
            return rng.integers(0, 256, leaf.shape, np.uint8)
        return rng.normal(size=leaf.shape).astype(leaf.dtype)

    batch = jax.tree.map(draw, batch_shapes(config, spec))
    return batch.replace(a=np.tanh(batch.a), z_roll=np.asarray(agent.skills.sample(jax.random.key(5), SIZE)))


@pytest.mark.parametrize(  # the slow ones exchange nothing that GenDa does not
    ("algo", "changes"),
    [
        ("genda", {}),
        ("cic", {}),
        pytest.param("metra", {"discrete": True}, marks=pytest.mark.slow),
        pytest.param("csf", {}, marks=pytest.mark.slow),
        pytest.param("diayn", {}, marks=pytest.mark.slow),
        pytest.param("genda", {"pixels": True, "pixel_size": 48, "cnn_depth": 2}, marks=pytest.mark.slow),
    ],
)
def test_an_update_on_four_devices_is_the_update_of_the_whole_batch(algo, changes):
    """Gradients (Adam's first moments), parameters, averages, running statistics and metrics of a first update."""
    own = {name: value for name, value in vars(preset("point", "paper", algo)).items() if name == "initial_alpha"}
    config = tiny(algo=algo, batch_size=SIZE, skill_dim=4, **own, **changes)
    spec = PICTURES if config.pixels else SPEC
    agent = agents.make(config, spec)
    batch, state = random_batch(config, agent, spec), agent.init(jax.random.key(1))

    def update(state, batch):
        state, metrics = agent.update(state, batch, jax.random.key(2))
        return state, devices.average(metrics)

    mesh = devices.make_mesh()
    split = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(devices.AXIS)), out_specs=(P(), P()), check_vma=False)
    with jax.default_matmul_precision("highest"):
        alone, metrics = jax.jit(update)(state, batch)
        shared, shared_metrics = jax.jit(split)(state, jax.tree.map(dealt, batch))
    alone, shared = jax.device_get((alone, shared))

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    def close_where_learned(a, b, mu):
        """Adam's first step is the sign of the gradient times the rate: nothing where that is rounding alone."""
        np.testing.assert_allclose(a[mu**2 > 1e-12], b[mu**2 > 1e-12], atol=1e-5)

    jax.tree.map(close, (shared.optimizers, shared.buffers), (alone.optimizers, alone.buffers))
    for group in alone.optimizers.values():
        moments = group[0].mu
        after = (agents.base.pick(each.params, moments) for each in (shared, alone))
        jax.tree.map(close_where_learned, *after, moments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), shared.targets, alone.targets)
    for name, value in metrics.items():
        np.testing.assert_allclose(shared_metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), alone.params["actor"], state.params["actor"])
    assert max(jax.tree.leaves(moved)) > 5e-4  # something was learned


# What is tested here is the loop: METRA compiles faster than GenDa, and one program serves all tests.
CONFIG = tiny(num_envs=8, buffer_size=240, batch_size=16, cohorts=2, warmup_episodes=8, iterations_per_dispatch=3)
CONFIG = CONFIG.replace(algo="metra")
RUN = CONFIG.replace(eval_every=5 * 40)


def episodes_by_skill(ring) -> list[np.ndarray]:
    """The leaves [episodes, ...] of a ring, in an order that does not depend on where an episode is stored.

    Every episode has its own skill; those of the two devices' rings differ by rounding, so they are not compared to the
    bit.
    """
    leaves = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in jax.tree.leaves(jax.device_get(ring.episodes))]
    held = jax.device_get(ring.valid).reshape(-1)
    skill = jax.device_get(ring.episodes.skill).reshape(len(held), -1)
    order = np.lexsort(np.round(skill[held], 3).T)
    assert len(np.unique(np.round(skill[held], 3), axis=0)) == held.sum()
    return [leaf[held][order] for leaf in leaves]


def test_episodes_do_not_depend_on_the_number_of_devices():
    """In the warm-up and in the first iteration of learning, which acts with the parameters of the start."""
    rings = {}
    for count in (1, 4):
        program = build(CONFIG, Walk(), devices.make_mesh(count)).program
        state, _ = program.run(program.init(jax.random.key(0)), np.int32(3))
        assert state.ring.valid.sharding.num_devices == count
        rings[count] = state.ring
    assert int(rings[4].inserted) == int(rings[1].inserted) == 8
    for one, four in zip(episodes_by_skill(rings[1]), episodes_by_skill(rings[4]), strict=True):
        assert len(one) == 8
        np.testing.assert_allclose(one, four, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_pictures_do_not_depend_on_the_number_of_devices():
    """Frames of the warm-up, stored as uint8 and split over four devices; the fourth iteration learns from them."""
    env = Pixels(raw_env("point"), 48)
    env.episode_length = 10
    config = CONFIG.replace(pixels=True, pixel_size=48, cnn_depth=2)
    rings = {}
    for count in (1, 4):
        program = build(config, env, devices.make_mesh(count)).program
        state, _ = program.run(program.init(jax.random.key(0)), np.int32(2))
        rings[count] = episodes_by_skill(state.ring)
        state, metrics = program.run(state, np.int32(2))
        assert np.min(state.agent.updates) > 0 and all(np.isfinite(value).all() for value in metrics.values())
        stored = state.ring.episodes.observations
        assert stored.dtype == np.uint8 and stored.sharding.num_devices == count
    for one, four in zip(rings[1], rings[4], strict=True):
        assert len(one) == 4
        np.testing.assert_allclose(one.astype(float), four.astype(float), atol=1 if one.dtype == np.uint8 else 1e-5)


def go_on(run: Path, iterations: int, num_devices: int, resume: bool = True) -> None:
    config = dataclasses.replace(RUN, out=str(run), total_steps=iterations * 40)
    assert train(dataclasses.replace(config, num_devices=num_devices, resume=resume), Walk())


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> Path:
    """A run on four devices that ends in the middle of its episodes."""
    run = tmp_path_factory.mktemp("cut") / "run"
    go_on(run, 5, 4, resume=False)
    return run


def test_a_run_continues_on_another_number_of_devices(cut, tmp_path):
    """4 -> 1 -> 4 devices through the loop: nothing of the ring is lost, moved to another slot or counted twice."""
    run = shutil.copytree(cut, tmp_path / "run")
    before = load(run, 4)
    go_on(run, 6, num_devices=1)
    alone = load(run, 1)
    go_on(run, 7, num_devices=4)
    after = load(run, 4)
    assert after.ring.valid.sharding.num_devices == 4
    for number, (old, new) in enumerate([(before, alone), (alone, after)]):
        kept = np.arange(6) != int(old.ring.slot)
        assert int(new.ring.inserted) == int(old.ring.inserted) + 4 == 4 * (5 + number)
        for a, b in zip(jax.tree.leaves(old.ring.episodes), jax.tree.leaves(new.ring.episodes), strict=True):
            np.testing.assert_array_equal(np.asarray(a)[kept], np.asarray(b)[kept])
        assert int(new.agent.updates) == int(old.agent.updates) + 4
    steps_seen = [line.split(",")[0] for line in (run / "metrics.csv").read_text().splitlines()[1:]]
    assert steps_seen == [str(40 * (i + 1)) for i in range(7)]


def test_a_resumed_run_on_the_same_devices_is_the_run(cut, tmp_path):
    """Cut in the middle of its episodes, a run on four devices writes the rows of one that was not cut."""
    run = shutil.copytree(cut, tmp_path / "run")
    go_on(run, 8, num_devices=4)
    go_on(tmp_path / "straight", 8, num_devices=4, resume=False)
    straight, resumed = ((tmp_path / name / "metrics.csv").read_text() for name in ("straight", "run"))
    assert straight == resumed and len(resumed.splitlines()) == 1 + 8


def load(run: Path, count: int):
    abstract = build(RUN, Walk(), devices.make_mesh(count)).program.abstract
    checkpoints = Checkpoints(run, read_only=True)
    state = checkpoints.load(None, abstract)
    checkpoints.close()
    return state


def test_shares_must_be_even():
    with pytest.raises(UserError, match=r"--num_envs 6 cannot be split.* 2 cohorts on 4 devices.*such as 8.*num_dev"):
        schedule.derive(dataclasses.replace(CONFIG, num_envs=6), 10, 4)
    with pytest.raises(UserError, match=r"--batch_size 6 .* 4 devices.* such as 8"):
        schedule.derive(dataclasses.replace(CONFIG, batch_size=6), 10, 4)
    with pytest.raises(UserError, match="--cohorts 3 does not divide an episode's 10 steps; try 2"):
        schedule.derive(dataclasses.replace(CONFIG, cohorts=3), 10, 1)
