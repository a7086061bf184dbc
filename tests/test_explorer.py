"""The explorer page against the program that trained: the page's own code, run by node, beside JAX and C MuJoCo."""

import base64
import dataclasses
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import envs
from envs import measures
from envs.body import BodyState
from envs.physics import PhysicsState
from envs.pixels import Pixels
from envs.tasks import goals
from genda_mjx import agents, evaluate
from genda_mjx.config import Config, UserError
from genda_mjx.downstream import controller
from genda_mjx.runs import explore, explore_task
from genda_mjx.runs.stored import Skills

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node to run the page's code without a browser")
SEED, STEPS = 3, 50


def slow(*names: str) -> list:
    """Cases behind `make test-slow`: their like is tested without."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def skills_of(env: envs.Body, algo: str = "genda", **settings) -> Skills:
    """Skills with the weights that training starts from."""
    config = Config().replace(env=env.name, algo=algo).replace(**({"hidden": 32, "skill_dim": 2} | settings))
    agent = agents.make(config, agents.Spec.of(env))
    return Skills(config, 0, agent, jax.jit(agent.init)(jax.random.key(SEED)))


def blank_episodes(env: envs.Body, skills: Skills, count: int = 2) -> evaluate.Episodes:
    """Episodes that stay where they are, for pages of which only body and policy are looked at."""
    positions = np.zeros((count, 3, env.position_size), np.float32)
    latents = np.zeros((count, 3, skills.config.skill_dim), np.float32) if skills.agent.represent else None
    z = np.asarray(skills.agent.skills.show(jax.random.key(1), count))
    return evaluate.Episodes({"position": positions}, latents, z, np.ones(count, bool))


def write_page(path: Path, env: envs.Body, skills: Skills, episodes: evaluate.Episodes | None = None) -> Path:
    episodes = episodes or blank_episodes(env, skills)
    found = {env.headline: 1}
    return explore.write(path, explore.draft(env, skills), jax.random.key(SEED), episodes, found)


def run_in_node(page: Path, *commands) -> list:
    command = [NODE, str(Path(__file__).with_name("explorer.mjs")), str(page)]
    done = subprocess.run(command, input=json.dumps(commands), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def part(page: Path, name: str) -> bytes:
    """What the page carries under a name."""
    text = re.search(rf'id="{name}">([^<]*)</script>', page.read_text()).group(1)
    return gzip.decompress(base64.b64decode(text))


def scaled_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float((np.abs(found - expected) / np.maximum(np.abs(expected), 1)).max())


BODIES = ["fish", "quadruped", *slow("point", "humanoid", "dog")]
KINDS = mujoco.mjtSensor
# The sensors of the last physics step as dm_control's tasks order them: kind, site, whether squashed by arcsinh.
TOES = ["toe_front_left", "toe_front_right", "toe_back_right", "toe_back_left"]
ANCHORS = ["foot_anchor_L", "foot_anchor_R", "hand_anchor_L", "hand_anchor_R"]
SENSED = {
    "quadruped": [(KINDS.mjSENS_ACCELEROMETER, "torso", False)]
    + [(kind, toe, True) for kind in (KINDS.mjSENS_FORCE, KINDS.mjSENS_TORQUE) for toe in TOES],
    "dog": [(KINDS.mjSENS_ACCELEROMETER, "head", False)]
    + [(KINDS.mjSENS_FORCE, anchor, False) for anchor in ANCHORS]
    + [(KINDS.mjSENS_TOUCH, site, False) for site in ("palm_L", "palm_R", "sole_L", "sole_R")],
}


def read_sensors(model: mujoco.MjModel, data: mujoco.MjData, name: str) -> np.ndarray:
    """The acceleration-stage sensors in C, found by kind and site."""
    rows = []
    for kind, site, squashed in SENSED.get(name, []):
        at_site = (model.sensor_type == kind) & (model.sensor_objid == model.site(site).id)
        values = data.sensor(int(np.flatnonzero(at_site)[0])).data
        rows.append(np.arcsinh(values) if squashed else values.copy())
    return np.concatenate(rows) if rows else np.zeros(0)


def put(model: mujoco.MjModel, state: dict) -> mujoco.MjData:
    """MuJoCo's data in a state of the page."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.act[:] = state["qpos"], state["qvel"], state["act"]
    return data


def everything(data: mujoco.MjData) -> np.ndarray:
    return np.concatenate([data.qpos, data.qvel, data.act])


@needs_node
@pytest.mark.parametrize("name", BODIES)
def test_body_in_the_page(name, tmp_path):
    """Physics as C MuJoCo's on the same model, sensors as C's, observations as the environment's."""
    env = envs.make(name)
    page = write_page(tmp_path / "page.html", env, skills_of(env))
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, env.action_size))
    (states,) = run_in_node(page, ["rollout", {"start": 1, "actions": actions.tolist(), "offset": [0.5, -1.0]}])

    # C MuJoCo, open loop from the page's first state. A falling humanoid multiplies a difference of 1e-15 m in its
    # start by 1e7 to 1e10 within these steps, in C alone: where a twin with such a start differs, the page may too.
    model = mujoco.MjModel.from_xml_string(json.loads(part(page, "run"))["xml"])
    data, twin = (put(model, states[0]) for _ in range(2))
    twin.qpos[:2] += 1e-15
    low, high = model.actuator_ctrlrange.T
    allowed = 1e-9
    for action, found in zip(actions, states[1:], strict=True):
        for each in (data, twin):
            each.ctrl[:] = low + (high - low) * (action + 1) / 2
            mujoco.mj_step(model, each, env.physics_steps)
        allowed = max(allowed, 30 * np.abs(everything(twin) - everything(data)).max())
        page_state = np.concatenate([found["qpos"], found["qvel"], found["act"]])
        assert np.abs(page_state - everything(data)).max() <= allowed
        np.testing.assert_allclose(found["sensors"], read_sensors(model, data, name), rtol=1e-6, atol=1e-6)
    assert allowed <= 1e-9 or name in ("humanoid", "dog")

    # The start is one of the body's, moved; the observation is the environment's for the same states.
    moved = np.array(states[0]["qpos"]) - np.r_[0.5, -1.0, np.zeros(env.model.nq - 2)]
    assert np.abs(env.bank.qpos - moved).max(-1).min() < 1e-6
    first_and_last = {
        field: np.array([states[0][field], states[-1][field]], np.float32)
        for field in ("qpos", "qvel", "act", "sensors", "drawn", "observation")
    }
    qpos, qvel, act, sensors, drawn, found = first_and_last.values()
    bodies = BodyState(PhysicsState(qpos, qvel, act, np.zeros_like(qvel)), sensors, drawn, np.zeros(2, bool))
    expected = jax.jit(jax.vmap(lambda body: env._normalized(env._observe_raw(body))))(bodies)
    assert scaled_error(found, np.asarray(expected)) <= 1e-5


AGENTS = {
    "genda": {},
    "no_cib": {"no_cib": True},
    "metra": {"algo": "metra"},
    "metra_discrete": {"algo": "metra", "discrete": True, "skill_dim": 5},
    "csf": {"algo": "csf", "skill_dim": 3},
    "diayn": {"algo": "diayn", "skill_dim": 9},
    "cic": {"algo": "cic", "skill_dim": 7},
    "half": {"hidden": 512},
}
QUICK = ("genda", "diayn", "half")


@needs_node
@pytest.mark.parametrize("name", [*QUICK, *slow(*sorted(AGENTS.keys() - set(QUICK)))])
def test_actions_and_phi_in_the_page(name, tmp_path):
    env = envs.make("point", bank_size=16)
    skills = skills_of(env, **AGENTS[name])
    page = write_page(tmp_path / "page.html", env, skills)
    obs = 2 * jax.random.normal(jax.random.key(0), (16, env.observation_size))
    z = skills.agent.skills.sample(jax.random.key(1), 16)
    commands = [["act", {"obs": obs.tolist(), "z": z.tolist()}]]
    commands += [["phi", {"obs": obs.tolist()}]] if skills.agent.represent else []
    found = [np.array(answer) for answer in run_in_node(page, *commands)]
    tolerance = 1e-3 if name == "half" else 1e-5
    expected = np.asarray(skills.agent.act(skills.state, obs, z, None))
    assert expected.std() > 0.01
    assert np.abs(found[0] - expected).max() <= tolerance
    if skills.agent.represent:
        expected = np.asarray(skills.agent.represent(skills.state, obs))
        assert scaled_error(found[1], expected) <= tolerance


@needs_node
@pytest.mark.parametrize("name", ["point", *slow("fish")])
def test_skills_end_where_the_evaluation_says(name, tmp_path):
    env = envs.make(name)
    skills = skills_of(env, skill_dim=env.position_size)
    key = jax.random.key(SEED)
    played = jax.device_get(jax.jit(evaluate.make(env, skills.agent, 48))(skills.state, key, jnp.zeros(2), False))
    page = write_page(tmp_path / "page.html", env, skills, played)
    (ends,) = run_in_node(page, ["ends", {"steps": env.episode_length}])
    ends = np.array(ends)
    np.testing.assert_allclose(ends[:, 0], played.traces["position"][:, 0], atol=1e-6)
    assert measures.mean_distance(ends) > 0.05 * env.bin_size
    gone = measures.displacement(played.traces["position"])
    assert measures.mean_cosine(ends[:, 1] - ends[:, 0], gone) >= 0.95


@needs_node
@pytest.mark.parametrize("algo", ["genda", *slow("cic")])
def test_controller_in_the_page(algo, tmp_path):
    """The controller's skills as JAX's, and walls that hold: the page's point never leaves the maze's room."""
    task = goals.make("point", "maze_easy")
    skills = skills_of(task.env, algo=algo)
    shapes = task.env.observation_spec, jax.ShapeDtypeStruct((2,), jnp.float32)
    settings = dataclasses.replace(controller.PRESETS["small"], goal="way")
    pi = controller.make(settings, skills.agent, shapes)
    state = jax.jit(pi.init)(jax.random.key(0))
    played = {"path": np.zeros((2, 5, 2)), "goal": np.zeros((2, 2)), "success": np.zeros(2)}
    page = tmp_path / "page.html"
    explore_task.write(page, task, skills, settings, pi, state, played)
    obs = jax.random.normal(jax.random.key(1), (8, task.env.observation_size))
    position, goal = 5 * jax.random.normal(jax.random.key(2), (2, 8, 2))
    commands = [
        ["control", {"obs": obs.tolist(), "position": position.tolist(), "goal": goal.tolist()}],
        ["task", {"steps": 150, "goal": [50.0, 50.0]}],
    ]
    found, path = map(np.array, run_in_node(page, *commands))
    np.testing.assert_allclose(found, pi.skill(pi.act(state, (obs, goal - position), None)), atol=1e-5)
    room = task.maze.room
    low, high = np.array([room.x, room.y]), np.array([room.x + room.width, room.y + room.height])
    assert len(path) == 151 and np.ptp(path, axis=0).max() > 1e-3
    assert (path > low - 0.05).all() and (path < high + 0.05).all()


def test_page_is_whole_and_self_contained(tmp_path):
    env = envs.make("point", bank_size=16)
    page = write_page(tmp_path / "eval" / "explore_0.html", env, skills_of(env))
    assert [file.name for file in page.parent.iterdir()] == ["explore_0.html"]
    text = page.read_text()
    assert not re.search(r"@[A-Z]+@", text)
    assert not re.search(r'(src|href)="(?!data:,)', text)
    assert page.stat().st_size < 3e6
    shown = explore.Page(page)._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')


def test_assets_are_those_of_the_manifest():
    """What is committed is what was built: sizes and hashes."""
    from hashlib import sha256

    from genda_mjx.explorer.page import ASSETS

    manifest = json.loads((ASSETS / "manifest.json").read_text())
    for name, facts in manifest["files"].items():
        content = (ASSETS / name).read_bytes()
        assert (len(content), sha256(content).hexdigest()) == (facts["bytes"], facts["sha256"]), name


def test_a_body_that_the_browser_cannot_follow_is_refused():
    env = envs.make("point", bank_size=16)
    with pytest.raises(UserError, match="sees something else"):
        explore.draft(Pixels(env), skills_of(env))
    env.observe = lambda quantities: [quantities.qpos, jnp.linalg.norm(quantities.motion.cvel[0], axis=0)[None]]
    with pytest.raises(UserError, match="point's observation uses a quantity that the page does not have"):
        explore.draft(env, skills_of(env))


def test_a_run_without_an_evaluation_record_is_refused(tmp_path):
    with pytest.raises(UserError, match="no evaluation was recorded at step 800"):
        explore.recorded(tmp_path, 800)
    assert list(tmp_path.iterdir()) == []
