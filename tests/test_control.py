"""Where in an episode control is lost, on episodes whose answer is known."""

import numpy as np

from experiments import control


def test_a_lunge_that_falls_and_turns_shows_in_every_row():
    """Four skills go where z says until half time; then they lie on their backs, have turned by a right angle and
    slide sideways."""
    skills = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float64)
    side = skills[:, ::-1] * [1, -1]
    pace = np.repeat(np.concatenate([np.ones((10, 1)), np.zeros((10, 1))])[None], 4, 0)
    ways = pace * skills[:, None] + (1 - pace) * side[:, None]
    positions = np.concatenate([np.zeros((4, 1, 2)), ways.cumsum(1)], 1)
    upright, on_its_back = [1, 0, 0, 0], [0, np.sqrt(0.5), np.sqrt(0.5), 0]  # half a turn about (x + y): heading +y
    qpos = np.zeros((4, 21, 7), np.float16)
    qpos[:, :10, 3:7], qpos[:, 10:, 3:7] = upright, on_its_back
    text = control.describe(skills, {"latents": 2 * positions, "position": positions, "qpos": qpos}, stands=True)
    rows = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]]
        for line in text.splitlines()
        if "|" in line
    }
    assert rows["cosine"] == ["1.0"] * 5 + ["0.0"] * 5 and rows["metres"] == ["2.0"] * 10
    assert rows["upright"] == ["1.0"] * 5 + ["0.0"] * 5 and rows["turned, rad"] == ["0.0"] * 5 + ["1.57"] * 5
    assert rows["cosine, weighted by metres"][0] == "1.00" and "0.00" in rows["cosine, weighted by metres"][2:4]
    assert "phi explained by displacement: 1.00" in text


def test_skills_that_stay_or_go_elsewhere_show_by_direction():
    """phi is the floor turned by a right angle and stretched. Skills go 10 m where z says, but for one that stays and
    one that goes 20 degrees to the left of it."""
    asked = np.radians(15 + 30 * np.arange(12))  # the middles of the sectors
    gone, metres = asked.copy(), np.full(12, 10.0)
    metres[2], gone[7] = 0.1, gone[7] + np.radians(20)
    moved = metres[:, None] * np.stack([np.cos(gone), np.sin(gone)], -1)
    positions = np.stack([np.zeros_like(moved), moved], 1)
    latents = 3 * positions[..., ::-1] * [-1, 1]
    wanted = np.stack([-np.sin(asked), np.cos(asked)], -1)
    rows = [line.strip("| ").split(" | ") for line in control.by_direction(wanted, latents, positions).splitlines()]
    assert rows[2] == ["skills", *["1"] * 12]
    assert rows[3] == ["net metres", "10.0", "10.0", "0.1", *["10.0"] * 9]
    assert rows[4] == ["off, degrees", *["0"] * 7, "20", *["0"] * 4]
