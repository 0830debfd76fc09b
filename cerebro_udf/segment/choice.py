"""Whether members of a group are trained as one: measured once, then known for the session."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf.errors import TrialFailed
from cerebro_udf.segment import fusable
from cerebro_udf.segment.fused import FusedProgram
from cerebro_udf.segment.program import Program

MEASURED_SECONDS = 0.02  # of one program, each time; the others take as long for as many minibatches
MEASURED_BATCHES = 4  # at least
ROUNDS = 3  # the quickest one counts, on either side


class _Speed(NamedTuple):
    """Seconds per minibatch."""

    single: float  # of one member alone
    fused: float  # of all as one


class Choices:
    """Fused programs of a session, and what measuring them has shown."""

    def __init__(self):
        self._programs: Dict[Tuple[str, int], FusedProgram] = {}
        self._speeds: Dict[Tuple[str, int, int], Optional[_Speed]] = {}  # None: it was not possible

    def __len__(self) -> int:
        """Return how many fused programs are held."""
        return len(self._programs)

    def choose(self, program: Program, blobs: Sequence[bytes], arrays: Dict[str, Any], batch_size: int,
               pulse: Callable[[], None]) -> Optional[FusedProgram]:  # fmt: skip
        """Return what trains these members as one, None if that cannot be or is not faster than one after another.

        A group that has lost members goes on with the program that it has, as long as that is faster: to trace another
        one would take longer than it saves.

        Args:
            program: The members' program. It and what is returned are left in any state.
            blobs: The members' states.
            arrays: The shard's training rows, see ``Program.train``.
            batch_size: The members' rows per minibatch.
            pulse: Called now and then while it is measured; may raise.
        """
        members = len(blobs)
        if members < 2 or not len(arrays["label"]) or fusable.refusal(program.spec):
            return None
        known = {
            size: speed
            for (signature, size, rows), speed in self._speeds.items()
            if (signature, rows) == (program.signature, batch_size) and size >= members
        }
        if not known:
            known = {members: self._measure(program, blobs, arrays, batch_size, pulse)}
            self._speeds[program.signature, members, batch_size] = known[members]
        size = min(known)
        speed = known[size]
        if speed is None or speed.fused >= members * speed.single:
            return None
        return self._programs[program.signature, size]

    def _measure(self, program: Program, blobs: Sequence[bytes], arrays: Dict[str, Any], batch_size: int,
                 pulse: Callable[[], None]) -> Optional[_Speed]:  # fmt: skip
        """Train some minibatches in either way; what becomes of the states is dropped."""
        rows = len(arrays["label"])

        def seconds(side: Program, batches: int) -> float:
            order = np.arange(min(rows, batches * batch_size), dtype=np.int32)
            report = side.train(arrays, order, batch_size, pulse)
            return report["train_seconds"] / report["batches"]

        try:
            key = program.signature, len(blobs)
            fused = self._programs.get(key) or FusedProgram(program, len(blobs))
            fused.set_states(blobs, [None] * len(blobs))
            program.set_state(blobs[0])
            seconds(fused, MEASURED_BATCHES)
            batches = max(MEASURED_BATCHES, int(MEASURED_SECONDS / seconds(program, MEASURED_BATCHES)))
            rounds = [(seconds(program, batches), seconds(fused, batches)) for _ in range(ROUNDS)]
        except TrialFailed:  # a member that fails alone too will say so
            return None
        self._programs[key] = fused
        return _Speed(*(min(side) for side in zip(*rounds)))
