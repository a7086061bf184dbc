"""Pictures by MuJoCo's own renderer of the scenes that `envs.render` draws: the reference of tests/test_render.py.

Needs software OpenGL (Debian: apt install libosmesa6). Writes 20 states, pictures and silhouettes of two bodies and of
the kitchen to tests/data/render, and with a path also all bodies by MuJoCo (above) and by us (below) for
docs/pictures.md; with --kitchen it writes the kitchen's alone, and some of its states to the path:

    MUJOCO_GL=osmesa PYTHONPATH=. python tests/render_reference.py [--kitchen] [picture.png]
"""

import os
import sys
from pathlib import Path

import mujoco
import numpy as np
from PIL import Image

import envs
from benchmarks._kitchen_c import KitchenInC
from envs import kitchen_picture
from envs.body import Body

FOLDER = Path(__file__).parent / "data" / "render"
BODIES = ("quadruped", "humanoid")
STATES, SIZE = 20, 64
FLAG = mujoco.mjtRndFlag


def states(body: type[Body]) -> np.ndarray:
    """qpos [STATES, nq], spread evenly over an episode of uniform actions in C MuJoCo, and anywhere on the floor."""
    model, rng = body.stock_spec().compile(), np.random.default_rng(0)
    data, found = mujoco.MjData(model), []
    body.draw_start(model, data, rng)
    agent_step = round(body.action_repeat * body.control_timestep / model.opt.timestep)
    for step in range(body.episode_length):
        if step % (body.episode_length // STATES) == 0:
            found.append(data.qpos.copy())
        data.ctrl[:] = rng.uniform(*model.actuator_ctrlrange.T)
        mujoco.mj_step(model, data, agent_step)
    found = np.array(found, np.float32)
    found[:, :2] += rng.uniform(-10, 10, (STATES, 2))
    return found


def stock_model(body: type[Body]) -> mujoco.MjModel:
    """The stock model on the drawn floor: the paper's texture, as far and as high as our pictures have it."""
    spec = body.stock_spec()
    for geom in spec.geoms:
        shown = geom.type == mujoco.mjtGeom.mjGEOM_PLANE or geom.group in body.drawn_groups
        if geom.name == "target" or not shown:
            geom.group = 5
    planes = [geom for geom in spec.geoms if geom.type == mujoco.mjtGeom.mjGEOM_PLANE]
    plane = planes[0] if planes else spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1, 1, 0.5])
    plane.size, plane.pos, plane.group = [body.floor_size, body.floor_size, plane.size[2]], [0, 0, body.floor_height], 0
    texture = spec.add_texture(name="paper", type=mujoco.mjtTexture.mjTEXTURE_2D, width=300, height=300)
    texture.builtin = mujoco.mjtBuiltin.mjBUILTIN_FLAT
    material = spec.add_material(name="paper", texrepeat=[1, 1], reflectance=0.2)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "paper"
    plane.material = "paper"
    model = spec.compile()
    ramp = (np.arange(300) + 0.5) / 300
    pixels = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None, :], 128 / 255), -1)
    first = model.tex("paper").adr[0]
    model.tex_data[first : first + pixels.size] = np.round(pixels * 255).astype(np.uint8).ravel()
    return model


class Reference:
    """MuJoCo's renderer of one model; there may be one in a process."""

    def __init__(self, body: type[Body], size: int = SIZE, model: mujoco.MjModel | None = None):
        self.body, self.model, self.camera = body, model or stock_model(body), body.camera
        self.model.vis.global_.offwidth = self.model.vis.global_.offheight = max(size, 480)
        self.data, self.renderer = mujoco.MjData(self.model), mujoco.Renderer(self.model, size, size)
        self.option = mujoco.MjvOption()
        self.option.geomgroup[:] = [group in (0, *body.drawn_groups) for group in range(6)]
        self.option.skingroup[:] = 0
        self.option.flags[mujoco.mjtVisFlag.mjVIS_SKIN] = 0

    def picture(self, qpos: np.ndarray, shadow: bool = True, mirror: bool = True) -> np.ndarray:
        """uint8 [size, size, 3]; flags of the scene stay from call to call, so all of them are set."""
        self._update(qpos)
        self.renderer.scene.flags[FLAG.mjRND_SHADOW] = shadow
        self.renderer.scene.flags[FLAG.mjRND_REFLECTION] = mirror
        return self.renderer.render().copy()

    def silhouette(self, qpos: np.ndarray) -> np.ndarray:
        """bool [size, size]: where a geom of the body is seen."""
        index, kind = self.segments(qpos)
        return (kind == mujoco.mjtObj.mjOBJ_GEOM) & (self.model.geom_bodyid[index] > 0)

    def segments(self, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[size, size] number and kind of what each pixel shows."""
        self.renderer.enable_segmentation_rendering()
        self._update(qpos)
        index, kind = np.moveaxis(self.renderer.render(), -1, 0).copy()
        self.renderer.disable_segmentation_rendering()
        return index, kind

    def _update(self, qpos: np.ndarray) -> None:
        self.data.qpos[:] = qpos
        mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data, self.camera, self.option)

    def close(self) -> None:
        self.renderer.close()


class KitchenReference(Reference):
    """The stock kitchen through LEXA's camera; its silhouettes are of what moves. Takes the simulated coordinates."""

    def __init__(self, size: int = SIZE):
        body = envs.body_class("kitchen")
        super().__init__(body, size, body.stock_spec().compile())
        self.index, self.scale = kitchen_picture.coordinates(self.model, body.edited_spec().compile())
        self.camera = mujoco.MjvCamera()
        self.camera.lookat[:], self.camera.distance = (-0.3, 0.5, 2.0), 1.86
        self.camera.azimuth, self.camera.elevation = 90, -60

    def silhouette(self, qpos: np.ndarray) -> np.ndarray:
        index, kind = self.segments(qpos)
        return (kind == mujoco.mjtObj.mjOBJ_GEOM) & (self.model.body_weldid[self.model.geom_bodyid[index]] > 0)

    def _update(self, qpos: np.ndarray) -> None:
        super()._update(qpos[self.index] * self.scale)


def kitchen_states() -> np.ndarray:
    """qpos [STATES, 25]: the arm somewhere in random episodes, doors, knobs and switch anywhere, the kettle moved."""
    c, rng, found = KitchenInC.reduced(), np.random.default_rng(0), []
    low, high = c.model.jnt_range[9:18].T
    for _ in range(STATES):
        c.reset()
        for action in np.repeat(rng.uniform(-1, 1, (3, 7)), rng.integers(1, 8), axis=0):
            c.step(action)
        qpos = c.data.qpos.copy()
        qpos[9:18] = low + (high - low) * rng.uniform(0, 1, 9) * (rng.random(9) < 0.5)
        qpos[18:20] += rng.uniform(-0.1, 0.1, 2)
        found.append(qpos)
    return np.array(found, np.float32)


def load(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stored qpos [STATES, nq], pictures [STATES, SIZE, SIZE, 3] and silhouettes [STATES, SIZE, SIZE] of a body."""

    def rows(kind: str) -> np.ndarray:
        image = np.asarray(Image.open(FOLDER / f"{name}_{kind}.png"))
        return image.reshape(STATES // 5, SIZE, 5, SIZE, -1).swapaxes(1, 2).reshape(STATES, SIZE, SIZE, -1)

    return np.load(FOLDER / f"{name}.npy"), rows("pictures"), rows("silhouettes")[..., 0] > 0


def sheet(pictures: np.ndarray) -> Image.Image:
    """[STATES, SIZE, SIZE, ...] in rows of five."""
    rows = pictures.reshape(STATES // 5, 5, *pictures.shape[1:]).swapaxes(1, 2)
    return Image.fromarray(rows.reshape(STATES // 5 * SIZE, 5 * SIZE, *pictures.shape[3:]))


def write(name: str) -> None:
    body = envs.body_class(name)
    kitchen = name == "kitchen"
    qpos, reference = (kitchen_states(), KitchenReference()) if kitchen else (states(body), Reference(body))
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.save(FOLDER / f"{name}.npy", qpos)
    sheet(np.array([reference.picture(q) for q in qpos])).save(FOLDER / f"{name}_pictures.png", optimize=True)
    sheet(np.array([reference.silhouette(q) for q in qpos])).save(FOLDER / f"{name}_silhouettes.png", optimize=True)
    reference.close()


def compare_kitchen(path: Path, size: int = 160) -> None:
    """Five states of the kitchen: MuJoCo's picture above ours."""
    import jax  # the reference alone does not need it

    from envs import render

    env, qpos = envs.make("kitchen", normalize=False, bank_size=1), load("kitchen")[0][::4]
    scene, reference = render.scene_of(env, (size, size), subsamples=2), KitchenReference(size)
    ours = jax.jit(jax.vmap(lambda q: render.draw(scene, *render.poses(env, q))))(qpos)
    columns = [np.concatenate([reference.picture(q), np.asarray(o)]) for q, o in zip(qpos, ours, strict=True)]
    Image.fromarray(np.concatenate(columns, 1)).save(path, optimize=True)
    reference.close()


def compare(path: Path, size: int = 192) -> None:
    """A column for each body: MuJoCo's picture above ours, with shadow, mirror and subsamples."""
    import jax  # the reference alone does not need it

    from envs import render

    columns = []
    for name in [name for name in envs.NAMES if envs.body_class(name).camera]:
        env = envs.make(name, normalize=False, bank_size=16)
        qpos = env.bank.qpos[1]
        scene = render.scene_of(env, (size, size), shadow=True, mirror=True, subsamples=2)
        ours = jax.jit(lambda q, env=env, scene=scene: render.draw(scene, *render.poses(env, q)))(qpos)
        reference = KitchenReference(size) if name == "kitchen" else Reference(type(env), size)
        columns.append(np.concatenate([reference.picture(qpos), np.asarray(ours)]))
        reference.close()
    Image.fromarray(np.concatenate(columns, 1)).save(path, optimize=True)


if __name__ == "__main__":
    os.environ.setdefault("MUJOCO_GL", "osmesa")
    for name in ("kitchen",) if "--kitchen" in sys.argv else (*BODIES, "kitchen"):
        write(name)
    for path in [argument for argument in sys.argv[1:] if argument != "--kitchen"]:
        (compare_kitchen if "--kitchen" in sys.argv else compare)(Path(path))
