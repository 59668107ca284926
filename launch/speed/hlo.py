"""The cost of a compiled program from XLA's text: kernels, operations, bytes and collectives.

Unlike `compiled.cost_analysis()`, which counts the body of a loop once, this module multiplies it
by the number of iterations.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16}
BITS |= {"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Opcodes that move no data.
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "iota"}
FREE |= {"partition-id", "replica-id", "opt-barrier", "async-update", "async-done"}
SLICES = {"slice", "dynamic-slice", "gather"}  # they read only as many bytes as they return

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{\s*$")
_NAME = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")


class Instruction(NamedTuple):
    """One instruction (a line) of an HLO computation."""

    name: str
    shape: str  # of its result, as XLA writes it
    opcode: str
    operands: list[str]
    rest: str  # the text of the line after the opening parenthesis
    is_root: bool


class Cost(NamedTuple):
    """The cost of a program on one device."""

    kernels: float  # number of launched operations; a fusion counts once
    flops: float  # of convolutions and products of matrices; an addition counts as one
    bytes: float  # that kernels read and write
    cycles: float  # as a TPU's compiler estimates them
    collectives: Counter  # bytes by kind


Trips = Callable[[int], float]


def cost(text: str, trips: Trips) -> Cost:
    """The cost of a compiled program.

    Args:
      text: `compiled.as_text()`.
      trips: depth of a loop (0: outermost) -> assumed number of iterations, for loops whose number
        is not in the program.
    """
    return _Program(text, trips).total()


class _Program:
    """A parsed program, with a cache of the operations of its fused computations."""

    def __init__(self, text: str, trips: Trips):
        self.computations, self.entry = parse(text)
        self.trips, self.flops = trips, {}

    def total(self) -> Cost:
        """The cost of the whole program."""
        return self._computation_cost(self.entry, 0)

    def _computation_cost(self, name, depth):
        """The cost of a computation whose instructions run one after another."""
        instructions = self.computations.get(name, [])
        table = {each.name: each for each in instructions}
        total = _sum(self._instruction_cost(each, table, depth) for each in instructions)
        return total._replace(collectives=total.collectives + self._fused_collectives(instructions))

    def _fused_collectives(self, instructions):
        """Bytes by kind of fused collectives; one that several kernels share counts once."""
        sent = {}
        for each in instructions:
            name = _called(each, "calls") if each.opcode == "fusion" else ""
            table = {one.name: one for one in self.computations.get(name, [])}
            for one in table.values():
                kind = one.opcode.removesuffix("-start")
                if kind in COLLECTIVES:
                    kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else kind
                    channel = re.search(r"channel_id=\d+", one.rest)
                    sent[channel[0] if channel else one.name] = kind, _sent(one, table)
        return sum((Counter({kind: size}) for kind, size in sent.values()), Counter())

    def _instruction_cost(self, each, table, depth):
        if each.opcode == "while":
            turns = known_trips(each, self.computations)
            turns = self.trips(depth) if turns is None else turns
            inside = (
                self._computation_cost(_called(each, key), depth + 1)
                for key in ("body", "condition")
            )
            return _times(turns, _sum(inside))
        if each.opcode == "conditional":
            branches = [self._computation_cost(name, depth) for name in _branches(each)]
            return max(branches, key=lambda branch: (branch.cycles, branch.bytes, branch.kernels))
        if each.opcode in ("call", "async-start"):
            return self._computation_cost(
                _called(each, "to_apply") or _called(each, "calls"), depth
            )
        if each.opcode in FREE or each.opcode.endswith("-done"):
            return NOTHING
        kind = each.opcode.removesuffix("-start")
        return Cost(
            kernels=1,
            flops=self._flops(each, table),
            bytes=self._bytes(each, table),
            cycles=float((re.search(r'"estimated_cycles":"(\d+)"', each.rest) or [0, 0])[1]),
            collectives=Counter({kind: _sent(each, table)} if kind in COLLECTIVES else {}),
        )

    def _flops(self, each, table):
        if each.opcode == "fusion":
            name = _called(each, "calls")
            if name not in self.flops:
                inside = self.computations.get(name, [])
                below = {one.name: one for one in inside}
                self.flops[name] = sum(self._flops(one, below) for one in inside)
            return self.flops[name]
        shapes = [dimensions(table[name].shape)[0] for name in each.operands if name in table]
        if "dim_labels=" in each.rest:
            return _convolution_flops(each, shapes)
        return _product_flops(each, shapes)

    def _bytes(self, each, table):
        """Bytes that an instruction reads and writes; an in-place update counts only its part."""
        operands = [num_bytes(table[name].shape) if name in table else 0 for name in each.operands]
        if each.opcode in SLICES:
            return 2 * num_bytes(each.shape)
        if each.opcode == "dynamic-update-slice":
            return 2 * operands[1]
        if each.opcode != "fusion":
            return num_bytes(each.shape) + sum(operands)
        return self._fusion_bytes(each, operands)

    def _fusion_bytes(self, each, operands):
        inside = self.computations.get(_called(each, "calls"), [])
        table = {one.name: one for one in inside}
        written, in_place = num_bytes(each.shape), set()
        for root in (one for one in inside if one.opcode == "dynamic-update-slice"):
            if num_bytes(root.shape) == written:
                in_place.add(_source(root.operands[0], table))
                written = num_bytes(table[root.operands[1]].shape)
        read = 0
        for parameter in (one for one in inside if one.opcode == "parameter"):
            number = int(parameter.rest.partition(")")[0])
            users = list(_users(parameter.name, inside))
            if parameter.name in in_place or number >= len(operands):
                continue
            sliced = users and all(
                one.opcode in SLICES and _source(one.operands[0], table) == parameter.name
                for one in users
            )
            parts = sum(num_bytes(one.shape) for one in users) if sliced else operands[number]
            read += min(parts, operands[number])
        return written + read


def _sent(each, table):
    """Bytes of a collective: gathered by an all-gather, or else contributed by each device."""
    given = sum(num_bytes(table[name].shape) for name in each.operands if name in table)
    if not each.opcode.startswith("all-gather"):
        return given
    return num_bytes(each.shape) - (given if each.opcode.endswith("-start") else 0)


NOTHING = Cost(0, 0, 0, 0, Counter())


def _sum(costs: Iterable[Cost]) -> Cost:
    total = NOTHING
    for each in costs:
        numbers = (a + b for a, b in zip(total[:4], each[:4], strict=True))
        total = Cost(*numbers, total.collectives + each.collectives)
    return total


def _times(turns: float, each: Cost) -> Cost:
    collectives = Counter({kind: turns * size for kind, size in each.collectives.items()})
    return Cost(*(turns * number for number in each[:4]), collectives)


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Parse XLA's text: {name of a computation: its instructions}, and the entry's name."""
    computations: dict[str, list[Instruction]] = {}
    entry = current = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = header[2]
            computations[current] = []
            entry = current if header[1] else entry
        elif line.startswith("}"):
            current = ""
        elif current and (start := _NAME.match(line)):
            computations[current].append(_instruction(start, line[start.end() :]))
    return computations, entry


def _instruction(start, line):
    end = _closing(line) + 1 if line.startswith("(") else line.index(" ")
    opcode, _, rest = line[end:].strip().partition("(")
    operands = re.findall(r"%([\w.\-]+)", rest[: _closing("(" + rest)])
    return Instruction(start[2], line[:end], opcode, operands, rest, bool(start[1]))


def _closing(text):
    """The index at which the parenthesis that begins the text is closed."""
    depth = 0
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return i
    return len(text)


def dimensions(shape: str) -> list[tuple[int, ...]]:
    """The dimensions of each array of a shape as XLA writes it; [()] for none."""
    arrays = [tuple(int(n) for n in match[2].split(",") if n) for match in _arrays(shape)]
    return arrays or [()]


def num_bytes(shape: str) -> int:
    """The bytes of all arrays of a shape as XLA writes it, without padding."""
    return sum(
        BITS.get(match[1], 8) * int(np.prod([int(n) for n in match[2].split(",") if n])) // 8
        for match in _arrays(shape)
    )


def _arrays(shape) -> Iterator[re.Match]:
    return (match for match in _SHAPE.finditer(shape) if match[1] in BITS or match[1][:2] == "f8")


def _called(each, key):
    match = re.search(rf"\b{key}=%?([\w.\-]+)", each.rest)
    return match[1] if match else ""


def _branches(each):
    listed = re.search(r"branch_computations=\{([^}]*)\}", each.rest)
    if listed:
        return re.findall(r"[\w.\-]+", listed[1])
    return [_called(each, key) for key in ("true_computation", "false_computation")]


def _users(name, inside):
    """The instructions that use a value, also behind bitcasts."""
    for one in inside:
        if name in one.operands:
            yield from _users(one.name, inside) if one.opcode == "bitcast" else [one]


def _source(name, table):
    """The name of the value behind a chain of bitcasts, copies and conversions."""
    while name in table and table[name].opcode in ("bitcast", "copy", "convert"):
        name = table[name].operands[0]
    return name


def known_trips(loop: Instruction, computations: dict[str, list[Instruction]]) -> int | None:
    """The number of iterations of a loop; None if the program does not determine it.

    It is the compiler's annotation, or the only integer constant in the loop's condition.
    """
    if noted := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest):
        return int(noted[1])
    numbers = set(_integers(_called(loop, "condition"), computations))
    return numbers.pop() if len(numbers) == 1 else None


def _integers(name, computations):
    """The integer constants of a computation and of the computations that it calls."""
    for each in computations.get(name, []):
        if each.opcode == "constant" and re.match(r"[su]32\[\]", each.shape):
            yield int(re.match(r"-?\d+", each.rest)[0])
        for key in ("calls", "to_apply"):
            yield from _integers(_called(each, key), computations)


def _convolution_flops(each, operands):
    """Operations of a convolution: two for each product of an input and a kernel's weight.

    Products with padding do not count.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.rest)
    out = dimensions(each.shape)[0]
    if labels is None or len(operands) < 2:
        return 0
    x, w, y = operands[0], operands[1], out
    if "convBackwardInput" in each.rest:  # cuDNN calls have the labels of the forward pass
        x, w, y = out, operands[1], operands[0]
    elif "convBackwardFilter" in each.rest:
        x, w, y = operands[0], out, operands[1]
    window = dict(re.findall(r"(\w+)=([\dx_\-]+)", re.search(r"window=\{[^}]*|$", each.rest)[0]))
    meetings = 1
    for axis in range(len(labels[2]) - 2):
        meetings *= _meetings(
            x[labels[1].index(str(axis))],
            y[labels[3].index(str(axis))],
            w[labels[2].index(str(axis))],
            window,
            axis,
        )
    images = int((re.search(r"batch_group_count=(\d+)", each.rest) or [0, 1])[1])
    batch = x[labels[1].index("b")] // images
    return 2 * meetings * w[labels[2].index("i")] * y[labels[3].index("f")] * batch


def _meetings(inputs, outputs, size, window, axis):
    """The number of pairs (output, kernel position) along one axis whose input is not padding."""

    def setting(name, default):
        return window.get(name, "x".join([default] * (axis + 1))).split("x")[axis]

    stride, spread, reach = (
        int(setting(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate")
    )
    low = int(setting("pad", "0_0").split("_")[0])
    at = np.arange(outputs)[:, None] * stride + np.arange(size) * reach - low
    return int(((at >= 0) & (at <= (inputs - 1) * spread) & (at % spread == 0)).sum())


def _product_flops(each, operands):
    """Operations of a matrix product: two for each element of the result and contracted index."""
    match = re.search(r"lhs_contracting_dim(?:s|ensions\")[=:][{\[]([^}\]]*)", each.rest)
    if match is None or not operands:
        return 0
    axes = [int(n) for n in re.findall(r"\d+", match[1])]
    return (
        2
        * int(np.prod(dimensions(each.shape)[0]))
        * int(np.prod([operands[0][axis] for axis in axes]))
    )
