"""One process of a pod, on the toy env: takes the flags of train.py."""

from trainer_helpers import Walk

from genda_mjx.runs.arguments import parse
from genda_mjx.runs.start import main
from genda_mjx.runs.train import train

if __name__ == "__main__":
    main(lambda: train(parse(), Walk()))
