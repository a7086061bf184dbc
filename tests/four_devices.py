"""Data parallelism on four virtual devices; tests/test_devices.py runs this file in a process that has them."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from trainer_helpers import Walk, build, tiny

from genda_mjx import agents, checkpoint, devices, loop
from genda_mjx.agents import Batch, Sizes
from genda_mjx.config import UserError, preset

SIZES = Sizes(observation=5, action=2)
SIZE = 16  # of the batch


def test_there_are_four():
    assert devices.make_mesh().size == 4
    with pytest.raises(UserError, match="--num_devices 5, but jax sees 4"):
        devices.make_mesh(5)


def dealt(x: np.ndarray) -> np.ndarray:
    """Rows 0, 4, 8, ... first, then 1, 5, 9, ...: split in four, device d has the rows j * 4 + d."""
    return x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def random_batch(agent: agents.Agent) -> Batch:
    rng = np.random.default_rng(0)
    row = lambda size: rng.normal(size=(SIZE, size)).astype(np.float32)
    s = lambda: row(SIZES.observation)
    z = np.asarray(agent.sample_skill(jax.random.key(5), SIZE))
    return Batch(s(), np.tanh(row(SIZES.action)), s(), s(), s(), s(), z)


@pytest.mark.parametrize(
    ("algo", "changes"), [("genda", {}), ("metra", {"discrete": True}), ("csf", {}), ("diayn", {}), ("cic", {})]
)
def test_an_update_on_four_devices_is_the_update_of_the_whole_batch(algo, changes):
    """Gradients (Adam's first moments), parameters, averages, running statistics and metrics of a first update."""
    own = {name: value for name, value in vars(preset("point", "paper", algo)).items() if name == "initial_alpha"}
    config = tiny(algo=algo, batch_size=SIZE, skill_dim=4, **own, **changes)
    agent = agents.make(config, SIZES)
    batch, state = random_batch(agent), agent.init(jax.random.key(1))

    def update(state, batch):
        state, metrics = agent.update(state, batch, jax.random.key(2))
        return state, devices.average(metrics)

    mesh = devices.make_mesh()
    split = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(devices.AXIS)), out_specs=(P(), P()), check_vma=False)
    with jax.default_matmul_precision("highest"):
        alone, metrics = jax.jit(update)(state, batch)
        shared, shared_metrics = jax.jit(split)(state, jax.tree.map(dealt, batch))
    alone, shared = jax.device_get((alone, shared))
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, shared.optimizers, alone.optimizers)
    jax.tree.map(close, shared.buffers, alone.buffers)
    # Adam's first step is the sign of the gradient times the rate: it says nothing where a gradient is rounding alone.
    for group in alone.optimizers.values():
        moments = group[0].mu
        counts = lambda a, b, mu: np.testing.assert_allclose(a[mu**2 > 1e-12], b[mu**2 > 1e-12], atol=1e-5)
        jax.tree.map(counts, agents.base.pick(shared.params, moments), agents.base.pick(alone.params, moments), moments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), shared.targets, alone.targets)
    for name, value in metrics.items():
        np.testing.assert_allclose(shared_metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), alone.params["actor"], state.params["actor"])
    assert max(jax.tree.leaves(moved)) > 5e-4  # something was learned


CONFIG = tiny(num_envs=8, buffer_size=240, batch_size=16, cohorts=2, warmup_episodes=8)
RUN = dataclasses.replace(CONFIG, algo="diayn", skill_dim=4)  # compiles fastest; what is tested here is the loop


def sets(ring) -> set[bytes]:
    """The episodes of a ring, without their order."""
    leaves = jax.tree.leaves(jax.device_get(ring.episodes))
    rows = [np.ascontiguousarray(leaf).reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in leaves]
    return {b"".join(row[i].tobytes() for row in rows) for i in range(len(rows[0]))}


@pytest.fixture(scope="module")
def programs():
    return {count: build(CONFIG, Walk(), devices.make_mesh(count))[2] for count in (1, 4)}


def test_episodes_do_not_depend_on_the_number_of_devices(programs):
    """In the warm-up and in the first iteration of learning, which acts with the parameters of the start."""
    rings = {}
    for count, program in programs.items():
        state = program.init(jax.random.key(0))
        for _ in range(3):
            state, _ = program.run(state, np.int32(1))
        assert state.ring.valid.sharding.num_devices == count
        rings[count] = state.ring
    assert int(rings[4].inserted) == int(rings[1].inserted) == 8
    assert sets(rings[1]) == sets(rings[4])


def test_a_run_continues_on_another_number_of_devices(tmp_path, monkeypatch):
    """4 -> 1 -> 4 devices through the loop: nothing of the ring is lost, moved to another slot or counted twice."""
    monkeypatch.setattr(loop, "make_env", lambda name: Walk())
    run = str(tmp_path / "run")
    start = dataclasses.replace(RUN, out=run)
    steps = 40
    assert loop.Training(dataclasses.replace(start, total_steps=5 * steps, num_devices=4))()
    before = load(run, 4)
    assert loop.Training(dataclasses.replace(start, total_steps=6 * steps, num_devices=1, resume=True))()
    alone = load(run, 1)
    assert loop.Training(dataclasses.replace(start, total_steps=7 * steps, num_devices=4, resume=True))()
    after = load(run, 4)
    assert after.ring.valid.sharding.num_devices == 4
    for number, (old, new) in enumerate([(before, alone), (alone, after)]):
        slot = int(old.ring.slot)
        assert int(new.ring.inserted) == int(old.ring.inserted) + 4 == 4 * (5 + number)
        kept = [other for other in range(6) if other != slot]
        jax.tree.map(
            lambda a, b, kept=kept: np.testing.assert_array_equal(np.asarray(a)[kept], np.asarray(b)[kept]),
            old.ring.episodes, new.ring.episodes,
        )  # fmt: skip
        assert int(new.agent.updates) == int(old.agent.updates) + 4
    steps_seen = [line.split(",")[0] for line in Path(run, "metrics.csv").read_text().splitlines()[1:]]
    assert steps_seen == [str(steps * (i + 1)) for i in range(7)]


def test_a_resumed_run_on_the_same_devices_is_the_run(tmp_path, monkeypatch):
    """Cut in the middle of its episodes, a run on four devices writes the rows of one that was not cut."""
    monkeypatch.setattr(loop, "make_env", lambda name: Walk())
    part = lambda name, steps, **more: loop.Training(
        dataclasses.replace(RUN, out=str(tmp_path / name), total_steps=steps, eval_every=5 * 40, num_devices=4, **more)
    )()
    assert part("straight", 8 * 40) and part("cut", 5 * 40) and part("cut", 8 * 40, resume=True)
    straight, cut = ((tmp_path / name / "metrics.csv").read_text() for name in ("straight", "cut"))
    assert straight == cut and len(cut.splitlines()) == 1 + 8


def load(run: str, count: int):
    abstract = build(RUN, Walk(), devices.make_mesh(count))[2].abstract
    checkpoints = checkpoint.Checkpoints(Path(run), read_only=True)
    state = checkpoints.load(None, abstract)
    checkpoints.close()
    return state


def test_shares_must_be_even():
    with pytest.raises(UserError, match=r"--num_envs 6 cannot be split.* 2 cohorts on 4 devices.*such as 8.*num_dev"):
        loop.schedule.derive(dataclasses.replace(CONFIG, num_envs=6), 10, 4)
    with pytest.raises(UserError, match=r"--batch_size 6 .* 4 devices.* such as 8"):
        loop.schedule.derive(dataclasses.replace(CONFIG, batch_size=6), 10, 4)
    with pytest.raises(UserError, match="--cohorts 3 does not divide an episode's 10 steps; try 2"):
        loop.schedule.derive(dataclasses.replace(CONFIG, cohorts=3), 10, 1)
