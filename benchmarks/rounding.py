"""Trains on this CPU with matrix products rounded as accelerators round them: is a cheaper --precision as good?

    python -m benchmarks.rounding tpu --env point --preset small --precision high --num_seeds 3 --out runs/rounded

A CPU computes every float32 product in full, whatever --precision asks for. Here products that ask for less get their
operands rounded first, forward and backward, as the chip would; those of the physics ask for "highest" and stay whole.

    tpu  high: three products of bfloat16 halves; default: one product of bfloat16
    gpu  high and default: one product of TF32 (10 bits of mantissa)
"""

import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from jax import lax
from jax._src.interpreters import mlir
from jax._src.lax.lax import dot_general_p

from genda_mjx import program
from genda_mjx.runs.arguments import parse
from genda_mjx.runs.start import main
from genda_mjx.runs.train import train

BFLOAT16, TF32 = 7, 10  # bits of mantissa


def rounded(bits: int, x: Any) -> Any:
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=bits)


def products(chip: str, precision: lax.Precision, a: Any, b: Any) -> list[tuple[Any, Any]]:
    """The pairs of operands whose products the chip sums up for a @ b.

    A TPU's three passes are high @ high, high @ low and low @ high. Both halves of b have 16 bits and every product of
    entries 24, which float32 holds, so the first two are one product here.
    """
    if chip == "gpu":
        return [(rounded(TF32, a), rounded(TF32, b))]
    a_high, b_high = rounded(BFLOAT16, a), rounded(BFLOAT16, b)
    if precision != lax.Precision.HIGH:
        return [(a_high, b_high)]
    a_low, b_low = rounded(BFLOAT16, a - a_high), rounded(BFLOAT16, b - b_high)
    return [(a_high, b_high + b_low), (a_low, b_high)]


def round_products(chip: str) -> None:
    """From here on, products that this process lowers are rounded."""
    known = mlir._platform_specific_lowerings["cpu"], mlir._lowerings
    whole = next(rules[dot_general_p].rule for rules in known if dot_general_p in rules)

    def lower(context: Any, a: Any, b: Any, **how: Any) -> Any:
        asked = (how["precision"] or (lax.Precision.DEFAULT,))[0]  # both operands ask for the same
        if asked == lax.Precision.HIGHEST or context.avals_in[0].dtype != "float32":
            return whole(context, a, b, **how)

        def passes(a: Any, b: Any) -> Any:
            exact = how | {"precision": (lax.Precision.HIGHEST,) * 2}
            return sum(dot_general_p.bind(*pair, **exact) for pair in products(chip, asked, a, b))

        return mlir.lower_fun(passes, multiple_results=False)(context, a, b)

    mlir.register_lowering(dot_general_p, lower, platform="cpu")
    program.product_precision = lambda config, platform: config.precision  # as on an accelerator


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("tpu", "gpu"):
        sys.exit(__doc__)
    round_products(sys.argv[1])
    main(lambda: train(parse(sys.argv[2:])))
