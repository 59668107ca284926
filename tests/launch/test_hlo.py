"""The cost computed from XLA's text, of hand-written programs and of a compiled convolution."""

import hlo
import jax
import jax.numpy as jnp
import pytest

LOOP = """HloModule loop

%condition (state: (s32[], f32[4,8])) -> pred[] {
  %state = (s32[], f32[4,8]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %end = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}

%body (state.1: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %state.1 = (s32[], f32[4,8]) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%state.1), index=1
  %sum = f32[4,8]{1,0} all-reduce(%x), to_apply=%add, backend_config={"estimated_cycles":"10"}
  ROOT %next = (s32[], f32[4,8]) tuple(%i.1, %sum)
}

ENTRY %main (x.1: f32[4,8], w: f32[8,16]) -> f32[4,16] {
  %x.1 = f32[4,8]{1,0} parameter(0)
  %w = f32[8,16]{1,0} parameter(1)
  %start = (s32[], f32[4,8]) tuple(%zero, %x.1)
  %loop = (s32[], f32[4,8]) while(%start), condition=%condition, body=%body
  %y = f32[4,8]{1,0} get-tuple-element(%loop), index=1
  ROOT %dot = f32[4,16]{1,0} dot(%y, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def never(depth):
    raise AssertionError("the compiler knows how often every loop turns")


def test_the_cost_of_a_loop_is_multiplied_by_its_iterations():
    """The number of iterations is assumed if the program does not say it."""
    cost = hlo.cost(LOOP, never)
    assert cost.cycles == 70
    assert cost.collectives == {"all-reduce": 7 * 4 * 8 * 4}
    assert cost.flops == 2 * 4 * 16 * 8
    assert cost.kernels == 7 * 2 + 1  # the condition has one kernel in each iteration
    text = LOOP.replace("s32[] constant(7)", "s32[] get-tuple-element(%state), index=0")
    assert hlo.cost(text, lambda depth: 3 if depth == 0 else 100).cycles == 30


def test_collectives_count_the_bytes_that_are_sent():
    for collective, kind, sent in (
        ("(f32[8], f32[4]) all-reduce-start(%a, %b)", "all-reduce", 48),
        ("f32[32] all-gather(%a)", "all-gather", 128),
        ("(f32[8], f32[32]) all-gather-start(%a)", "all-gather", 128),
        ("(f32[8], f32[8], u32[], u32[]) collective-permute-start(%a)", "collective-permute", 32),
    ):
        text = (
            "ENTRY %main (a: f32[8], b: f32[4]) -> f32[8] {\n  %a = f32[8] parameter(0)\n"
            f"  %b = f32[4] parameter(1)\n  %c = {collective}\n}}\n"
        )
        assert hlo.cost(text, never).collectives == {kind: sent}


FUSED = """
%first (a: f32[8]) -> f32[32] {
  %a = f32[8] parameter(0)
  ROOT %gather = f32[32] all-gather(%a), channel_id=3, dimensions={0}
}

%second (a.1: f32[8]) -> f32[32] {
  %a.1 = f32[8] parameter(0)
  ROOT %gather.1 = f32[32] all-gather(%a.1), channel_id=3, dimensions={0}
}

%all-reduce-scatter.5 (a.2: f32[32]) -> f32[8] {
  %a.2 = f32[32] parameter(0)
  %sum = f32[32] all-reduce(%a.2), channel_id=4
  ROOT %part = f32[8] dynamic-slice(%sum, %place), dynamic_slice_sizes={8}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %begin = f32[32] fusion(%x), kind=kLoop, calls=%first
  %end = f32[32] fusion(%begin), kind=kLoop, calls=%second
  ROOT %y = f32[8] fusion(%end), kind=kCustom, calls=%all-reduce-scatter.5
}
"""


def test_a_collective_that_several_fused_kernels_share_counts_once():
    assert hlo.cost(FUSED, never).collectives == {"all-gather": 128, "reduce-scatter": 128}


def test_bytes_count_only_the_slices_that_a_kernel_reads_and_writes():
    fused = """
%part (given: f32[8000], row: s32[]) -> f32[1,8] {
  %given = f32[8000]{0} parameter(0)
  %pool = f32[1000,8]{1,0} bitcast(%given)
  %row = s32[] parameter(1)
  ROOT %one = f32[1,8]{1,0} dynamic-slice(%pool, %row, %row), dynamic_slice_sizes={1,8}
}

%put (pool.1: f32[1000,8], new: f32[1,8], row.1: s32[]) -> f32[1000,8] {
  %pool.1 = f32[1000,8]{1,0} parameter(0)
  %new = f32[1,8]{1,0} parameter(1)
  %row.1 = s32[] parameter(2)
  ROOT %all = f32[1000,8]{1,0} dynamic-update-slice(%pool.1, %new, %row.1, %row.1)
}

ENTRY %main (a: f32[1000,8], i: s32[]) -> f32[1000,8] {
  %a = f32[1000,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %flat = f32[8000]{0} bitcast(%a)
  %read = f32[1,8]{1,0} fusion(%flat, %i), kind=kLoop, calls=%part
  ROOT %written = f32[1000,8]{1,0} fusion(%a, %read, %i), kind=kLoop, calls=%put
}
"""
    row, number = 8 * 4, 4
    assert hlo.cost(fused, never).bytes == (row + row + number) + (row + row + number)


@pytest.mark.parametrize("stride", [1, 2])
def test_flops_of_the_gradients_of_a_compiled_convolution(stride):
    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ).sum()

    x, w = jnp.ones((2, 9, 9, 3)), jnp.ones((3, 3, 3, 4))
    compiled = jax.jit(jax.grad(convolve, (0, 1))).lower(x, w).compile()
    text = compiled.as_text()
    convolutions = sum(line.count(" convolution(") for line in text.splitlines())
    assert convolutions == 2
    pairs = [
        (o, k) for o in range(-(-9 // stride)) for k in range(3) if 0 <= stride * o + k - 1 < 9
    ]
    per_pair = 2 * 2 * 3 * 4  # gradients, batch, input and output channels
    assert hlo.cost(text, lambda depth: 1).flops == 2 * per_pair * len(pairs) ** 2
