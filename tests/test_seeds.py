"""--num_seeds: whole runs side by side in one program, against the same runs one by one."""

import csv
import dataclasses

import jax
import numpy as np
import pytest
from conftest import raw_env
from trainer_helpers import Walk, build, tiny

from genda_mjx import sharding
from genda_mjx.config import UserError
from genda_mjx.runs.evaluate import evaluate
from genda_mjx.runs.folder import locate
from genda_mjx.runs.report import Progress
from genda_mjx.runs.stored import load_skills
from genda_mjx.runs.train import train


def run(config, iterations=3):
    trainer = build(config).program
    state = trainer.init(sharding.seed_keys(config))
    for _ in range(iterations):
        state, metrics = trainer.run(state, np.int32(1))
    return state, metrics


def test_seeds_side_by_side_equal_separate_runs():
    together, metrics = run(tiny(num_seeds=2, seed=3))

    def has_seeds(axis, part):
        return jax.tree.map(lambda _: axis is not None, part)

    flags = jax.tree.map(has_seeds, sharding.SEED_AXES, keyless(together), is_leaf=lambda x: x is None)
    alone, own = run(tiny(seed=4))
    leaves = [jax.tree.leaves(tree) for tree in (keyless(together), flags, keyless(alone))]
    for leaf, has_axis, wanted in zip(*leaves, strict=True):
        # Adam turns the rounding of a vanishing gradient into a step: the few updates of 1e-3 bound it.
        np.testing.assert_allclose(leaf[1] if has_axis else leaf, wanted, rtol=1e-4, atol=3e-3)
    for name, values in own.items():
        np.testing.assert_allclose(metrics[name][0, 1], values[0], rtol=1e-3, atol=1e-4, err_msg=name)
    assert not np.allclose(metrics["q"][0, 0], metrics["q"][0, 1])


def keyless(state):
    return state.replace(key=jax.random.key_data(state.key))


def test_two_axes_of_copies_step_like_one():
    """The physics joins both axes of copies into the one it works on."""
    env = raw_env("point")
    state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 6))
    action = jax.random.uniform(jax.random.key(1), (6, env.action_size), minval=-1, maxval=1)

    def fold(tree):
        return jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), tree)

    plain = jax.jit(jax.vmap(env.step))(state, action)
    nested = jax.jit(jax.vmap(jax.vmap(env.step)))(fold(state), fold(action))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), fold(plain), nested)


@pytest.mark.slow
def test_each_seed_has_its_folder_and_resumes(tmp_path):
    times = {"total_steps": 160, "checkpoint_every": 80, "eval_every": 80}
    config = tiny(algo="metra", num_seeds=2, seed=5, out=str(tmp_path / "run"), **times)
    train(config, Walk())
    straight = [(tmp_path / "run" / f"seed_{seed}" / "metrics.csv").read_text() for seed in (5, 6)]
    assert straight[0] != straight[1]
    for seed, text in zip((5, 6), straight, strict=True):
        rows = list(csv.DictReader(text.splitlines()))
        assert [row["step"] for row in rows] == ["40", "80", "120", "160"] and int(rows[-1]["coverage"]) > 0
        assert (tmp_path / "run" / f"seed_{seed}" / "plots" / "trajectories_160.png").exists()

    half = dataclasses.replace(config, out=str(tmp_path / "half"), total_steps=80)
    train(half, Walk())
    train(dataclasses.replace(half, resume=True, total_steps=160), Walk())
    assert [(tmp_path / "half" / f"seed_{seed}" / "metrics.csv").read_text() for seed in (5, 6)] == straight

    with pytest.raises(UserError, match=r"holds 2 seeds; choose one of .*seed_5"):
        locate(tmp_path / "run")
    stored = [load_skills(tmp_path / "run" / f"seed_{seed}", None, Walk(), Progress()) for seed in (5, 6)]
    kernels = [np.asarray(jax.tree.leaves(skills.state.params["actor"])[1]) for skills in stored]
    assert not np.array_equal(*kernels)
    result = evaluate(tmp_path / "run" / "seed_6", episodes=4, env=Walk())
    assert result["coverage"] > 0 and (tmp_path / "run" / "seed_6" / "eval").is_dir()
