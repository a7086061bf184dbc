"""The physics of N copies of one model: MuJoCo's equations, written for many copies, with MJX's collisions or our own.

`step` is MuJoCo's forward step for the features our bodies use: trees of free, hinge and slide joints, fixed tendons,
motors, servos and filtered actuators, springs, damping, dry friction, inertia-box drag, tendon equalities, a weld to a
given pose, joint limits, pyramidal contacts, Euler integration with implicit damping. `PhysicsModel.of` refuses a model
that needs more, and names what. `mjx.step` remains the reference it is tested against, beside C MuJoCo; MJX's geometry
lives in private modules, so the MJX version is checked too.

The copies are the last axis of every array. Element-wise work then runs along contiguous copies (vector lanes on CPU
and TPU, coalesced threads on GPU), and a product with a constant is one matrix product for all of them. Shapes: nb
bodies, nj joints, nq coordinates, nv dofs, nu actuators, na activations, nt tendons, ng geoms, k contacts, N copies.

    vectors      components of vectors, quaternions and matrices
    tree         tables of the kinematic tree, world poses
    dynamics     inertias, velocities, accelerations, bias forces
    model        PhysicsModel: all tables of a model, and what is refused
    forces       actuators, springs, damping, drag
    constraints  spring law, tendon equalities, joint limits, dry friction
    weld         a weld to a given pose
    shapes       distances and contacts of capsules, spheres and boxes
    nearest      the nearest of such contacts, for models that ask for them
    contacts     collisions and their rows
    solver       the constrained acceleration
    step         one step of all of it
    quantities   named quantities for observations and sensors
"""

from envs.physics.model import PhysicsModel
from envs.physics.quantities import Quantities, SensorQuantities
from envs.physics.step import PhysicsState, StepRecord, step

__all__ = ["PhysicsModel", "PhysicsState", "Quantities", "SensorQuantities", "StepRecord", "step"]
