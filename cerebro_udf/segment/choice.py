"""Whether members of a group are trained as one: measured once, then known for the session."""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf import encoders
from cerebro_udf.errors import TrialFailed
from cerebro_udf.segment import fusable
from cerebro_udf.segment.fused import FusedProgram
from cerebro_udf.segment.program import Program

MEASURED_SECONDS = 0.02  # CPU time of one program, each time; the others take as long for as many minibatches
MEASURED_BATCHES = 4  # at least
# Not tried above this many bytes of all members' outputs of the widest layer, since it gains nothing: what one operation
# leaves no longer lies in a core's own cache when the next one reads it. Dense layers, 4 members, gained 1.7x at 128 kB, and
# 0.98x at 1 MB; tracing would take a second. Programs that draw random numbers gain beyond that, for as long as drawing
# weighs beside products of matrices: with dropout 1.5x at 512 kB, 1.24x at 1 MB.
CACHED_BYTES, CACHED_BYTES_DRAWING = 768 * 2**10, 2 * 2**20
ROUNDS = 3  # the quickest one counts, on either side


class _Speed(NamedTuple):
    """CPU seconds per minibatch."""

    single: float  # of one member alone
    fused: float  # of all as one


TOLD = _Speed(float("inf"), 0.0)  # in the place of one that was measured elsewhere


class Choices:
    """Fused programs of a session, and what measuring them has shown."""

    def __init__(self):
        self._programs: Dict[Tuple[str, int], Optional[FusedProgram]] = {}  # None: it cannot be
        self._speeds: Dict[Tuple[str, int, int], Optional[_Speed]] = {}

    def __len__(self) -> int:
        """Return how many fused programs are held."""
        return sum(program is not None for program in self._programs.values())

    def choose(self, program: Program, blobs: Sequence[bytes], arrays: Dict[str, Any], batch_size: int,
               pulse: Callable[[], None], faster: bool = False) -> Optional[FusedProgram]:  # fmt: skip
        """Return what trains these members as one, None if that cannot be or is not faster than one after another.

        A group that has lost members goes on with the program that it has, as long as that is faster: to trace another
        one would take longer than it saves. Programs that differ in numbers such as a dropout's rate are as fast as each
        other; one of them is measured.

        Args:
            program: The members' program. It and what is returned are left in any state.
            blobs: The members' states.
            arrays: The shard's training rows, see ``Program.train``.
            batch_size: The members' rows per minibatch.
            pulse: Called now and then while it is measured; may raise.
            faster: It was, on another segment: nothing is measured here.
        """
        members, rows = len(blobs), min(batch_size, len(arrays["label"]))
        most = CACHED_BYTES_DRAWING if program.generators else CACHED_BYTES
        if members < 2 or not rows or 4 * members * rows * program.width > most or fusable.refusal(program.spec):
            return None
        shape = _shape(program.spec)
        size = min((n for n in self._sizes(shape, batch_size) if n >= members and self._may_be(program, n)), default=members)
        key = shape, size, batch_size
        try:
            if faster:
                self._speeds.setdefault(key, TOLD)
            if key not in self._speeds:
                fused = self._fused(program, size)
                self._speeds[key] = fused and self._measure(program, fused, blobs, arrays, batch_size, pulse)
            speed = self._speeds[key]
            return self._fused(program, size) if speed and speed.fused < members * speed.single else None
        except TrialFailed:  # a member that fails alone too will say so
            self._programs[program.signature, size] = None
            self._speeds.setdefault(key, None)
            return None

    def _sizes(self, shape: str, batch_size: int) -> List[int]:
        """Return the sizes of groups of this shape that could be measured; what failed for many may do for fewer."""
        return [n for (kind, n, batch), speed in self._speeds.items() if speed and (kind, batch) == (shape, batch_size)]

    def _may_be(self, program: Program, size: int) -> bool:
        return self._programs.get((program.signature, size), program) is not None

    def _fused(self, program: Program, size: int) -> Optional[FusedProgram]:
        key = program.signature, size
        if key not in self._programs:
            self._programs[key] = FusedProgram(program, size)
        return self._programs[key]

    def _measure(self, program: Program, fused: FusedProgram, blobs: Sequence[bytes], arrays: Dict[str, Any],
                 batch_size: int, pulse: Callable[[], None]) -> _Speed:  # fmt: skip
        """Train some minibatches in either way; what becomes of the states is dropped."""
        rows = len(arrays["label"])

        def seconds(side: Program, batches: int) -> float:
            order = np.arange(min(rows, batches * batch_size), dtype=np.int32)
            started = time.process_time()  # of this process: others may be busy on the same cores
            report = side.train(arrays, order, batch_size, pulse)
            return (time.process_time() - started) / report["batches"]

        fused.set_states(blobs, [None] * len(blobs))
        program.set_state(blobs[0])
        for side in (program, fused):
            seconds(side, MEASURED_BATCHES)  # traced, not measured
        batches = max(MEASURED_BATCHES, int(MEASURED_SECONDS / seconds(program, MEASURED_BATCHES)))
        rounds = [(seconds(program, batches), seconds(fused, batches)) for _ in range(ROUNDS)]
        return _Speed(*(min(side) for side in zip(*rounds)))


def _shape(spec: dict) -> str:
    """Return what of a program's spec its speed depends on: all but its fractions."""
    relevant = [spec["definition"], spec["optimizer"], spec.get("loss"), spec.get("metrics"), spec.get("weighted_metrics")]
    return json.dumps(_whole(relevant + [encoders.model_part(spec["encoders"])]), sort_keys=True)


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return 0.5 if isinstance(value, float) and 0 < value < 1 else value
