"""Pictures of an environment's bodies: its scene, and the poses that `draw` takes, from its coordinates."""

import jax
import jax.numpy as jnp

from envs.batching import copies_last
from envs.body import Body
from envs.physics.tree import kinematics
from envs.physics.vectors import Vec
from envs.render.camera import Camera
from envs.render.scene import Scene, make_scene

Array = jax.Array


def camera_of(env: Body | type[Body]) -> str | Camera:
    """The camera that pictures of a body are taken with: the name of a stock one, or one that stands still."""
    if env.camera is None:
        raise ValueError(f"{env.name} has no camera: give its class a `camera`, the name of one in its stock model")
    return env.camera


def scene_of(env: Body, size: tuple[int, int] = (64, 64), camera: str | Camera | None = None, **options) -> Scene:
    """The scene of a body, with the walls of its maze; options as in `make_scene`."""
    return make_scene(
        env.drawn_model,
        camera or camera_of(env),
        size,
        groups=env.drawn_groups,
        floor_size=env.floor_size,
        floor_height=env.floor_height,
        walls=() if env.maze is None else env.maze.walls,
        covers=env.lamp_covers,
        **options,
    )


def poses(env: Body, qpos: Array) -> tuple[Array, Array, Array]:
    """What `draw` takes of one copy, from its coordinates [nq]: xpos [nbody, 3], xmat [nbody, 3, 3], com [3]."""

    def all_copies(qpos: Array) -> tuple[Array, Array, Array]:
        found = kinematics(env.drawn_tree, env.drawn_coordinates(qpos))
        bodies, copies = env.drawn_tree.model.nbody, qpos.shape[-1]

        def whole(vec: Vec) -> list[Array]:
            return [jnp.broadcast_to(component, (bodies, copies)) for component in vec]

        mat = jnp.stack([jnp.stack(whole(row), 1) for row in found.mat], 1)
        return jnp.stack(whole(found.pos), 1), mat, jnp.stack(found.com)

    with jax.default_matmul_precision("highest"):
        return copies_last(all_copies)(qpos.astype(jnp.float32))
