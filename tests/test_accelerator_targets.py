"""Targets by name, and the reading of compiled text against a program counted by hand. No plugin is needed here."""

import jax
import jax.numpy as jnp
import pytest

from genda_mjx import costs, hlo, platform
from genda_mjx.config import Config, UserError
from genda_mjx.runs.compile_only import compile_only


@pytest.mark.parametrize(
    ("text", "name", "count", "topology"),
    [
        ("v5e", "v5e", 1, "1x1"),
        ("v5e:2x2", "v5e", 4, "2x2"),
        ("v5e:16", "v5e", 16, "4x4"),
        ("v5p", "v5p", 4, "2x2x1"),
        ("tpu7x:2x2x1", "tpu7x", 4, "2x2x1"),
        ("a100", "a100", 1, ""),
        ("h100:8", "h100", 8, ""),
    ],
)
def test_targets(text, name, count, topology):
    target = platform.parse(text)
    assert (target.chip.name, target.count, target.topology) == (name, count, topology)


@pytest.mark.parametrize(
    ("text", "words"),
    [("h200", "v5e, v5p"), ("v5e:3", "slices of 1, 4, 8"), ("a100:2x2", "number"), ("v5e:two", "after the colon")],
)
def test_wrong_targets_say_what_to_do(text, words):
    with pytest.raises(UserError, match=words):
        platform.parse(text)


def test_a_missing_compiler_names_its_package(monkeypatch):
    monkeypatch.setattr(platform.importlib.util, "find_spec", lambda name: None)
    for text, package in (("v5e", r"jax\[tpu\]==0.9.2"), ("a100", "jax-cuda12-plugin")):
        with pytest.raises(UserError, match=f"pip install .*{package}"):
            compile_only(Config(compile_for=text))


def test_the_list_of_targets(capsys):
    assert compile_only(Config(compile_for="list")) is None
    printed = capsys.readouterr().out
    assert all(name in printed for name in platform.CHIPS)


def test_scratch_is_what_is_assigned_in_main_memory():
    """Lines of libtpu's list: a value inside an allocation, an argument, and scratch in main and in fast memory."""
    buffers = """allocation 1: size 843055104, parameter 149, shape |f32[2,2048,201,226]| at ShapeIndex {}:
allocation 7: size 824772608, preallocated-temp:
 value: <9 copy.1 @0> (size=419430400,offset=0): f32[200,2048,226]{2,1,0:T(8,128)}
allocation 8: size 117440512, color 1, preallocated-temp:
"""
    assert platform.assigned_scratch(buffers) == 824772608


def test_loops_are_counted_as_often_as_they_run():
    """3 x (5 x sine) + 3 x (2 x cosine), compiled for this computer."""

    def outer(_, x):
        with jax.named_scope("physics"):
            x = jax.lax.fori_loop(0, 5, lambda _, y: jnp.sin(y) @ y, x)
        with jax.named_scope("update"):
            return jax.lax.fori_loop(0, 2, lambda _, y: jnp.cos(y) @ y, x)

    compiled = jax.jit(lambda x: jax.lax.fori_loop(0, 3, outer, x)).lower(jnp.ones((64, 64))).compile()
    program = hlo.parse(compiled.as_text())
    times = {"physics": 0, "updates": 0}
    for run in program.walk():
        if run.op.opcode == "dot" or "gemm" in run.op.rest or "matmul" in run.op.rest:
            times[run.part] += run.times
    assert times == {"physics": 15, "updates": 6}


TEXT = """\
HloModule test

%fused (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0:T(8,128)} parameter(0)
  ROOT %m = f32[4,8]{1,0:T(8,128)} multiply(%p, %p)
}

%body (s: (s32[], f32[1000,8])) -> (s32[], f32[1000,8]) {
  %s = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) parameter(0)
  %ring = f32[1000,8]{1,0:T(8,128)} get-tuple-element(%s), index=1
  %c = f32[1000,8]{0,1:T(8,128)} copy(%ring), metadata={op_name="jit(run)/while/body/replay/gather"}
  %f = f32[4,8]{1,0:T(8,128)} fusion(%c), kind=kLoop, calls=%fused, metadata={op_name="jit(run)/while/body/update/mul"}, backend_config={"window_config":{"estimated_cycles":"3000"}}
  %r = f32[4,8]{1,0:T(8,128)} all-reduce(%f), to_apply=%fused, backend_config={"estimated_cycles":"1500"}
  ROOT %t = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) tuple(%ring, %ring)
}

%condition (s: (s32[], f32[1000,8])) -> pred[] {
  %s = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  %n = s32[]{:T(128)} constant(50)
  ROOT %less = pred[]{:T(512)} compare(%i, %n), direction=LT
}

%turn (s: (s32[], f32[1000,8])) -> (s32[], f32[1000,8]) {
  %s = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) parameter(0)
  ROOT %w = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) while(%s), condition=%condition, body=%body, metadata={op_name="jit(run)/while"}
}

%unknown (s: (s32[], f32[1000,8])) -> pred[] {
  %s = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) parameter(0)
  ROOT %p = pred[]{:T(512)} get-tuple-element(%s), index=0
}

ENTRY %main (a: (s32[], f32[1000,8])) -> (s32[], f32[1000,8]) {
  %a = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) parameter(0)
  ROOT %w = (s32[]{:T(128)}, f32[1000,8]{1,0:T(8,128)}) while(%a), condition=%unknown, body=%turn, metadata={op_name="jit(run)/while"}
}
"""  # noqa: E501


def test_copies_collectives_and_cycles_by_hand():
    program, chip = hlo.parse(TEXT), platform.CHIPS["v5e"]
    found = costs.estimate(program, chip).seconds
    assert found["updates"] == pytest.approx(50 * 3000 / chip.clock)
    assert found["collectives"] == pytest.approx(50 * 1500 / chip.clock)
    counted = hlo.counts(program)
    assert (counted["copies"], counted["collectives"], counted["operations"]) == (50, 50, 150)
    (large,) = hlo.large_copies(program, 32_000)
    assert (large.op.name, large.times, hlo.nbytes(large.op.shape)) == ("c", 50, 32_000)
    assert hlo.large_copies(program, 32_001) == []
    assert hlo.padded_nbytes("f32[1000,8]{1,0:T(8,128)}") == 4 * 1000 * 128
    assert hlo.padded_nbytes("f32[1000,8]{0,1:T(8,128)}") == 4 * 1024 * 8


def test_the_library_s_factorisations_are_counted():
    def call(name: str, shape: str) -> hlo.Instruction:
        return hlo.Instruction("c", shape, "custom-call", ("a",), f'(%a), custom_call_target="{name}"')

    chosen = call("Cholesky", "f32[2048,79,79]{2,1,0:T(8,128)}")
    assert costs.cycles(chosen) == 162 * 79 * 2048
    assert hlo.Executed(chosen, 1, (), "main").part == "library factorisation"
    inverse = call("InvertDiagBlocksLowerTriangular", "f32[300,1,22,22]{0,2,3,1:T(8,128)}")
    assert costs.cycles(inverse) == 20 * 22 * 22 * 3
    assert costs.cycles(call("Sharding", "f32[2048,79,79]{2,1,0:T(8,128)}")) == 0


def test_our_cholesky_is_counted():
    """Three panels of 8 columns have three pairs and one triple."""
    scope = 'metadata={op_name="jit(run)/physics/solver/cholesky/pallas_call"}'
    kernel = hlo.Instruction("c", "f32[22,2048]{1,0:T(8,128)}", "custom-call", ("a",), f"(%a), {scope}")
    assert costs.cycles(kernel) == 16 * (50 + 3 * 270 + 3 * 147 + 42)
    assert hlo.Executed(kernel, 1, (), "main").part == "solver"
    other = hlo.Instruction("c", "f32[22,2048]{1,0:T(8,128)}", "custom-call", ("a",), '(%a), custom_call_target="X"')
    assert costs.cycles(other) == 0


def test_our_cholesky_on_a_gpu_is_counted():
    """2048 dogs on the 432 schedulers of an A100: five turns. Five tiles across have 10 pairs and 20 triples."""
    scope = 'metadata={op_name="jit(run)/physics/solver/vmap(jit(solve))/cholesky/pallas_call"}'
    call = f'(%a, %b), custom_call_target="__gpu$xla.gpu.triton", {scope}'
    kernel = hlo.Instruction("c", "f32[2048,79]{1,0}", "custom-call", ("a", "b"), call)
    chip = platform.CHIPS["a100"]
    assert costs.kernel_seconds(kernel, chip) == pytest.approx(5 * (79 * 165 + 5 * 150 + 30 * 210) / 1.41e9)
    program = hlo.Program({"main": [kernel, kernel._replace(rest='(%a), custom_call_target="cusolver"')]}, "main")
    assert hlo.counts(program)["operations"] == 2 and hlo.counts(program)["custom calls"] == 1
    found = costs.estimate(program, chip).seconds
    assert found["solver"] == pytest.approx(costs.kernel_seconds(kernel, chip)) and found["other"] == costs.LAUNCH


@pytest.mark.parametrize(
    ("kind", "asked", "rate"), [("f32", "HIGHEST", 19.5e12), ("f32", "HIGH", 156e12), ("bf16", "DEFAULT", 312e12)]
)
def test_products_on_a_gpu_take_the_rate_of_their_precision(kind, asked, rate):
    """[4096, 512] @ [512, 1024] by cuBLAS on an A100, with its workspace beside the result."""
    shapes = [f"{kind}[4096,512]{{1,0}}", f"{kind}[512,1024]{{1,0}}"]
    rest = f'(%a, %b), backend_config={{"gemm_backend_config":{{"operand_precision":["{asked}"]}}}}'
    product = hlo.Instruction("p", f"({kind}[4096,1024]{{1,0}}, s8[4194304]{{0}})", "custom-call", ("a", "b"), rest)
    seconds = costs.product_seconds(product, shapes, platform.CHIPS["a100"])
    assert seconds == pytest.approx(2 * 4096 * 512 * 1024 / rate)


def test_a_batch_of_products_takes_as_long_as_all_of_them():
    """2048 times [79, 100] @ [100, 79]."""
    shapes = ["f32[2048,79,100]{2,1,0}", "f32[2048,100,79]{2,1,0}"]
    rest = '(%a, %b), backend_config={"gemm_backend_config":{"operand_precision":["HIGHEST"]}}'
    product = hlo.Instruction("p", "(f32[2048,79,79]{2,1,0}, s8[4194304]{0})", "custom-call", ("a", "b"), rest)
    seconds = costs.product_seconds(product, shapes, platform.CHIPS["a100"])
    assert seconds == pytest.approx(2048 * 2 * 79 * 100 * 79 / 19.5e12)
