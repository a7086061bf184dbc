"""Body: a MuJoCo model as a `SkillEnv`, stepped in any number of vmapped copies by `envs.physics`."""

import abc
import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from brax.envs.base import State

from envs import facing, measures, normalizer, physics, resets
from envs.base import SkillEnv
from envs.batching import copies_last
from envs.physics import PhysicsModel, PhysicsState, Quantities, SensorQuantities, StepRecord
from envs.physics.tree import Tree
from envs.tasks import collision
from envs.tasks.layout import Maze

if TYPE_CHECKING:
    from envs.render.camera import Camera

Array = jax.Array
EXPLODED = 1e4  # a speed (m/s, rad/s) no body of ours can have; beyond it the physics is counted as failed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BodyState:
    """State of one copy."""

    physics: PhysicsState
    sensors: Array  # [ns] acceleration-stage sensors of the last physics step
    drawn: Array  # [k] what the reset drew for the episode (fish: target position)
    failed: Array  # bool: the physics went non-finite; the copy stays as it was before


class Body(SkillEnv):
    """A body file derives from this and states its model, its observation and its reset law."""

    control_timestep: float  # s, of the dm_control task
    action_repeat = 2  # control steps in an agent step
    normalizer_episodes = 512  # random episodes that its observation statistics come from
    fixed_std: ClassVar[dict[int, float]] = {}  # entries of the observation whose std is chosen, not measured
    world_vectors: ClassVar[tuple[int, ...]] = ()  # where vectors in world axes (x, y, z) begin in the observation
    stands = False  # has a torso at its root whose z axis points up when it stands
    upright_cosine = 0.0  # of that axis with the vertical, above which the body counts as upright
    wall_condim = 3  # of contacts with maze walls: 3 with friction, 1 without
    wall_tolerance = 0.005  # m, by which parts of the body may stick into maze walls (`envs.tasks.collision`)

    # Downstream tasks (`envs.tasks.goals`).
    tasks: tuple[str, ...] = ("fs_rg", "rs_rg", "maze_easy", "maze_hard", "maze")
    task_scale = 1.0  # of the tasks' lengths
    goal_radius = maze_goal_radius = 1.5  # m, a goal is reached within (code; the paper gives none)
    goal_ahead = 0.0  # m; above 0 a goal lies so far ahead of the start instead of on the floor
    floor_horizon = 200  # agent steps of an episode without a maze

    # Pictures (`envs.render`).
    camera: "str | Camera | None" = None  # of the stock model, that a picture is taken with, or one that stands still
    drawn_groups = (0, 1, 2)  # groups of geoms that a picture shows: those of MuJoCo's viewers
    floor_size, floor_height = 15.0, 0.0  # m, half side of the drawn floor (paper), and its height
    lamp_covers: ClassVar[dict[str, tuple[str, float]]] = {}  # of a room's lamps (`envs.render.shading.room_lamps`)

    def __init__(
        self,
        *,
        normalize: bool = True,
        offset: tuple[float, float] = (0.0, 0.0),
        fixed_start: int | None = None,
        bank_size: int = 4096,
        maze: Maze | None = None,
        orientation: bool = False,
        standing: bool = False,
    ):
        """normalize: standardise observations with the body's fixed mean and std (`envs.normalizer`).
        offset: xy shift of every start, m. fixed_start: always start from this state of the bank.
        bank_size: number of start states drawn by the reset law. maze: walls around the body; starts that keep clear of
        them are in `envs.tasks.goals`. orientation: observations end with the torso's axes, for the policy only.
        standing: start still and upright (`resets.stand`), instead of by the body's own law."""
        if np.shape(offset) != (2,):
            raise ValueError(f"offset must be two numbers (x, y) in metres, got {offset!r}")
        if fixed_start is not None and not 0 <= fixed_start < bank_size:
            raise ValueError(f"fixed_start must be a bank index in [0, {bank_size}), got {fixed_start}")
        self.maze, self.orientation, spec = maze, orientation, self.edited_spec()
        self.withheld += facing.SIZE * orientation
        if maze is not None:
            collision.enclose(spec, maze, self.wall_condim, self.wall_tolerance)
        self.model = spec.compile()
        if orientation and self.model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE:
            raise ValueError(f"{self.name} has no torso that turns freely, so there is no orientation to observe")
        self.physics_model = PhysicsModel.of(self.model)
        steps = self.action_repeat * self.control_timestep / self.model.opt.timestep
        self.physics_steps = round(steps)
        if abs(steps - self.physics_steps) > 1e-6:
            raise ValueError(f"{self.name}: agent step is not a whole number of physics steps ({steps})")
        if standing and not self.stands:
            raise ValueError(f"{self.name} has no feet to stand on: it starts by its own law")
        self.standing = standing
        self.offset, self.fixed_start = np.asarray(offset, np.float32), fixed_start
        self.bank = resets.bank(self, bank_size)
        size = jax.eval_shape(lambda: self._observe_raw(self._start(jnp.zeros((), int), jnp.zeros(2)))).shape[0]
        self.obs_mean, self.obs_std = np.zeros(size), np.ones(size)
        if normalize:  # the axes of the torso are of unit length as they are
            known = size - facing.SIZE * orientation
            self.obs_mean[:known], self.obs_std[:known] = normalizer.load(self.name, known)

    # What a body file provides.
    @classmethod
    @abc.abstractmethod
    def stock_spec(cls) -> mujoco.MjSpec:
        """The dm_control task's model."""

    @classmethod
    @abc.abstractmethod
    def edited_spec(cls) -> mujoco.MjSpec:
        """The model we simulate; each edit is a row in envs/README.md."""

    @classmethod
    def start_spec(cls) -> mujoco.MjSpec:
        """The model that starts are drawn in; the stock one, where it has the same coordinates."""
        return cls.stock_spec()

    @classmethod
    @abc.abstractmethod
    def draw_start(cls, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> np.ndarray:
        """Puts data (of `start_spec`, just reset) in a start state; returns what else was drawn."""

    @abc.abstractmethod
    def observe(self, quantities: Quantities) -> list[Array]:
        """The observation: named quantities [k, N] in order."""

    def seen(self, quantities: Quantities) -> list[Array]:
        """The observation and, if asked for, the torso's x and y axes in the world."""
        orientation = [facing.axes(quantities.qpos[3:7])] if self.orientation else []
        return [*self.observe(quantities), *orientation]

    def sense(self, sensors: SensorQuantities) -> list[Array]:
        """Acceleration-stage sensors [k, N] in order; none unless a body says so."""
        return []

    def stock_sensors(self, model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
        """The same sensors read from C MuJoCo, for start states (in `start_spec`)."""
        return np.zeros(0)

    # What pictures are drawn from (`envs.render`).
    @property
    def drawn_model(self) -> mujoco.MjModel:
        """The model whose shapes, materials and lamps are drawn."""
        return self.stock_spec().compile()

    @property
    def drawn_tree(self) -> Tree:
        """The tree that its bodies belong to."""
        return self.physics_model.tree

    def drawn_coordinates(self, qpos: Array) -> Array:
        """The tree's coordinates from those that are simulated [nq, N]."""
        return qpos

    @property
    def turned(self) -> Callable[[Array, Array], Array] | None:
        """Known where nothing stands around the body and the observation says how it lies."""
        return self._turned if self.world_vectors and self.orientation and self.maze is None else None

    # brax.envs.base.Env
    @property
    def observation_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.obs_mean.shape, jnp.float32)

    @property
    def action_size(self) -> int:
        return self.model.nu

    @property
    def backend(self) -> str:
        return "mjx"

    @property
    def dt(self) -> float:
        """Seconds per agent step."""
        return self.action_repeat * self.control_timestep

    def reset(self, rng: Array) -> State:
        """A start state of the body's reset law, shifted by `offset`."""
        return self.reset_at(rng, self.offset)

    def reset_at(self, rng: Array, xy: Array) -> State:
        """A start state moved by xy [2], m; `offset` is not added."""
        size = len(self.bank.qpos)
        index = jax.random.randint(rng, (), 0, size) if self.fixed_start is None else jnp.array(self.fixed_start)
        return self.start_from(index, xy)

    def start_from(self, index: Array, xy: Array) -> State:
        """The bank's start state `index`, moved by xy [2], m."""
        body = self._start(index, xy)
        return State(
            pipeline_state=body,
            obs=self._normalized(self._observe_raw(body)),
            reward=jnp.zeros(()),
            done=jnp.zeros(()),
            metrics={},
            info={"position": self._position(body), "failed": body.failed},
        )

    def step(self, state: State, action: Array) -> State:
        """One agent step: the same action for two control steps. No reward, no termination."""
        if action.shape != (self.action_size,):
            raise ValueError(f"{self.name} takes actions of shape ({self.action_size},), got {action.shape}")
        before: BodyState = state.pipeline_state
        with jax.default_matmul_precision("highest"):
            after, raw = self._advance_one(before, action)
        finite = jnp.isfinite(raw).all() & jnp.isfinite(after.physics.qpos).all()
        sane = finite & (jnp.abs(after.physics.qvel).max() < EXPLODED)
        failed = before.failed | ~sane

        def keep(old: Array, new: Array) -> Array:
            return jnp.where(failed, old, new)

        body = dataclasses.replace(jax.tree.map(keep, before, after), failed=failed)
        info = {**state.info, "position": self._position(body), "failed": failed}
        return state.replace(pipeline_state=body, obs=keep(state.obs, self._normalized(raw)), info=info)

    def trace(self, state: State) -> dict[str, Array]:
        """Position, and all coordinates (float16 is enough), so that a skill can be shown without running it again."""
        return super().trace(state) | {"qpos": state.pipeline_state.physics.qpos.astype(jnp.float16)}

    def measure(self, traces: dict[str, np.ndarray]) -> dict[str, float]:
        found = super().measure(traces)
        if self.stands:
            found["upright_share"] = measures.upright_share(traces["qpos"][:, -1, 3:7], self.upright_cosine)
        return found

    # Inside: copies first outside `copies_last`, last inside. Jitted, so that a program which steps the body in several
    # places traces its physics once.
    @cached_property
    def _advance_one(self) -> Callable[[BodyState, Array], tuple[BodyState, Array]]:
        return copies_last(jax.jit(self._advance, inline=True))

    @cached_property
    def _observe_one(self) -> Callable[[BodyState], Array]:
        return copies_last(jax.jit(self._observation, inline=True))

    def _start(self, index: Array, xy: Array) -> BodyState:
        row = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], self.bank)
        qpos, drawn = row.qpos.at[:2].add(xy), row.drawn
        if drawn.size:
            drawn = drawn.at[:2].add(xy)  # world points move along
        state = PhysicsState(qpos, row.qvel, row.act, jnp.zeros_like(row.qvel))
        return BodyState(state, row.sensors, drawn, jnp.zeros((), bool))

    def _advance(self, body: BodyState, action: Array) -> tuple[BodyState, Array]:
        """One agent step of N copies (last axis): the next bodies and their raw observations [obs, N]."""
        low, high = self.model.actuator_ctrlrange.T[..., None].astype(np.float32)
        ctrl = low + (high - low) * (jnp.clip(action, -1, 1) + 1) / 2

        @partial(jax.jit, inline=True)  # traced once for both uses
        def substep(state: PhysicsState, ctrl: Array) -> tuple[PhysicsState, StepRecord]:
            with jax.named_scope("physics"):
                return physics.step(self.physics_model, state, ctrl)

        shapes = jax.eval_shape(substep, body.physics, ctrl)[1]
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        (state, record), _ = jax.lax.scan(
            lambda carry, _: (substep(carry[0], ctrl), None), (body.physics, blank), None, length=self.physics_steps
        )
        sensors = self.sense(SensorQuantities(self.physics_model, record)) or [body.sensors]
        after = BodyState(state, jnp.concatenate(sensors), body.drawn, body.failed)
        return after, self._observation(after)

    def _observation(self, body: BodyState) -> Array:
        """[obs, N] raw observations."""
        state = body.physics
        quantities = Quantities(self.physics_model, state.qpos, state.qvel, state.act, body.sensors, body.drawn)
        return jnp.concatenate(self.seen(quantities))

    def _observe_raw(self, body: BodyState) -> Array:
        with jax.default_matmul_precision("highest"):
            return self._observe_one(body)

    def _normalized(self, raw: Array) -> Array:
        return (raw - self.obs_mean.astype(np.float32)) / (self.obs_std.astype(np.float32) + 1e-8)

    def _turned(self, observations: Array, angles: Array) -> Array:
        axes = len(self.obs_mean) - facing.SIZE  # the torso's come last
        vectors = (*self.world_vectors, axes, axes + 3)
        mean, std = self.obs_mean.astype(np.float32), self.obs_std.astype(np.float32) + 1e-8
        return facing.turn(observations, angles, vectors, mean, std)

    def _position(self, body: BodyState) -> Array:
        return body.physics.qpos[: self.position_size]
