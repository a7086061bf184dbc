"""What furniture needs of the physics, each against C MuJoCo: several trees, a free joint among them, dry friction,
a weld to a moving target, contacts of our own."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from envs import physics
from envs.physics import PhysicsModel, PhysicsState, dynamics, tree, weld

COPIES = 8
XML = """<mujoco><option timestep="0.002" iterations="20" ls_iterations="20"/>
<default><geom contype="0" conaffinity="0"/></default><worldbody>
<body name="mocap" mocap="true" pos="0.1 0.2 0.5"/>
<body pos="0 0 0.4"><joint axis="0 0 1" damping="1"/><geom type="capsule" size=".03" fromto="0 0 0 .3 0 0"/>
  <body pos=".3 0 0"><joint axis="0 1 0" damping="1"/><geom type="capsule" size=".03" fromto="0 0 0 .3 0 0"/>
    <body name="hand" pos=".3 0 0"><joint axis="1 1 0" damping="1"/><joint type="slide" axis="0 0 1"/>
      <geom type="capsule" size=".03" fromto="0 0 0 .2 0.1 0"/></body></body></body>
<body pos="1 0 0"><joint name="door" axis="0 0 1" frictionloss="0.5" damping=".1"/>
  <geom type="box" size=".2 .02 .2"/></body>
<body pos="-1 0 1"><freejoint/><geom type="box" size=".1 .2 .05"/>
  <body pos="0 0 .1"><joint axis="1 0 0"/><geom type="capsule" size=".02 .1"/></body></body>
<body pos="1 1 0"><joint name="drawer" type="slide" axis="1 0 0" frictionloss="2" range="-.1 .1" limited="true"/>
  <geom type="box" size=".2 .02 .2"/></body>
</worldbody>
<equality><weld body1="mocap" body2="hand" relpose="0 0 0 1 0 0 0" torquescale="0.7"/></equality></mujoco>"""


@functools.cache
def machine() -> PhysicsModel:
    return PhysicsModel.of(mujoco.MjModel.from_xml_string(XML))


@functools.cache
def states() -> tuple[np.ndarray, ...]:
    """qpos, qvel, targets [COPIES, ...] with doors at rest and moving, and the target near and far."""
    rng, model = np.random.default_rng(0), machine().mj_model
    qpos = model.qpos0 + 0.1 * rng.standard_normal((COPIES, model.nq))
    qvel = rng.standard_normal((COPIES, model.nv)) * np.array([0, 0.01, 0.1, 1, 1, 1, 1, 3])[:, None]
    target = np.concatenate([0.2 * rng.standard_normal((COPIES, 3)), rng.standard_normal((COPIES, 4))], axis=1)
    target[:, 3:] /= np.linalg.norm(target[:, 3:], axis=1, keepdims=True)
    return tuple(x.astype(np.float32) for x in (qpos, qvel, target))


def in_c(model: mujoco.MjModel, copy: int) -> mujoco.MjData:
    data = mujoco.MjData(model)
    qpos, qvel, target = states()
    data.qpos[:], data.qvel[:] = qpos[copy], qvel[copy]
    data.mocap_pos[0], data.mocap_quat[0] = target[copy, :3], target[copy, 3:]
    mujoco.mj_forward(model, data)
    return data


def stages(quantities):
    """quantities(poses, motion, qvel, target) of all copies, compiled."""
    t = machine().tree

    @jax.jit
    def run(qpos, qvel, target):
        poses = tree.kinematics(t, qpos)
        return quantities(poses, dynamics.spatial_motion(t, poses, qvel), qvel, target)

    with jax.default_matmul_precision("highest"):
        return run(*(x.T for x in states()))


def test_several_trees_have_the_poses_inertia_and_bias_of_c():
    t, model = machine().tree, machine().mj_model
    pos, quat, inertia, bias = stages(
        lambda poses, motion, qvel, _: (
            jnp.stack(poses.pos),
            jnp.stack(poses.quat),
            dynamics.inertia_matrix(t, motion),
            dynamics.bias_force(t, motion, qvel),
        )
    )
    for copy in range(COPIES):
        data, full = in_c(model, copy), np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, full)
        np.testing.assert_allclose(pos[:, 2:, copy].T, data.xpos[2:], atol=1e-5)  # world and target come first
        np.testing.assert_allclose(quat[:, 2:, copy].T, data.xquat[2:], atol=1e-5)
        np.testing.assert_allclose(inertia[copy], full, atol=1e-4)
        np.testing.assert_allclose(bias[:, copy], data.qfrc_bias, rtol=1e-4, atol=1e-3)


def test_weld_rows_are_those_of_c():
    """Jacobian, stiffness and reference, which counts in how the Jacobian changes."""
    rows = stages(lambda *args: dict(vars(weld.rows(machine(), *args))))
    for copy in range(COPIES):
        model = machine().mj_model
        data = in_c(model, copy)
        mine = data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY
        jacobian = data.efc_J.reshape(-1, model.nv)[mine]
        np.testing.assert_allclose(rows["jacobian"][..., copy], jacobian, atol=1e-5)
        np.testing.assert_allclose(rows["stiffness"][:, copy], data.efc_D[mine], rtol=1e-4)
        np.testing.assert_allclose(rows["reference"][:, copy], data.efc_aref[mine], rtol=1e-4, atol=2e-2)


def test_a_step_of_it_all_is_that_of_c():
    physics_model = machine()
    model = physics_model.mj_model
    qpos, qvel, target = (jnp.asarray(x.T) for x in states())
    state = PhysicsState(qpos, qvel, jnp.zeros((0, COPIES)), jnp.zeros_like(qvel))
    with jax.default_matmul_precision("highest"):
        after, _ = jax.jit(lambda s, t: physics.step(physics_model, s, jnp.zeros((0, COPIES)), t))(state, target)
    slipping = []
    for copy in range(COPIES):
        data = in_c(model, copy)
        dry = data.efc_type == mujoco.mjtConstraint.mjCNSTR_FRICTION_DOF
        slipping += (np.abs(data.efc_force[dry]) >= data.efc_frictionloss[dry]).tolist()
        mujoco.mj_step(model, data)
        np.testing.assert_allclose(after.qvel[:, copy], data.qvel, rtol=1e-4, atol=2e-4)
        np.testing.assert_allclose(after.qpos[:, copy], data.qpos, atol=1e-5)
    assert any(slipping) and not all(slipping)


SHAPES = """<mujoco><worldbody><geom type="box" size=".3 .3 .1" margin=".002" solimp=".8 .9 .01" conaffinity="3"/>
{static}
<body pos="0 0 .2"><freejoint/><geom type="capsule" size=".03 .1" margin=".001" solref=".01 1" friction=".4"/></body>
<body pos="0 .1 .2"><freejoint/><geom type="capsule" size=".05 .05"/>{moving}</body>
<body pos=".1 0 .2"><freejoint/><geom type="sphere" size=".04" conaffinity="0" contype="2"/></body></worldbody>
<custom><numeric name="nearest_contacts" data="8 2 1 1"/></custom></mujoco>"""


def test_contacts_of_our_own_are_those_of_c():
    """Distances, points, normals and parameters of all kinds of pairs, in poses in which several touch."""
    model = mujoco.MjModel.from_xml_string(SHAPES.format(static="", moving=""))
    physics_model, rng = PhysicsModel.of(model), np.random.default_rng(0)
    assert sorted(g.pairs for g in physics_model.nearest.grids) == [1, 1, 2]
    qpos = model.qpos0 + 0.05 * rng.standard_normal((40, model.nq))
    for start in (3, 10, 17):
        qpos[:, start : start + 4] = rng.standard_normal((40, 4))

    @jax.jit
    def run(qpos):
        contact, bodies = physics.contacts.collide(physics_model, tree.kinematics(physics_model.tree, qpos))
        return vars(contact) | {"bodies": bodies}

    with jax.default_matmul_precision("highest"):
        found = {name: np.asarray(value) for name, value in run(jnp.asarray(qpos.T, jnp.float32)).items()}
    total = 0
    for copy in range(len(qpos)):
        data = mujoco.MjData(model)
        data.qpos[:] = qpos[copy]
        mujoco.mj_forward(model, data)
        touching = np.flatnonzero(found["dist"][copy] < found["includemargin"][copy])
        assert len(touching) == data.ncon
        total += data.ncon
        for c in data.contact:
            error = np.abs(found["pos"][copy, touching] - c.pos).max(1)
            mine = touching[np.argmin(error)]
            assert error.min() < 1e-5
            assert set(found["geom"][copy, mine]) == set(c.geom)
            np.testing.assert_allclose(found["dist"][copy, mine], c.dist, atol=1e-6)
            np.testing.assert_allclose(np.abs(found["frame"][copy, mine]), np.abs(c.frame.reshape(3, 3)), atol=1e-4)
            for name in ("includemargin", "solref", "solimp"):
                np.testing.assert_allclose(found[name][copy, mine], getattr(c, name), rtol=1e-5)
            np.testing.assert_allclose(found["friction"][copy, mine], c.friction[:2], rtol=1e-6)
    assert total > 40


SPINNING = """<mujoco><option timestep="0.002" iterations="30" ls_iterations="30"/>
<default><geom conaffinity="0"/></default><worldbody>
<geom type="box" size=".3 .3 .1" margin=".001" conaffinity="1" contype="0"/>
<body pos="0 0 .129"><freejoint/>
  <geom type="capsule" size=".03 .06" euler="0 90 0" condim="6" friction="1 .5 .0001"/></body>
<body pos="0 .2 .139"><freejoint/><geom type="sphere" size=".04" condim="4" friction="1 .02 .0001"/></body>
<body pos="0 -.2 .139"><freejoint/><geom type="sphere" size=".04"/></body></worldbody>
<custom><numeric name="nearest_contacts" data="6 1 1 2"/></custom></mujoco>"""


def test_contacts_resist_a_spin_as_in_c():
    """Three bodies that spin on a box, with condim 6, 4 and 3: velocities after one step."""
    physics_model = PhysicsModel.of(mujoco.MjModel.from_xml_string(SPINNING))
    model, rng = physics_model.mj_model, np.random.default_rng(0)
    qvel = (0.05 * rng.standard_normal((COPIES, model.nv))).astype(np.float32)
    qvel[:, 5::6] = rng.uniform(-4, 4, (COPIES, 3))  # about the vertical
    qpos = np.tile(model.qpos0, (COPIES, 1)).astype(np.float32)
    state = PhysicsState(qpos.T, qvel.T, jnp.zeros((0, COPIES)), jnp.zeros_like(qvel.T))
    with jax.default_matmul_precision("highest"):
        after, _ = jax.jit(lambda s: physics.step(physics_model, s, jnp.zeros((0, COPIES))))(state)
    slowed = []
    for copy in range(COPIES):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = qpos[copy], qvel[copy]
        mujoco.mj_step(model, data)
        assert data.ncon == 4  # the capsule lies on two points
        np.testing.assert_allclose(after.qvel[:, copy], data.qvel, atol=2e-3)
        slowed.append(np.abs(data.qvel[5::6]) < 0.9 * np.abs(qvel[copy, 5::6]))
    assert np.mean(slowed, 0).tolist() == [1, 1, 0]  # of a sphere nothing else resists the spin


@pytest.mark.parametrize(
    ("static", "moving", "message"),
    [
        ("<geom type='plane' size='1 1 1'/>", "", "mjGEOM_PLANE"),
        (
            "<geom type='box' size='1 1 1' conaffinity='4' contype='0' condim='1'/>",
            "<geom size='.1' contype='4' conaffinity='0' condim='1'/>",
            "condim",
        ),
        ("<geom type='box' size='1 1 1' condim='6' friction='1 1 1'/>", "", "rolling"),
        ("<geom type='box' size='1 1 1' priority='1'/>", "", "priority"),
        ("", "<geom type='box' size='1 1 1'/>", "mjGEOM_BOX against mjGEOM_BOX"),
    ],
)
def test_shapes_that_our_contacts_do_not_know_are_refused(static, moving, message):
    model = mujoco.MjModel.from_xml_string(SHAPES.format(static=static, moving=moving))
    with pytest.raises(ValueError, match=message):
        PhysicsModel.of(model)
