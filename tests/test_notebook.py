"""The quick-start notebook, executed as it is written: its cells are plain Python but for the line that installs."""

import json
from pathlib import Path

import matplotlib
import pytest

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "quickstart.ipynb"


def code_cells() -> list[str]:
    """The code of every cell; a line for the notebook alone (%pip) becomes a pass."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    lines = [["pass" if line.strip().startswith("%") else line for line in cell["source"]] for cell in cells]
    return [
        "".join(f"{' ' * 4}{line}\n" if line == "pass" else line for line in source)
        for cell, source in zip(cells, lines, strict=True)
        if cell["cell_type"] == "code"
    ]


def test_every_cell_is_valid_python():
    for source in code_cells():
        compile(source, NOTEBOOK.name, "exec")


@pytest.mark.slow
def test_notebook_runs():
    matplotlib.use("Agg")
    names = {}
    for source in code_cells():
        exec(compile(source, NOTEBOOK.name, "exec"), names)
    assert names["page"].path.stat().st_size > 1e6
    changed = names["last_evaluation"](names["runs"] / "right_angle")["position"]
    assert abs(changed - names["last_evaluation"](names["runs"] / "genda")["position"]).max() > 0.1
