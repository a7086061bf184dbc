"""Mazes: a text grid becomes a room of four planes with a few boxes in it.

    #  wall      .  free      S  start of the evaluation      G  its goal

One character is one cell; the first line is the far end (+y), the first column the left end (-x). Everything outside
the grid is wall: a border of # may be drawn or left out. The bottom left cell inside the border is cell (0, 0), and its
centre is the world's origin. Lines are as long as each other; there are one S and one G, and a way between them.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

WALL, FREE, START, GOAL = "#.SG"
STEPS = ((1, 0), (-1, 0), (0, 1), (0, -1))

# The paper's two: a room of 7 x 7 cells and one block.
EASY = """\
####.G.
####...
####...
####...
.......
.......
.S.....
"""
HARD = """\
.G.....
.......
####...
####...
####...
.......
.S.....
"""


class Rectangle(NamedTuple):
    """Low corner and size, m."""

    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True, eq=False)
class Maze:
    """A layout: which cells are free, how large they are, and the evaluation's start and goal."""

    free: np.ndarray  # [columns, rows] bool
    side: float  # m, of a cell
    start: tuple[int, int]  # cell (i, j); its centre is (i, j) * side
    goal: tuple[int, int]

    @property
    def start_xy(self) -> np.ndarray:
        """[2] m."""
        return self.centre(self.start)

    @property
    def goal_xy(self) -> np.ndarray:
        """[2] m."""
        return self.centre(self.goal)

    @property
    def room(self) -> Rectangle:
        """What the outer walls enclose."""
        return self._rectangle(0, 0, *self.free.shape)

    @property
    def blocks(self) -> tuple[Rectangle, ...]:
        """Walls inside the room; they may overlap."""
        return tuple(self._rectangle(*block) for block in cover(~self.free))

    @property
    def walls(self) -> tuple[Rectangle, ...]:
        """Everything to draw: the blocks, and an outer wall of one cell."""
        x, y, width, height = self.room
        s = self.side
        around = [
            Rectangle(x - s, y - s, width + 2 * s, s),
            Rectangle(x - s, y + height, width + 2 * s, s),
            Rectangle(x - s, y, s, height),
            Rectangle(x + width, y, s, height),
        ]
        return (*self.blocks, *around)

    def centre(self, cell) -> np.ndarray:
        """[..., 2] m, of cells [..., 2]."""
        return np.asarray(cell) * self.side

    def reachable(self) -> np.ndarray:
        """[c, 2] cells that can be walked to from the start."""
        return np.array(sorted(_reachable(self.free, self.start)))

    def way(self) -> np.ndarray:
        """[columns, rows, 2] for every cell the next one on a shortest way to the goal; walls and the goal stay."""
        following = np.stack(np.indices(self.free.shape), axis=-1)
        seen, frontier = {self.goal}, [self.goal]
        for cell in frontier:  # grows: the nearest cells come first
            for i, j in _neighbours(self.free, cell):
                if (i, j) not in seen:
                    seen.add((i, j))
                    frontier.append((i, j))
                    following[i, j] = cell
        return following

    def corners(self) -> list[tuple[float, float, int, int]]:
        """Vertical wall edges that stick out into free space: x, y (m) and the quadrant (+-1, +-1) that is wall."""
        solid = np.pad(~self.free, 1, constant_values=True)
        found = []
        for i, j in itertools.product(*(range(1, n) for n in self.free.shape)):
            around = solid[i : i + 2, j : j + 2]
            for a, b in itertools.product((0, 1), repeat=2):
                if around[a, b] and not around[1 - a, b] and not around[a, 1 - b]:
                    found.append(((i - 0.5) * self.side, (j - 0.5) * self.side, 2 * a - 1, 2 * b - 1))
        return found

    def _rectangle(self, i0: int, j0: int, i1: int, j1: int) -> Rectangle:
        s = self.side
        return Rectangle((i0 - 0.5) * s, (j0 - 0.5) * s, (i1 - i0) * s, (j1 - j0) * s)


def read(path: Path, side: float) -> Maze:
    """The maze of a text file; ValueError points at what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the maze {path}: {error}") from None
    return parse(text, side, str(path))


def parse(text: str, side: float, source: str) -> Maze:
    """The maze of a text; errors call it `source`."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    _check_characters(lines, source)
    grid = np.array([list(line) for line in lines])
    if not (grid != WALL).any():
        raise ValueError(f"{source}: no free cell; free cells are {FREE}, {START} and {GOAL}")
    marks = {mark: _only(grid, mark, source) for mark in (START, GOAL)}
    cells = np.flipud(grid).T  # [columns, rows], y upwards
    inner = np.argwhere(cells != WALL)
    low, high = inner.min(0), inner.max(0) + 1
    free = (cells != WALL)[low[0] : high[0], low[1] : high[1]]
    cell = {m: (int(column - low[0]), int(len(grid) - 1 - row - low[1])) for m, (row, column) in marks.items()}
    if cell[GOAL] not in _reachable(free, cell[START]):
        (row, column), (start_row, start_column) = marks[GOAL], marks[START]
        raise ValueError(
            f"{source}, line {row + 1}, column {column + 1}: the goal cannot be reached from the start "
            f"in line {start_row + 1}, column {start_column + 1} (cells meet at their sides, not at corners)"
        )
    return Maze(free, side, cell[START], cell[GOAL])


def _check_characters(lines: list[str], source: str) -> None:
    if not lines:
        raise ValueError(f"{source}: empty; expected lines of the characters {WALL} {FREE} {START} {GOAL}")
    for number, line in enumerate(lines, 1):
        for column, character in enumerate(line, 1):
            if character not in (WALL, FREE, START, GOAL):
                raise ValueError(
                    f"{source}, line {number}, column {column}: unknown character {character!r}; "
                    f"expected {WALL} (wall), {FREE} (free), {START} (start) or {GOAL} (goal)"
                )
        if len(line) != len(lines[0]):
            raise ValueError(
                f"{source}, line {number}, column {min(len(line), len(lines[0])) + 1}: "
                f"{len(line)} cells in this line and {len(lines[0])} in line 1; all lines must be as long as each other"
            )


def _only(grid: np.ndarray, mark: str, source: str) -> tuple[int, int]:
    """Row and column of a mark that must be there once."""
    found = np.argwhere(grid == mark)
    if len(found) == 0:
        what = "start" if mark == START else "goal"
        raise ValueError(f"{source}: no {mark} ({what}) in the grid; mark one free cell with it")
    if len(found) > 1:
        (row, column), (first_row, first_column) = found[1], found[0]
        raise ValueError(
            f"{source}, line {row + 1}, column {column + 1}: a second {mark}; "
            f"the first is in line {first_row + 1}, column {first_column + 1}"
        )
    return tuple(found[0])


def _reachable(free: np.ndarray, start: tuple[int, int]) -> set[tuple[int, int]]:
    """Cells connected to the start through sides."""
    seen, frontier = {start}, [start]
    while frontier:
        for cell in _neighbours(free, frontier.pop()):
            if cell not in seen:
                seen.add(cell)
                frontier.append(cell)
    return seen


def _neighbours(free: np.ndarray, cell: tuple[int, int]) -> list[tuple[int, int]]:
    """Free cells beside a cell."""
    around = [(cell[0] + di, cell[1] + dj) for di, dj in STEPS]
    return [(i, j) for i, j in around if 0 <= i < free.shape[0] and 0 <= j < free.shape[1] and free[i, j]]


def cover(solid: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Rectangles (i0, j0, i1, j1), ends excluded, that cover exactly the solid cells [columns, rows]; may overlap.

    Greedy: each is the all-solid rectangle with the most cells that are not covered yet, the largest of equals.
    """
    total = _prefix_sums(solid)
    columns, rows = (list(itertools.combinations(range(n + 1), 2)) for n in solid.shape)
    i, j = np.array(columns), np.array(rows)
    bounds = np.stack(
        [np.repeat(i[:, 0], len(j)), np.tile(j[:, 0], len(i)), np.repeat(i[:, 1], len(j)), np.tile(j[:, 1], len(i))]
    )
    area = (bounds[2] - bounds[0]) * (bounds[3] - bounds[1])
    full = _sums(total, bounds) == area
    bounds, area = bounds[:, full], area[full]
    left, chosen = solid.copy(), []
    while left.any():
        gain = _sums(_prefix_sums(left), bounds)
        i0, j0, i1, j1 = (int(b) for b in bounds[:, np.lexsort((area, gain))[-1]])
        left[i0:i1, j0:j1] = False
        chosen.append((i0, j0, i1, j1))
    return chosen


def _prefix_sums(cells: np.ndarray) -> np.ndarray:
    return np.pad(cells.cumsum(0).cumsum(1), ((1, 0), (1, 0)))


def _sums(prefix: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Number of marked cells in each rectangle [4, k]."""
    i0, j0, i1, j1 = bounds
    return prefix[i1, j1] - prefix[i0, j1] - prefix[i1, j0] + prefix[i0, j0]
