"""Pictures: rays against MuJoCo's own, frames against MuJoCo's renderer, the window, the floors, videos."""

import os
import subprocess
import sys

import imageio_ffmpeg
import jax
import mujoco
import numpy as np
import pytest
import render_reference
from PIL import Image

import envs
from envs import render
from envs.render import rays, shading
from envs.tasks import goals
from experiments import figures
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.config import Config, UserError
from genda_mjx.evaluate import Episodes
from genda_mjx.runs import video
from genda_mjx.runs.folder import save_episodes, write_text

BODIES = render_reference.BODIES
draw_module = sys.modules["envs.render.draw"]  # `envs.render.draw` is its function


@pytest.fixture(scope="module", params=BODIES)
def body(request):
    """A body and its silhouettes [20, 64, 64] from coordinates [20, nq]."""
    env = envs.make(request.param, normalize=False, bank_size=1)
    scene = render.scene_of(env)
    return env, jax.jit(jax.vmap(lambda q: render.silhouette(scene, *render.poses(env, q))))


@pytest.fixture(scope="module")
def point():
    return envs.make("point", normalize=False, bank_size=4)


def drawn(env, qpos, **options):
    """uint8 [E, 64, 64, 3], five states at a time."""
    scene = render.scene_of(env, **options)
    pictures = jax.jit(jax.vmap(lambda q: render.draw(scene, *render.poses(env, q))))
    return np.concatenate([pictures(qpos[i : i + 5]) for i in range(0, len(qpos), 5)])


def test_rays_meet_shapes_where_mujocos_rays_do():
    rng, kinds = np.random.default_rng(0), {}
    types = {"sphere": "SPHERE", "capsule": "CAPSULE", "ellipsoid": "ELLIPSOID", "cylinder": "CYLINDER", "box": "BOX"}
    spec = mujoco.MjSpec()
    for name in types:
        for _ in range(4):
            geom = spec.worldbody.add_geom(type=getattr(mujoco.mjtGeom, f"mjGEOM_{types[name]}"))
            geom.size, geom.pos = rng.uniform(0.1, 0.4, 3), [*rng.uniform(-1, 1, 2), rng.uniform(-4, -2)]
            geom.quat = rng.standard_normal(4)
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    for number, name in enumerate(types):
        rows = slice(4 * number, 4 * number + 4)
        size = model.geom_size[rows]
        size = size[:, [0, 0, 1]] if name in ("capsule", "cylinder") else size
        frame = data.geom_xmat[rows].reshape(-1, 3, 3)
        kinds[name] = {c: data.geom_xpos[rows, i, None] for i, c in enumerate("xyz")}
        kinds[name] |= {a + b: frame[:, i, j, None] for i, a in enumerate("xyz") for j, b in enumerate("xyz")}
        kinds[name] |= {c: size[:, i, None] for i, c in enumerate("abc")}
    kinds = jax.tree.map(np.float32, kinds)
    d = np.concatenate([rng.uniform(-0.6, 0.6, (2, 4000)), -np.ones((1, 4000))])

    @jax.jit
    def nearest(kinds):
        in_order = {name: kinds[name] for name in types}  # jit sorts a dictionary
        return rays.nearest(in_order, tuple(np.float32(d[:, None])), 1)

    depth, index = nearest(kinds)
    geom, expected, found = np.zeros(1, np.int32), [], []
    for direction in d.T:
        expected.append(mujoco.mj_ray(model, data, np.zeros(3), direction, None, 1, -1, geom))
        found.append(geom[0])
    expected, found, depth, index = np.array(expected), np.array(found), np.asarray(depth[0]), np.asarray(index[0])
    assert {kind for kind in found // 4} == set(range(-1, 5))  # every kind is seen, and the background
    hit = depth < rays.FAR / 2
    assert np.mean(hit == (found >= 0)) > 0.999  # float32 may miss an edge that float64 grazes
    both = hit & (found >= 0)
    assert np.mean(index[both] == found[both]) > 0.998
    same = both & (index == found)
    error = np.abs(depth - expected)[same]
    assert error.max() < 0.02 and np.quantile(error, 0.99) < 2e-4


def test_silhouettes_are_mujocos(body):
    env, silhouettes = body
    qpos, _, expected = render_reference.load(env.name)
    found = np.asarray(silhouettes(qpos))
    overlap = (found & expected).sum((1, 2)) / (found | expected).sum((1, 2))
    assert overlap.mean() > 0.99 and overlap.min() > 0.97


@pytest.mark.parametrize(
    ("name", "shadow", "limit"),
    [
        ("quadruped", False, 5.0),
        pytest.param("humanoid", False, 5.0, marks=pytest.mark.slow),
        pytest.param("quadruped", True, 3.0, marks=pytest.mark.slow),
        ("humanoid", True, 3.0),
    ],
)
def test_pictures_are_mujocos(name, shadow, limit):
    qpos, expected, _ = render_reference.load(name)
    found = drawn(envs.make(name, normalize=False, bank_size=1), qpos, shadow=shadow).astype(float)
    error, constant = np.abs(found - expected).mean(), np.abs(expected - expected.mean(0)).mean()
    assert error < limit and error < 0.4 * constant


def test_bodies_stay_inside_their_window(body):
    env, silhouettes = body
    scene, model, rng = render.scene_of(env), env.model, np.random.default_rng(0)
    rows, columns = scene.window
    low, high = model.jnt_range[1:].T
    qpos = np.tile(model.qpos0, (200, 1))
    qpos[:100, 7:] = rng.uniform(low, high, (100, len(low)))
    qpos[100:, 7:] = np.where(rng.random((100, len(low))) < 0.5, low, high)
    qpos[:, 2], qpos[:, 3:7] = 50.0, rng.standard_normal((200, 4))  # high above the floor, which would hide a part
    seen = np.any([np.asarray(silhouettes(part)).any(0) for part in qpos.astype(np.float32).reshape(10, 20, -1)], 0)
    assert seen.sum() > 500
    outside = seen.copy()
    outside[rows, columns] = False
    assert not outside.any()
    assert env.name != "quadruped" or (rows.stop - rows.start) * (columns.stop - columns.start) < 0.7 * 64 * 64


def test_one_copy_many_copies_and_copies_of_copies_are_the_same(point):
    scene = render.scene_of(point, (32, 32))
    one = jax.jit(lambda q: render.draw(scene, *render.poses(point, q)))
    count = 2 * draw_module.PART // (scene.window[0].stop - scene.window[0].start) ** 2 // 2 * 2  # two parts or so
    qpos = np.random.default_rng(0).uniform(-10, 10, (count, 2)).astype(np.float32)
    many = np.asarray(jax.jit(jax.vmap(one))(qpos))
    nested = np.asarray(jax.jit(jax.vmap(jax.vmap(one)))(qpos.reshape(2, count // 2, 2)))
    assert many.shape == (count, 32, 32, 3) and many.dtype == np.uint8
    np.testing.assert_array_equal(many, nested.reshape(many.shape))
    for i in (0, count // 2, count - 1):
        assert np.abs(many[i].astype(int) - np.asarray(one(qpos[i]))).max() <= 1


@pytest.mark.parametrize("floor", ["paper", "unicolor", "gradation"])
def test_floors_have_their_documented_colours(point, floor):
    half, qpos = point.floor_size, np.array([[0, 0], [30, 0], [0, -30], [-20, 20]], np.float32)
    scene = render.scene_of(point, floor=floor)
    found = drawn(point, qpos, floor=floor)[:, -1, 32].astype(float)  # the middle of the lowest row
    u, v, w = scene.rays[:, -1, 32]
    way = scene.camera.turn @ [u, v, w]
    eye = np.concatenate([qpos, np.full((4, 1), 0.2)], 1) + scene.camera.offset
    x, y = (eye[:, i] - eye[:, 2] / way[2] * way[i] for i in (0, 1))
    ramps = {
        "paper": [(half - y) / 2 / half, (x + half) / 2 / half, 128 / 255],
        "unicolor": [0.5, 0.5, 0.5],
        "gradation": [128 / 255, (y + half) / 2 / half, (half - x) / 2 / half],
    }[floor]
    expected = np.stack(np.broadcast_arrays(*ramps, x)[:3], -1)
    np.testing.assert_allclose(
        found / found.sum(1, keepdims=True), expected / expected.sum(1, keepdims=True), atol=0.01
    )


def test_subsamples_are_means_and_shadows_darken(point):
    qpos = np.zeros((1, 2), np.float32)
    fine, plain = drawn(point, qpos, size=(128, 128))[0], drawn(point, qpos, subsamples=2)[0]
    np.testing.assert_allclose(fine.reshape(64, 2, 64, 2, 3).mean((1, 3)), plain, atol=0.6)
    darker = fine.astype(int) - drawn(point, qpos, size=(128, 128), shadow=True)[0]
    assert darker.min() >= -1 and darker.max() > 20  # two programs may round one value differently


def test_a_maze_shows_its_walls():
    env = goals.make("point", "maze_easy").env
    scene = render.scene_of(env)
    assert len(scene.parts["box"].body) == len(env.maze.walls)
    front = drawn(env, np.zeros((1, 2), np.float32))[0]  # from the room's corner, its walls to the left and below
    without = drawn(envs.make("point", normalize=False, bank_size=1), np.zeros((1, 2), np.float32))[0]
    differs = np.abs(front.astype(int) - without).max(-1) > 10
    assert 0.02 < differs.mean() < 0.9


def test_what_cannot_be_drawn_is_named(point):
    model = point.stock_spec().compile()
    with pytest.raises(ValueError, match="unknown floor 'lava': choose one of paper, unicolor, gradation, grid"):
        render.make_scene(model, "above", floor="lava")
    with pytest.raises(ValueError, match="no camera 'front' that tracks a centre of mass: choose one of above"):
        render.make_scene(model, "front")
    blind = type("Blind", (type(point),), {"camera": None})
    with pytest.raises(ValueError, match="point has no camera"):
        render.camera_of(blind)
    assert render.camera_of(envs.body_class("quadruped")) == "y"


def record(folder, episodes=8, steps=11):
    """A run folder of the point with one evaluation record, of skills that go straight."""
    angle = np.arange(episodes) * 2 * np.pi / episodes
    z = np.stack([np.cos(angle), np.sin(angle)], -1)
    way = (z[:, None] * np.linspace(0, 5, steps)[:, None]).astype(np.float16)
    traces, valid = {"position": way.astype(np.float32), "qpos": way}, np.arange(episodes) > 0
    save_episodes(folder / "evaluations" / "1000.npz", Episodes(traces, None, z, valid))
    write_text(folder / "config.json", Config(env="point", out=str(folder)).to_json())
    return folder


def test_a_record_becomes_a_gif_and_an_mp4(tmp_path):
    options = video.VideoOptions(video=True, video_size=32)
    result = video.show(record(tmp_path), None, options, "")
    assert result["step"] == 1000 and len(result["skills"]) == video.SHOWN and 0 not in result["skills"]
    with Image.open(result["gif"]) as gif:
        assert gif.size == (6 * 32, 32) and gif.n_frames == 6  # every other one: 10 a second
    reader = imageio_ffmpeg.read_frames(result["mp4"])
    about = next(reader)
    assert about["size"] == (6 * 32, 32) and about["fps"] == 20 and len(list(reader)) == 11
    chosen = video.show(tmp_path, 1000, video.VideoOptions(True, (5, 2), 32), "")
    assert chosen["skills"] == [5, 2]


def test_a_video_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    run = record(tmp_path / "run")
    with pytest.raises(UserError, match="--video_skills 8 is not in the record: it has the episodes 0 to 7"):
        video.show(run, None, video.VideoOptions(True, (8,), 32), "")
    with pytest.raises(UserError, match="no evaluation record at --step 7; there are 1000"):
        video.show(run, 7, video.VideoOptions(True), "")
    with pytest.raises(UserError, match="even number of pixels"):
        video.show(run, None, video.VideoOptions(True, video_size=33), "")
    monkeypatch.setattr(envs.body_class("point"), "camera", None)
    with pytest.raises(UserError, match="no pictures of point: point has no camera"):
        video.show(run, None, video.VideoOptions(True, video_size=32), "")
    (run / "evaluations" / "1000.npz").unlink()
    with pytest.raises(UserError, match="no evaluation record yet; make one with"):
        video.show(run, None, video.VideoOptions(True), "")


def test_skills_that_are_shown_are_far_apart():
    rng = np.random.default_rng(0)
    z = np.asarray(SkillSpace("directions", 2).sample(jax.random.key(0), 48))
    position = z[:, None] * np.array([0, 1])[:, None] * rng.uniform(1, 2, (48, 1, 1))
    chosen = video.choose(Episodes({"position": position}, None, z, np.ones(48, bool)), ())
    angles = np.sort(np.arctan2(*z[chosen].T))
    assert len(set(chosen)) == 6 and np.diff(angles).min() > np.radians(25)


def test_spread_of_phi_by_hand(tmp_path):
    """Two episodes against each other and one across: the mean of their unit vectors has length 1/3."""
    latents = np.zeros((3, 5, 2))
    latents[:, -1] = [[3, 0], [-2, 0], [0, 5]]
    found = figures.evenness(Episodes({}, latents, latents[:, -1], np.ones(3, bool)))
    np.testing.assert_allclose(found, (1 / 3, 2 / 3))
    run = record(tmp_path)
    options = figures.Options("spread", (run,))
    with pytest.raises(UserError, match="which has no phi"):
        figures.spread(options, tmp_path / "spread.png")
    save_episodes(run / "evaluations" / "2000.npz", Episodes({}, latents, latents[:, -1], np.ones(3, bool)))
    (line,) = figures.spread(options, tmp_path / "spread.png")
    assert "step 2,000: mean direction 0.333, 67% of phi" in line
    assert (tmp_path / "spread.png").exists()


def test_drift_compares_with_the_last_checkpoint():
    paths = np.zeros((3, 1, 2, 4, 2))  # checkpoints, episodes, skills, steps, xy
    paths[0, 0, :, -1], paths[1, 0, :, -1], paths[2, 0, :, -1] = [[-1, 0], [0, -2]], [[0, 1], [1, 0]], [[4, 0], [0, 4]]
    np.testing.assert_allclose(figures.cosines(paths), [-1, 0, 1], atol=1e-6)


@pytest.mark.slow
def test_stored_references_are_what_mujoco_draws(tmp_path):
    script = (
        "import render_reference as r, numpy as np, envs, sys\n"
        "q, pictures, masks = r.load(sys.argv[1]); ref = r.Reference(envs.body_class(sys.argv[1]))\n"
        "print(max(np.abs(ref.picture(a).astype(int) - p).mean() for a, p in zip(q, pictures)), flush=True)\n"
        "ref.close()\n"
    )
    for name in BODIES:
        environment = os.environ | {"MUJOCO_GL": "osmesa", "PYTHONPATH": ".:tests"}
        done = subprocess.run(
            [sys.executable, "-c", script, name], env=environment, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            pytest.skip(f"no software OpenGL (apt install libosmesa6): {done.stderr.strip().splitlines()[-1]}")
        assert float(done.stdout) < 1.0


def test_sky_faces_meet_at_their_edges():
    """A cube map whose faces hold the direction they look at gives that direction back, by OpenGL's rules."""
    k = 64
    centres = (np.arange(k) + 0.5) / k * 2 - 1
    s, t = np.meshgrid(centres, centres)
    one = np.ones_like(s)
    directions = [(one, -t, -s), (-one, -t, s), (s, one, t), (s, -one, -t), (s, -t, one), (-s, -t, -one)]
    faces = np.array([np.stack(d, -1) / np.linalg.norm(np.stack(d, -1), axis=-1, keepdims=True) for d in directions])
    rng = np.random.default_rng(0)
    asked = rng.standard_normal((3, 30, 30))
    asked /= np.linalg.norm(asked, axis=0)
    found = shading._cube_map(faces * 255, asked)
    assert np.abs(found - asked).max() < 0.05
