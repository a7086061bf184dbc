"""One process of a pod, on the toy env: takes the flags of train.py."""

from trainer_helpers import Walk

from genda_mjx import config, entry, loop

if __name__ == "__main__":
    loop.make_env = lambda name: Walk()
    entry.main(lambda: loop.Training(config.parse())())
