"""Pictures of the kitchen: against MuJoCo's renderer of the stock model, its camera, burners and lamp, pixels."""

import jax
import mujoco
import numpy as np
import pytest
import render_reference
from conftest import raw_env

from envs import kitchen_picture, render
from envs.pixels import Pixels
from genda_mjx import build
from genda_mjx.config import UserError
from genda_mjx.presets import preset


@pytest.fixture(scope="module")
def pictures():
    """Pictures and silhouettes [5, 64, 64, ...] of what moves, from simulated coordinates [5, 25]."""
    env = raw_env("kitchen")
    scene = render.scene_of(env)

    @jax.jit
    @jax.vmap
    def draw(qpos):
        poses = render.poses(env, qpos)
        return render.draw(scene, *poses), render.silhouette(scene, *poses)

    return draw


def test_pictures_are_mujocos(pictures):
    """Meshes of the arm are capsules here, and what moves leaves no shadow; hence the limits."""
    qpos, expected, moving = render_reference.load("kitchen")
    found, seen = (np.concatenate(part) for part in zip(*(pictures(q) for q in qpos.reshape(4, 5, -1)), strict=True))
    overlap = (seen & moving).sum((1, 2)) / (seen | moving).sum((1, 2))
    assert overlap.mean() > 0.9 and overlap.min() > 0.85
    error = np.abs(found.astype(float) - expected).mean()
    shuffled = np.abs(found.astype(float) - np.roll(expected, 7, axis=0)).mean()
    assert error < 20 and error < 0.8 * shuffled


def test_a_knob_lights_its_burner_and_the_switch_the_lamp(pictures):
    env = raw_env("kitchen")
    qpos = np.tile(env.bank.qpos[0], (5, 1))
    knob, switch = (env.model.joint(name).qposadr[0] for name in ("knob_Joint_1", "light_switch"))
    qpos[1, knob], qpos[2, knob], qpos[3, switch], qpos[4, switch] = -0.2, -0.4, -0.2, -0.3
    found = np.asarray(pictures(qpos)[0]).astype(int)
    red = (found[..., 0] > 80) & (found[..., 1] < 60)
    assert red[1].sum() == red[0].sum() and red[2].sum() > red[0].sum() + 10
    dark, bright = (np.median(found[i, 20:45, 25:50]) for i in (3, 4))
    assert np.median(found[0, 20:45, 25:50]) == dark and bright > dark


def test_the_camera_is_mujocos_free_camera():
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
    data, scene, free = mujoco.MjData(model), mujoco.MjvScene(model, 10), mujoco.MjvCamera()
    free.lookat[:], free.distance, free.azimuth, free.elevation = (-0.3, 0.5, 2), 1.86, 90, -60
    mujoco.mj_forward(model, data)
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, free, mujoco.mjtCatBit.mjCAT_ALL, scene)
    eyes = [scene.camera[i] for i in (0, 1)]  # a little to the left and right
    camera = kitchen_picture.CAMERA
    np.testing.assert_allclose(camera.offset, np.mean([eye.pos for eye in eyes], 0), atol=1e-6)
    np.testing.assert_allclose(-camera.turn[:, 2], eyes[0].forward, atol=1e-6)
    np.testing.assert_allclose(camera.turn[:, 1], eyes[0].up, atol=1e-6)
    assert camera.fovy == model.vis.global_.fovy


def test_pixels_have_the_papers_schedule_and_no_other_floor():
    paper = preset("kitchen", "auto", pixels=True)
    assert (paper.num_envs, paper.utd, paper.skill_dim, paper.agent.cib_dim) == (8, 0.125, 10, 2048)
    assert preset("kitchen", "auto", "csf", pixels=True).skill_dim == 24
    assert preset("kitchen", "small", "diayn").skill_dim == 50
    with pytest.raises(UserError, match="floor 'unicolor' cannot be shown in a room"):
        build.env_of(paper.replace(floor="unicolor"))


@pytest.mark.slow
def test_an_agent_sees_three_frames():
    env = Pixels(raw_env("kitchen"), size=48)
    start = env.reset(jax.random.key(0))
    after = jax.jit(env.step)(start, np.float32([1, 0, 0, 0, 0, 0, 1]))
    assert after.obs.shape == (48, 48, 9) and after.obs.dtype == np.uint8
    np.testing.assert_array_equal(after.obs[..., :6], start.obs[..., 3:])
    assert (after.obs[..., 6:] != start.obs[..., 6:]).any()
