"""docs/add-an-env.md as a reader would follow it: its file, one line in the registry, its statistics, and it trains."""

import ast
import json
import re
import sys
from pathlib import Path

import jax
import mujoco
import numpy as np
import pytest
from trainer_helpers import build, tiny

import envs
from envs import normalizer, resets

PAGE = Path(__file__).parent.parent / "docs" / "add-an-env.md"


@pytest.fixture
def eel(tmp_path, monkeypatch):
    """The page's first block as a module of the package, its second as a line of the registry."""
    source, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    name = ast.literal_eval(line.strip().rstrip(","))
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setattr(envs, "__path__", [*envs.__path__, str(tmp_path)])
    monkeypatch.setattr(envs, "NAMES", (*envs.NAMES, name))
    monkeypatch.setattr(normalizer, "FILE", tmp_path / "normalizer.json")
    monkeypatch.setattr(resets, "CACHE", tmp_path / "banks")
    yield name
    del sys.modules[f"envs.{name}"]


def test_the_page_s_body_moves_as_in_c_and_learns(eel, monkeypatch):
    with pytest.raises(ValueError, match=rf"python -m envs\.normalizer {eel}"):
        envs.make(eel)
    monkeypatch.setattr(envs.body_class(eel), "normalizer_episodes", 8)
    normalizer.main([eel])  # the command that the message recommends
    assert json.loads(normalizer.FILE.read_text())[eel]["episodes"] == 8
    env = envs.make(eel)
    assert env.observation_size == 10 and env.action_size == 2

    model = env.stock_spec().compile()
    data, actions = mujoco.MjData(model), np.random.default_rng(0).uniform(-1, 1, (25, 2)).astype(np.float32)
    state = env.start_from(3, np.zeros(2, np.float32))
    data.qpos[:] = np.asarray(state.pipeline_state.physics.qpos)
    step = jax.jit(env.step)
    for action in actions:
        state = step(state, action)
        data.ctrl[:] = action
        mujoco.mj_step(model, data, env.physics_steps)
    np.testing.assert_allclose(state.pipeline_state.physics.qpos, data.qpos, atol=1e-4)
    assert np.linalg.norm(data.qpos[:2]) > 0.01  # it swims

    built = build(tiny(utd=0.01, num_envs=2, warmup_episodes=2, total_steps=2000, buffer_size=2000), env)
    run, metrics = built.program.init(jax.random.key(0)), None
    for _ in range(2):
        run, metrics = built.program.run(run, np.int32(1))
    assert int(run.agent.updates) == 4 and all(np.isfinite(value).all() for value in metrics.values())


def test_a_changed_reset_law_draws_new_starts(eel, tmp_path):
    cls = envs.body_class(eel)
    first = envs.make(eel, normalize=False, bank_size=16)
    assert resets.cache_key(first, 16) == resets.cache_key(first, 16) != resets.cache_key(first, 17)
    file = Path(sys.modules[cls.__module__].__file__)
    file.write_text(file.read_text().replace("rng.uniform(-np.pi, np.pi)", "rng.uniform(0.0, 0.1)"))
    del sys.modules[cls.__module__]
    import linecache

    linecache.checkcache()
    changed = envs.make(eel, normalize=False, bank_size=16)
    assert np.abs(first.bank.qpos[:, 2]).max() > 1 and np.abs(changed.bank.qpos[:, 2]).max() <= 0.1
    assert len(list((tmp_path / "banks").iterdir())) == 2
