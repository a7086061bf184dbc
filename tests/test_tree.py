"""The level-free tree stages against MJX's own, and against C MuJoCo for the body MJX cannot compile in time (dog)."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from conftest import raw_env
from mujoco.mjx._src import smooth

import envs
from envs.physics import dynamics, tree
from envs.physics.vectors import Vec, cross

COPIES = 3


def random_states(env: envs.SkillEnv) -> tuple[np.ndarray, np.ndarray]:
    """qpos, qvel [COPIES, ...]: start states with every joint and velocity disturbed."""
    rng = np.random.default_rng(0)
    qpos = env.bank.qpos[:COPIES] + 0.1 * rng.standard_normal((COPIES, env.model.nq))
    return qpos.astype(np.float32), rng.standard_normal((COPIES, env.model.nv)).astype(np.float32)


def ours(env: envs.SkillEnv, qpos: np.ndarray, qvel: np.ndarray) -> dict[str, np.ndarray]:
    """Our quantities, copies first, laid out as MuJoCo lays them out."""
    model, t = env.model, env.physics_model.tree

    @jax.jit
    def run(qpos, qvel):
        poses = tree.kinematics(t, qpos)
        motion = dynamics.spatial_motion(t, poses, qvel)
        rows = lambda vec: jnp.moveaxis(jnp.stack(vec, 1), -1, 0)  # [N, k, components]
        geom_pos, geom_mat = tree.attached(t, poses, model.geom_bodyid, model.geom_pos, model.geom_quat)
        flat = lambda mat: Vec(entry for row in mat for entry in row)
        return {
            "qpos": poses.qpos.T,
            "xpos": rows(poses.pos),
            "xmat": rows(flat(poses.mat)),
            "xanchor": rows(poses.anchor),
            "xaxis": rows(poses.axis),
            "geom_xpos": rows(geom_pos),
            "geom_xmat": rows(flat(geom_mat)),
            "com": jnp.stack(poses.com, -1),
            "cinert": rows(motion.cinert),
            "cdof": rows(motion.cdof),
            "cvel": rows(motion.cvel),
            "cdof_dot": rows(motion.cdof_dot),
            "M": dynamics.inertia_matrix(t, motion),
            "qfrc_bias": dynamics.bias_force(t, motion, qvel).T,
            "linvel": jnp.stack(dynamics.subtree_velocity(t, poses, motion, t.root), -1),
        }

    with jax.default_matmul_precision("highest"):
        return {key: np.asarray(value) for key, value in run(qpos.T, qvel.T).items()}


def from_mjx(env: envs.SkillEnv, qpos: np.ndarray, qvel: np.ndarray) -> dict[str, np.ndarray]:
    m = env.physics_model.mjx_model

    @jax.jit
    @jax.vmap
    def run(qpos, qvel):
        d = env.physics_model.mjx_data.replace(qpos=qpos, qvel=qvel)
        for stage in (smooth.kinematics, smooth.com_pos, smooth.crb, smooth.com_vel, smooth.rne, smooth.subtree_vel):
            d = stage(m, d)
        root = env.physics_model.tree.root
        return {
            "qpos": d.qpos,
            "xpos": d.xpos,
            "xmat": d.xmat.reshape(-1, 9),
            "xanchor": d.xanchor,
            "xaxis": d.xaxis,
            "geom_xpos": d.geom_xpos,
            "geom_xmat": d.geom_xmat.reshape(-1, 9),
            "com": d.subtree_com[root],
            "cinert": d._impl.cinert,
            "cdof": d.cdof,
            "cvel": d.cvel,
            "cdof_dot": d.cdof_dot,
            "M": d._impl.M,
            "qfrc_bias": d.qfrc_bias,
            "linvel": d._impl.subtree_linvel[root],
        }

    return {key: np.asarray(value) for key, value in run(qpos, qvel).items()}


def from_c(env: envs.SkillEnv, qpos: np.ndarray, qvel: np.ndarray) -> dict[str, np.ndarray]:
    model, rows = env.model, []
    for q, v in zip(qpos, qvel, strict=True):
        d = mujoco.MjData(model)
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mj_forward(model, d)
        mujoco.mj_subtreeVel(model, d)
        inertia = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, d, inertia)
        root = env.physics_model.tree.root
        keys = (
            "qpos",
            "xpos",
            "xmat",
            "xanchor",
            "xaxis",
            "geom_xpos",
            "geom_xmat",
            "cinert",
            "cdof",
            "cvel",
            "cdof_dot",
        )
        rows.append(
            {k: getattr(d, k).copy() for k in keys}
            | {
                "M": inertia,
                "qfrc_bias": d.qfrc_bias.copy(),
                "com": d.subtree_com[root].copy(),
                "linvel": d.subtree_linvel[root].copy(),
            }
        )
    if model.jnt_type[0] == tree.FREE:  # C normalises quaternions in place only when it steps
        for row in rows:
            row["qpos"][3:7] /= np.linalg.norm(row["qpos"][3:7])
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for key, value in expected.items():
        scale = max(np.abs(value).max(), 1e-3)
        assert found[key].shape == value.shape, key
        assert np.abs(found[key] - value).max() / scale < 3e-5, key


@pytest.mark.parametrize("name", ["point", "fish", "quadruped", pytest.param("humanoid", marks=pytest.mark.slow)])
def test_stages_equal_mjx(name):
    env = raw_env(name)
    states = random_states(env)
    assert_equal(ours(env, *states), from_mjx(env, *states))


def test_stages_equal_c_mujoco(any_env):
    states = random_states(any_env)
    assert_equal(ours(any_env, *states), from_c(any_env, *states))


def test_point_jacobian_equals_c_mujoco(any_env):
    """`moving` and `cdof`, which contact rows are made of, give the velocity of a world point on a body."""
    model, t, body = any_env.model, any_env.physics_model.tree, any_env.model.nbody - 1
    (qpos, *_), (qvel, *_) = random_states(any_env)
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_fwdPosition(model, data)
    point, expected = data.xpos[body] + 0.1, np.zeros((3, model.nv))
    mujoco.mj_jac(model, data, expected, None, point, body)
    with jax.default_matmul_precision("highest"):
        poses = tree.kinematics(t, jnp.asarray(qpos)[:, None])
        cdof = dynamics.spatial_motion(t, poses, jnp.asarray(qvel)[:, None]).cdof
    offset = Vec(np.float32(x) for x in point) - poses.com
    linear = jnp.stack(cdof[3:] - cross(offset, cdof[:3]))[..., 0] * t.moving[:, body]
    np.testing.assert_allclose(linear, expected, atol=5e-6)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<body><joint type='ball'/><geom size='1'/></body>", "free, hinge and slide"),
        ("<body mocap='true'><geom size='1'/></body><body><joint/><geom size='1'/></body>", "mocap"),
        ("<geom size='1'/>", "at least one joint"),
    ],
)
def test_unsupported_trees_are_refused(xml, message):
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{xml}</worldbody></mujoco>")
    with pytest.raises(ValueError, match=message):
        tree.Tree.of(model)


def test_program_length_does_not_grow_with_depth():
    """A chain of 64 links takes log2(64) rounds, not 64 levels."""
    links = "".join("<body pos='0 0 .1'><joint/><geom size='.1'/>" for _ in range(64)) + "</body>" * 64
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{links}</worldbody></mujoco>")
    assert len(tree.Tree.of(model).ancestors) == 6
    data = mujoco.MjData(model)
    data.qpos[:] = np.random.default_rng(0).uniform(-0.3, 0.3, model.nq)
    mujoco.mj_kinematics(model, data)
    with jax.default_matmul_precision("highest"):
        poses = tree.kinematics(tree.Tree.of(model), jnp.asarray(data.qpos, jnp.float32)[:, None])
    np.testing.assert_allclose(np.stack(poses.pos, 1)[..., 0], data.xpos, atol=1e-5)
