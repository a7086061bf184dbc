"""The kitchen: its model, its control against C MuJoCo, its six tasks. More in benchmarks/kitchen.py."""

import json

import jax
import mujoco
import numpy as np
import pytest
from conftest import raw_env
from scipy.spatial.transform import Rotation

from benchmarks import kitchen as bench
from benchmarks._kitchen_c import KitchenInC
from envs import kitchen, kitchen_model
from genda_mjx.agents import representation
from genda_mjx.agents.base import Spec
from genda_mjx.config import UserError
from genda_mjx.presets import preset
from genda_mjx.runs.evaluate import evaluate

COPIES = 4


def test_bodies_joints_and_inertias_are_the_stock_ones():
    model, stock = raw_env("kitchen").model, kitchen_model.stock_spec().compile()
    assert (model.nq, model.nv, model.nu) == (25, 24, 9) and model.neq == 1
    assert sum(grid.pairs for grid in raw_env("kitchen").physics_model.nearest.grids) == 1257
    for row in range(1, model.nbody):
        body = model.body(row)
        if body.name:
            other = stock.body(body.name)
            for field in ("mass", "inertia", "ipos", "pos", "quat"):
                np.testing.assert_allclose(getattr(body, field), getattr(other, field), atol=1e-9)
    for row in range(model.njnt):
        joint = model.joint(row)
        other = stock.joint(joint.name)
        for field in ("range", "damping", "armature", "frictionloss", "axis"):
            np.testing.assert_array_equal(getattr(joint, field), getattr(other, field))


def test_agent_steps_are_those_of_c():
    """Four agent steps of LEXA's control on the reduced model: the first hand and fingers, the kettle settling."""
    env, c = raw_env("kitchen"), KitchenInC.reduced()
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (4, COPIES, 7)).astype(np.float32)  # some are clipped
    state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), COPIES))
    step, paths = jax.jit(jax.vmap(env.step)), [state.pipeline_state]
    for action in actions:
        state = step(state, action)
        paths.append(state.pipeline_state)
    for copy in range(COPIES):
        c.reset()
        np.testing.assert_allclose(paths[0].physics.qpos[copy], c.data.qpos, atol=1e-6)
        for number, action in enumerate(actions[:, copy]):
            c.step(action)
            np.testing.assert_allclose(paths[number + 1].physics.qpos[copy], c.data.qpos, atol=2e-4)
            np.testing.assert_allclose(paths[number + 1].sensors[copy, :3], c.hand, atol=2e-4)
    np.testing.assert_allclose(state.info["position"], paths[-1].sensors[:, :3])
    arm, others = np.split(np.asarray(paths[-1].physics.qpos), [7], axis=1)
    np.testing.assert_allclose(state.obs[:, 3:], np.concatenate([others, arm], axis=1), atol=1e-6)
    assert not state.info["failed"].any() and (env.action_size, env.episode_length, env.dt) == (7, 50, 0.08)


def test_phi_sees_hand_and_objects_and_not_the_joints_of_the_arm():
    phi = representation.network(preset("kitchen", "small"), Spec.of(raw_env("kitchen")))
    obs = jax.random.normal(jax.random.key(0), (2, 28))
    seen = phi.init_with_output(jax.random.key(1), obs)[0]
    other_arm = phi.init_with_output(jax.random.key(1), obs.at[:, 21:].add(1))[0]
    other_kettle = phi.init_with_output(jax.random.key(1), obs.at[:, 14].add(1))[0]
    np.testing.assert_array_equal(seen, other_arm)
    assert (seen != other_kettle).all()


def test_euler_angles_are_turns_about_z_y_and_z():
    quats = np.random.default_rng(0).standard_normal((4, 50))
    quats /= np.linalg.norm(quats, axis=0)
    angles = np.asarray(kitchen.to_euler(quats))
    np.testing.assert_allclose(kitchen.from_euler(angles), quats, atol=2e-6)
    expected = Rotation.from_quat(quats[[1, 2, 3, 0]].T).as_matrix()
    np.testing.assert_allclose(Rotation.from_euler("ZYZ", angles.T).as_matrix(), expected, atol=5e-6)


@pytest.mark.parametrize(
    ("joint", "inside", "outside", "task"),
    [
        ("knob_Joint_1", -0.4, -0.3, "bottom_burner"),
        ("light_switch", -0.3, -0.2, "light_switch"),
        ("slide_cabinet", 0.28, 0.26, "slide_cabinet"),
        ("right_hinge_cabinet", 0.69, 0.71, "hinge_cabinet"),
        ("microwave", -0.31, -0.29, "microwave"),
    ],
)
def test_tasks_have_lexas_thresholds(joint, inside, outside, task):
    """One of two episodes does it for one step."""
    env = raw_env("kitchen")
    place = env.model.joint(joint).qposadr[0]
    qpos = np.tile(env.bank.qpos[0], (2, 51, 1))
    assert env.measure({"qpos": qpos}) == {"tasks": 0} | dict.fromkeys((*kitchen.TASKS, "kettle"), 0.0)
    qpos[:, 20, place] = outside
    assert env.measure({"qpos": qpos})["tasks"] == 0
    qpos[1, 20, place] = inside
    found = env.measure({"qpos": qpos})
    assert next(iter(found)) == env.headline == "tasks" and found["tasks"] == 1 and found[task] == 0.5


def test_the_kettle_counts_near_its_goal():
    env = raw_env("kitchen")
    qpos = np.tile(env.bank.qpos[0], (1, 51, 1))
    place = env.model.joint("kettle").qposadr[0]
    qpos[0, -1, place : place + 2] = (-0.23 + 0.15, 0.75 - 0.15)
    assert env.measure({"qpos": qpos})["tasks"] == 0
    qpos[0, -1, place : place + 2] = (-0.23 + 0.13, 0.75 - 0.13)
    assert env.measure({"qpos": qpos})["kettle"] == 1


def test_presets_are_the_papers():
    paper = preset("kitchen", "paper")
    assert (paper.num_envs, paper.skill_dim, paper.agent.cib_dim, paper.buffer_size) == (8, 10, 2048, 300_000)
    assert paper.num_envs * 50 * paper.utd == 50  # updates after eight episodes
    for algo in ("metra", "csf"):
        listed = preset("kitchen", "paper", algo)
        assert listed.agent.discrete and listed.skill_dim == 24
    assert preset("point", "paper", "metra").agent.discrete is False


@pytest.mark.slow
def test_one_step_errors_and_scripts():
    """The figures of envs/README.md: 99 % of the velocity errors against C, and the tasks that C stock does."""
    errors, touched = bench.one_step_errors(episodes=4)
    assert touched.any(0).all() and np.quantile(errors, 0.99) < 1e-3
    stored = json.loads(bench.SCRIPTS.read_text())
    actions = np.array([np.concatenate([a, np.zeros((50 - len(a), 7))]) for a in stored.values()])
    _, ours = bench.Ours().episodes(actions)
    c = KitchenInC.stock()
    for number, task in enumerate(stored):
        assert c.episode(actions[number])[1][task] and ours[task][number], task


def test_models_without_the_package_say_what_to_install(monkeypatch):
    monkeypatch.setattr(kitchen_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="gymnasium-robotics"):
        kitchen_model.stock_spec()


def test_moved_starts_are_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text(preset("kitchen", "small").to_json())
    with pytest.raises(UserError, match="starts of kitchen cannot be moved"):
        evaluate(tmp_path, offset=(1.0, 0.0))


def test_a_weld_pulls_the_hand_in_both_models():
    for spec in (kitchen_model.stock_spec(), kitchen_model.reduced_spec()):
        model = spec.compile()
        (weld,) = np.flatnonzero(model.eq_type == mujoco.mjtEq.mjEQ_WELD)
        assert model.body(model.eq_obj2id[weld]).name == kitchen_model.HAND
