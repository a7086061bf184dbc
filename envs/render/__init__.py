"""Pictures of bodies in plain JAX: rays against simple shapes, on any backend, without OpenGL or a display.

    scene = render.scene_of(env, size=(64, 64), floor="paper")              # constants, numpy
    frame = render.draw(scene, *render.poses(env, qpos))      # one copy -> uint8 [64, 64, 3]

`jax.vmap` over `draw` and `poses`, once or more, makes one program for all copies; on a CPU it draws them in parts.
`make_scene` takes any model with a tracking camera instead of an environment. A camera may also stand still in a room
(the kitchen): then what does not move is drawn once, from MuJoCo's rays, and each frame only has what moves.

    rays      where rays meet shapes: depth and winner in one pass
    camera    pixel rays, the window of pixels that a body can reach
    shading   lamps, floors (paper, unicolor, gradation), sky
    scene     everything that does not move, read from a model
    backdrop  a room as a camera that stands still sees it
    draw      the picture
    bodies    scenes and poses of environments
"""

from envs.render.bodies import camera_of, poses, scene_of
from envs.render.draw import draw, silhouette
from envs.render.scene import Scene, make_scene
from envs.render.shading import FLOORS

__all__ = ["FLOORS", "Scene", "camera_of", "draw", "make_scene", "poses", "scene_of", "silhouette"]
