"""Kitchen: a Franka arm among furniture, moved by its hand as in LEXA. Seven actions; success is counted in tasks."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs import kitchen_model, kitchen_picture, physics
from envs.body import Body, BodyState
from envs.physics import PhysicsState, Quantities, StepRecord
from envs.physics.tree import Tree, kinematics

Array = jax.Array
REACH = 0.05  # m of xyz, and share of the turn, by which the target leads the hand at every physics step

# LEXA's start: seven arm joints, two fingers (beyond their range of 4 cm, where they are put), then the objects.
ARM_START = (0.148388023, -1.76848573, 1.84390296, -2.47685760, 0.260252026, 0.712533105, 1.59515394)
FINGER_START = (0.04, 0.0371350919)
KETTLE_START = (-0.26939744, 0.350383255, 1.61944683, 1.00618764, 0.0040639512, -0.00662095997, -0.000268278933)
JOINT_START = {
    "knob_Joint_1": -2.66279850e-04,
    "knob_Joint_2": 3.12877220e-05,
    "knob_Joint_3": -3.90842156e-06,
    "knob_Joint_4": 6.28065475e-05,
    "light_switch": 4.62730939e-04,
    "slide_cabinet": -4.65501369e-04,
    "left_hinge_cabinet": -6.44129196e-03,
    "right_hinge_cabinet": -1.77048263e-03,
    "microwave": 1.08009684e-03,
}
# The six tasks: a joint's goal and how near counts (rad, m); the knob and the switch must only be turned far enough.
TASKS = {
    "bottom_burner": ("knob_Joint_1", -np.inf, -0.38),
    "light_switch": ("light_switch", -np.inf, -0.25),
    "slide_cabinet": ("slide_cabinet", 0.27, 0.47),
    "hinge_cabinet": ("right_hinge_cabinet", 0.3, 0.7),
    "microwave": ("microwave", -0.7, -0.3),
}
KETTLE_GOAL, KETTLE_RADIUS = (-0.23, 0.75), 0.2  # m
ARM_JOINTS = 9  # coordinates of arm and fingers, which come first


def tasks_done(model: mujoco.MjModel, qpos: np.ndarray) -> dict[str, np.ndarray]:
    """Which of the six tasks the states qpos [..., nq] fulfil, each [...] bool; any model with the stock joints."""
    done = {}
    for task, (joint, low, high) in TASKS.items():
        q = qpos[..., model.joint(joint).qposadr[0]]
        done[task] = (low < q) & (q < high)
    start = model.joint("kettle").qposadr[0]
    done["kettle"] = np.linalg.norm(qpos[..., start : start + 2] - np.array(KETTLE_GOAL), axis=-1) < KETTLE_RADIUS
    return done


def start(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Puts data (just reset) in LEXA's start; any model with the stock joints."""
    for name, value in JOINT_START.items():
        data.joint(name).qpos[0] = value
    data.qpos[:ARM_JOINTS] = (*ARM_START, *FINGER_START)
    data.joint("kettle").qpos[:] = KETTLE_START
    mujoco.mj_normalizeQuat(model, data.qpos)


class Kitchen(Body):
    name = "kitchen"
    control_timestep, action_repeat, episode_length = 0.08, 1, 50
    normalizer_episodes = 256
    position_size = 3  # the hand's
    headline, unit = "tasks", "of 6 tasks"
    tasks = ()
    movable = False
    camera = kitchen_picture.CAMERA
    lamp_covers = kitchen_picture.COVERS
    withheld = 7  # arm joints move easily and far: phi would follow them more than objects
    # Scales (rad, m) that random actions do not tell, since objects hardly move then: about half of their task.
    fixed_std = dict.fromkeys((3, 4), 0.04) | dict.fromkeys((5, 6, 7, 8, 11, 12, 13), 0.2)
    fixed_std |= {9: 0.12, 10: 0.1, 14: 0.1, 15: 0.1, 16: 0.5}
    fixed_std |= dict.fromkeys(range(17, 21), 1.0)  # a kettle that tips over does no task

    def __init__(self, **options):
        if np.any(options.get("offset", 0)) or options.get("maze") is not None:
            raise ValueError("the kitchen's furniture does not move: make it without offset and maze")
        super().__init__(**options)

    @classmethod
    def stock_spec(cls) -> mujoco.MjSpec:
        return kitchen_model.stock_spec()

    @classmethod
    def edited_spec(cls) -> mujoco.MjSpec:
        """What is simulated: capsules and boxes, no burners and lamp."""
        return kitchen_model.reduced_spec()

    @classmethod
    def start_spec(cls) -> mujoco.MjSpec:
        """The simulated model: the stock one has coordinates of burners and lamp."""
        return cls.edited_spec()

    @classmethod
    def draw_start(cls, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> np.ndarray:
        """Always LEXA's start."""
        start(model, data)
        return np.zeros(0)

    @functools.cached_property
    def drawn_model(self) -> mujoco.MjModel:
        return kitchen_picture.drawn_spec().compile()

    @functools.cached_property
    def drawn_tree(self) -> Tree:
        return Tree.of(self.drawn_model)

    def drawn_coordinates(self, qpos: Array) -> Array:
        """With burners and lamp, which are not simulated."""
        return kitchen_picture.drawn_coordinates(self.drawn_model, self.model, qpos)

    @property
    def action_size(self) -> int:
        """xyz, three Euler angles, gripper."""
        return 7

    def stock_sensors(self, model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
        """[7] where the hand's link is: m, quaternion."""
        hand = data.body(kitchen_model.HAND)
        return np.concatenate([hand.xpos, hand.xquat])

    def observe(self, quantities: Quantities) -> list[Array]:
        """[28] hand xyz (m), fingers (m), knobs, switch, slide, doors, microwave, kettle's pose; the arm's joints."""
        arm, others = quantities.qpos[: self.withheld], quantities.qpos[self.withheld :]
        return [quantities.position(kitchen_model.HAND), others, arm]

    def measure(self, traces: dict[str, np.ndarray]) -> dict[str, float]:
        """How many of the six tasks any episode fulfils at any step, and the share of episodes for each."""
        qpos = np.asarray(traces["qpos"], np.float64)
        shares = {name: float(done.any(1).mean()) for name, done in tasks_done(self.model, qpos).items()}
        return {self.headline: sum(share > 0 for share in shares.values())} | shares

    def _start(self, index: Array, xy: Array) -> BodyState:
        """The start stays where the furniture is: xy is not added."""
        return super()._start(index, jnp.zeros(2))

    def _advance(self, body: BodyState, action: Array) -> tuple[BodyState, Array]:
        """One agent step: at each physics step the weld's target leads the hand by a share of the action.

        As in LEXA the hand's pose is that of the last physics step's start, so it is carried in `sensors`.
        """
        action = jnp.clip(action, -1, 1)
        gripper = action[6:]
        ctrl = jnp.concatenate([jnp.zeros((7, action.shape[1])), gripper, -gripper])
        goal = from_euler(to_euler(body.sensors[3:]) - action[3:6])

        def substep(carry: tuple[PhysicsState, Array], _) -> tuple[tuple[PhysicsState, Array], None]:
            state, hand = carry
            quat = hand[3:] + REACH * (goal - hand[3:])
            target = jnp.concatenate([hand[:3] + REACH * action[:3], quat / jnp.linalg.norm(quat, axis=0)])
            with jax.named_scope("physics"):
                after, record = physics.step(self.physics_model, state, ctrl, target)
            return (after, self._hand(record)), None

        carry, _ = jax.lax.scan(substep, (body.physics, body.sensors), None, length=self.physics_steps)
        after = BodyState(*carry, body.drawn, body.failed)
        return after, self._observation(after)

    def _hand(self, record: StepRecord) -> Array:
        """[7, N] pose of the hand's link at the start of a physics step."""
        poses, row = kinematics(self.physics_model.tree, record.qpos), self.model.body(kitchen_model.HAND).id
        return jnp.stack([*poses.pos.at(row), *poses.quat.at(row)])

    def _position(self, body: BodyState) -> Array:
        return body.sensors[:3]


def to_euler(quat: Array) -> Array:
    """[3, ...] angles of the turns about z, y and z that make a unit quaternion [4, ...]."""
    w, x, y, z = quat
    total, difference = jnp.arctan2(z, w), jnp.arctan2(-x, y)
    return jnp.stack([total + difference, 2 * jnp.arctan2(jnp.hypot(x, y), jnp.hypot(w, z)), total - difference])


def from_euler(angles: Array) -> Array:
    """The quaternion [4, ...] of turns about z, y and z."""
    first, middle, last = angles
    total, difference, half = (first + last) / 2, (first - last) / 2, middle / 2
    return jnp.stack(
        [
            jnp.cos(half) * jnp.cos(total),
            -jnp.sin(half) * jnp.sin(difference),
            jnp.sin(half) * jnp.cos(difference),
            jnp.cos(half) * jnp.sin(total),
        ]
    )
