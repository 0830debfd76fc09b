"""How the faults of tests/fault_table.py are made to happen."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Callable, Iterator, Optional

import psycopg

from tests.cluster import ADMIN, ROLE, kill, poll_until
from tests.fault_bench import Scene
from tests.faults import kill_backend
from tests.tables import copy

TIMEOUT = "1s"  # of every timeout that a server has, where that is the fault
LONGER_SECONDS = 2  # than that
DISK_BYTES = 16 * 2**20  # beside what states there are
CGROUPS = Path("/sys/fs/cgroup/memory")  # version 1, where it is
LEAST_MEMORY = "4096"  # bytes: the next page is too much

Strike = Callable[[Scene], contextlib.AbstractContextManager]


def struck(act: Callable[[Scene], object], mend: Callable[[Scene], object] = lambda scene: None) -> Strike:
    """A fault that strikes at once, and what mends it before the run goes on."""

    @contextlib.contextmanager
    def strike(scene: Scene) -> Iterator[None]:
        act(scene)
        try:
            yield
        finally:
            mend(scene)

    return strike


def both(*acts: Callable[[Scene], object]) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        for one in acts:
            one(scene)

    return act


# ---- sessions


def kill_driver(scene: Scene) -> None:
    kill_backend(scene.cluster.coordinator, scene.psql.backend)


def kill_worker(scene: Scene) -> None:
    kill_backend(scene.far, scene.worker())


def end_worker(scene: Scene) -> None:
    scene.far.execute("select pg_terminate_backend(%s)", [scene.worker()])


def end_ledger(scene: Scene) -> None:
    scene.cluster.coordinator.execute("select pg_terminate_backend(%s)", [scene.ledger()])


def kill_psql(scene: Scene) -> None:
    kill(scene.psql.process.pid)


def kill_ledger_in_a_write(scene: Scene) -> None:
    """While the state that is written waits for its table."""
    coordinator = scene.cluster.coordinator
    waits = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    holder = coordinator.connect(ADMIN, autocommit=False)
    try:
        holder.execute("lock table cerebro_internal.state in share mode")
        scene.release()
        ledger = scene.ledger()
        poll_until(lambda: coordinator.execute(waits, [ledger]))
        kill_backend(coordinator, ledger)
    finally:
        holder.close()


def kill_detached(scene: Scene) -> None:
    """A submitted run is driven by a session of its own."""
    query = "select pid from cerebro.run where run = %s and owner = %s"
    ((pid,),) = scene.cluster.coordinator.execute(query, [scene.run, ROLE])
    scene.end()
    assert pid != scene.psql.backend and scene.sqlstate == "00000"
    kill_backend(scene.cluster.coordinator, pid)
    scene.bench.lose_psql()  # its session went with the server


def bounce(number: int) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        node = scene.cluster.node(number)
        node.stop()
        node.start()

    return act


def wait_on(scene: Scene, seconds: float = LONGER_SECONDS) -> None:
    """Let time pass by the server's clock."""
    coordinator = scene.cluster.coordinator
    ((end,),) = coordinator.execute("select clock_timestamp() + make_interval(secs => %s)", [seconds])
    poll_until(lambda: coordinator.execute("select clock_timestamp() > %s", [end])[0][0])


TIMEOUTS = ("statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout", "lock_timeout")


def set_timeouts(scene: Scene) -> None:
    """On every node; the caller's session has its own."""
    for node in scene.cluster.nodes:
        for name in TIMEOUTS:
            node.execute("alter system set %s = '%s'" % (name, TIMEOUT))
        node.execute("select pg_reload_conf()")


def reset_timeouts(scene: Scene) -> None:
    for node in scene.cluster.nodes:
        with node.connect(ADMIN, options="-c statement_timeout=0") as admin:
            for name in TIMEOUTS:
                admin.execute("alter system reset " + name)
            admin.execute("select pg_reload_conf()")


def freeze_worker(scene: Scene) -> None:
    pid = scene.worker()
    kill(pid, signal.SIGSTOP)
    try:
        wait_on(scene)
    finally:
        kill(pid, signal.SIGCONT)


def interrupt(scene: Scene) -> None:
    scene.psql.interrupt()
    scene.end()


# ---- the line


def stall(scene: Scene) -> None:
    scene.bench.proxy.stall()


def stall_for_a_while(scene: Scene) -> None:
    stall(scene)
    scene.release()
    wait_on(scene)
    go(scene)


def cut(scene: Scene) -> None:
    scene.bench.proxy.cut()


def refuse(scene: Scene) -> None:
    """A cancel request needs a connection of its own."""
    scene.bench.proxy.refuse()


def go(scene: Scene) -> None:
    scene.bench.proxy.go()


def corrupt(sender: str, framing: bool = False) -> Callable[[Scene], None]:
    return lambda scene: scene.bench.proxy.corrupt(sender, framing)


def was_corrupted(scene: Scene) -> None:
    assert scene.bench.proxy.corrupted


# ---- room


def no_mount() -> Optional[str]:
    """Why no small disk can be had here."""
    if os.geteuid() != 0:
        return "needs root, to mount a small tmpfs"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True, text=True)
        if done.returncode:
            return "needs mount: " + done.stderr.strip()
        subprocess.run(["umount", folder], check=True)
    return None


@contextlib.contextmanager
def disk_full(scene: Scene) -> Iterator[None]:
    """States go to a disk that has no room from now on."""
    coordinator = scene.cluster.coordinator
    folder = Path(tempfile.mkdtemp(prefix="cerebro-disk-"))
    folder.chmod(0o755)
    coordinator.execute("vacuum full cerebro_internal.state")
    ((size,),) = coordinator.execute("select pg_total_relation_size('cerebro_internal.state')")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % (2 * size + DISK_BYTES), "none", str(folder)], check=True)
    inner = folder / "states"
    inner.mkdir()
    shutil.chown(inner, coordinator.server.data.stat().st_uid, coordinator.server.data.stat().st_gid)
    with coordinator.connect(ADMIN) as admin:
        admin.execute("create tablespace small_disk location '%s'" % inner)
        try:
            admin.execute("alter table cerebro_internal.state set tablespace small_disk")
            with contextlib.suppress(OSError), open(folder / "full", "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            try:
                yield
            finally:
                (folder / "full").unlink()
        finally:
            admin.execute("alter table cerebro_internal.state set tablespace pg_default")
            admin.execute("drop tablespace small_disk")
            subprocess.run(["umount", str(folder)], check=True)
            folder.rmdir()


def no_cgroup() -> Optional[str]:
    """Why no control group can be made here."""
    if not CGROUPS.is_dir():
        return "needs a memory controller of control groups (version 1) at %s" % CGROUPS
    folder = CGROUPS / "cerebro_test"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(LEAST_MEMORY)
    except OSError as error:
        return "needs to make control groups of memory: %s" % error
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return None


@contextlib.contextmanager
def no_memory(scene: Scene) -> Iterator[None]:
    folder = CGROUPS / ("cerebro_test_" + scene.run)
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(LEAST_MEMORY)
        (folder / "cgroup.procs").write_text(str(scene.worker()))
        yield
    finally:
        poll_until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@contextlib.contextmanager
def connections_taken(scene: Scene) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                held.enter_context(scene.cluster.connect())
        yield


def limit_role(limit: int) -> Callable[[Scene], object]:
    return lambda scene: scene.far.execute("alter role %s connection limit %d" % (ROLE, limit))


# ---- the source


def on_segment(statement: str) -> Callable[[Scene], None]:
    """A statement of the far segment's owner; {0} is its table."""

    def act(scene: Scene) -> None:
        with scene.cluster.connect(node=scene.far.number) as owner:
            owner.execute(statement.format(scene.part))

    return act


def on_coordinator(statement: str) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        with scene.cluster.connect() as owner:
            owner.execute(statement.format(scene.table.name))

    return act


def refill(scene: Scene) -> None:
    with scene.cluster.connect(node=scene.far.number) as owner:
        copy(owner, scene.table.schema, scene.table.parts[1], ["x", "kind", "shard"], scene.bench.rows_of(scene.table, 1))


def rebuild(scene: Scene) -> None:
    on_segment("create table {0} (x real[], kind integer, shard integer)")(scene)
    refill(scene)
