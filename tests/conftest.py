"""Fixtures that every test may use; one cluster per session, one schema per test."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path

import psycopg
import pytest

from tests import requirements
from tests.cluster import ADMIN, ROLE, Cluster
from tests.session import Session
from tests.tables import Maker, quoted

LOG_CHARACTERS_SHOWN = 8_000

CORES = os.sched_getaffinity(0)  # of the machine, before processes of tests share them out

_running: list[Cluster] = []
_warm: list[psycopg.Connection] = []  # at most one: what the module before has left to modules that say WARM
_log_marks = pytest.StashKey[dict]()


def pytest_addoption(parser):
    parser.addoption(
        "--keep-cluster",
        metavar="FOLDER",
        type=Path,
        help="use the cluster in FOLDER, create it if need be, and leave it running (saves the start)",
    )


def pytest_configure(config):
    # A terminated session runs its finalizers too, and leaves no server behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Processes of tests share the cores out, so that each cluster's workers have cores to themselves. On two cores, every
        # worker has one thread, and goes on with whatever number of segments the next test takes.
        number, count = int(os.environ["PYTEST_XDIST_WORKER"][len("gw") :]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, sorted(CORES)[number % len(CORES) :: count])


def pytest_collection_modifyitems(items):
    from scripts import cluster as embedded

    def server_version() -> int:
        text = subprocess.run([embedded.pg_config(), "--version"], text=True, capture_output=True, check=True)
        return int(text.stdout.split()[1].split(".")[0])

    def has_extension(name: str) -> bool:
        folder = subprocess.run([embedded.pg_config(), "--sharedir"], text=True, capture_output=True, check=True).stdout.strip()
        return (Path(folder) / "extension" / (name + ".control")).exists()

    for item in items:
        reason = requirements.unmet(item, server_version, has_extension)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_log_marks] = {node.name: node.log_size() for cluster in _running for node in cluster.nodes}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failing test shows what the servers logged meanwhile."""
    report = yield
    if report.failed:
        marks = item.stash.get(_log_marks, {})
        for cluster in _running:
            for node in cluster.nodes:
                text = node.log_since(marks.get(node.name, 0)).strip()
                if text:
                    report.sections.append(("log of " + node.name, text[-LOG_CHARACTERS_SHOWN:]))
    return report


@pytest.fixture(scope="session")
def cluster(request):
    """A coordinator and three segments (more by CEREBRO_TEST_SEGMENTS), with the ordinary role `tester`."""
    made = Cluster(requirements.wanted_segments(), request.config.getoption("--keep-cluster"))
    _running.append(made)
    try:
        yield made
    finally:
        _running.remove(made)
        while _warm:
            _warm.pop().close()
        made.close()


@pytest.fixture
def every_core(cluster):
    """Sessions that begin on the coordinator meanwhile have every core of the machine, as an installation's have."""
    server = cluster.coordinator.pid
    share = os.sched_getaffinity(server)
    os.sched_setaffinity(server, CORES)
    yield
    os.sched_setaffinity(server, share)


@pytest.fixture
def schema(cluster):
    """The name of an empty schema that belongs to `tester`, on every node."""
    name = "test_" + uuid.uuid4().hex[:8]
    for node in cluster.nodes:
        node.execute("create schema %s authorization %s" % (name, ROLE))
    yield name
    for node in cluster.nodes:
        node.execute("drop schema if exists %s cascade" % name)


@pytest.fixture
def conn(cluster, schema):
    """A connection of the ordinary role to the coordinator, autocommit, the test's schema in search_path."""
    with cluster.connect() as connection:
        connection.execute("select set_config('search_path', %s, false)", [schema])
        yield connection


@pytest.fixture(scope="module", autouse=True)
def cold(request):
    """Modules that do not say `WARM = True` find no worker of `tester`."""
    if not getattr(request.module, "WARM", False):
        while _warm:
            _warm.pop().close()


@pytest.fixture(scope="module")
def session(cluster, cold, request):
    """A session of `tester` that a module's tests share, with a schema of its own: see tests/session.py.

    Its workers begin with the module's first fit. A module of which no test depends on that says `WARM = True`: it goes on
    with the workers, and the programs, of the module before it that said so, and saves seconds.
    """
    name = "shared_" + uuid.uuid4().hex[:8]
    for node in cluster.nodes:
        node.execute("create schema %s authorization %s" % (name, ROLE))
    made = Session(cluster, name, warm=_warm.pop() if _warm else None)
    try:
        yield made
    finally:
        if getattr(request.module, "WARM", False):
            _warm.append(made.leave())
        else:
            made.close()
        for node in cluster.nodes:
            node.execute("drop schema if exists %s cascade" % name)


@pytest.fixture
def admin(cluster):
    """A superuser's connection to the coordinator."""
    with cluster.connect(ADMIN) as connection:
        yield connection


@pytest.fixture
def superuser(cluster):
    """A superuser's connection to the coordinator, with user mappings for every server."""
    with cluster.connect(ADMIN) as connection:
        nodes = {"cerebro_self": 0, **{"segment_%d" % number: number for number in range(1, len(cluster.nodes))}}
        try:
            for server, number in nodes.items():
                connection.execute(
                    psycopg.sql.SQL("create user mapping for current_user server {} options (user {}, password {})").format(
                        psycopg.sql.Identifier(server), ADMIN, cluster.node(number).server.password(ADMIN)
                    )
                )
            yield connection
        finally:
            for server in nodes:
                connection.execute("drop user mapping if exists for current_user server " + server)


@pytest.fixture
def make_role(cluster):
    """Makes ordinary roles on every node, each with passwords and user mappings; dropped afterwards.

    `make_role()` returns the name; a name may be given, for names that need quoting.
    """
    made = []

    def make(name: str | None = None) -> str:
        name = name or "role_" + uuid.uuid4().hex[:8]
        cluster.add_role(name)
        made.append(name)
        return name

    yield make
    for name in made:
        cluster.drop_role(name)


@pytest.fixture
def tables(cluster, schema):
    """Makes tables as `tester` in the test's schema: `tables.sharded(…)`, `tables.local(…)`."""
    return Maker(cluster, schema)


@pytest.fixture
def sharded(tables):
    """`sharded({"id": "integer", "x": "real[]"}, rows, sizes=[100, 0, 1])`: see tests/tables.py."""
    return tables.sharded


@pytest.fixture
def make_schema(cluster):
    """Makes a schema of any name and owner on every node."""
    made = []

    def make(name: str, owner: str = ROLE) -> str:
        for node in cluster.nodes:
            node.execute("create schema %s authorization %s" % (quoted(name), quoted(owner)))
        made.append(name)
        return name

    yield make
    for name in made:
        for node in cluster.nodes:
            node.execute("drop schema if exists %s cascade" % quoted(name))
