"""Pictures of bodies in plain JAX: rays against simple shapes, on any backend, without OpenGL or a display.

    scene = render.make_scene(model, camera="y", size=(64, 64))     # constants, numpy
    frame = render.draw(scene, xpos, xmat, com)                     # one copy -> uint8 [64, 64, 3]; vmap for many
"""

from envs.render.draw import draw
from envs.render.scene import Scene, make_scene
from envs.render.shading import FLOORS

__all__ = ["FLOORS", "Scene", "draw", "make_scene"]
