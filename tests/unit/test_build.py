"""The build concatenates; released migrations stay as they were."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from scripts import build


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project: one released migration, one new, two files of functions."""
    for name in ("cerebro_udf", "migrations", "sql"):
        (tmp_path / name).mkdir()
    (tmp_path / "cerebro_udf/__init__.py").write_text('__version__ = "1.1.0"\n')
    (tmp_path / "migrations/001-first.sql").write_text("create table a ();\n")
    (tmp_path / "migrations/002-second.sql").write_text("create table b ();\n")
    (tmp_path / "migrations/frozen.txt").write_text("# released\n%s migrations/001-first.sql 1.0.0\n" % ("0" * 64))
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases/cerebro--1.0.0.sql").write_text("create table a ();\n")
    (tmp_path / "sql/f.sql").write_text("create or replace view f as select 1;\n")
    (tmp_path / "sql/g.sql").write_text("create or replace view g as select 1;\n")
    monkeypatch.setattr(build, "ORDER", ())
    return tmp_path


def statements(text):
    return [line for line in text.splitlines() if line and not line.startswith("--")]


def test_script_is_guard_then_migrations_then_functions(project, monkeypatch):
    monkeypatch.setattr(build, "ORDER", ("g.sql",))
    build.build(project / "build", project)
    lines = statements((project / "build/cerebro--1.1.0.sql").read_text())
    assert lines[0].startswith('\\echo Use "CREATE EXTENSION cerebro"') and lines[0].endswith("\\quit")
    assert lines[1] == "SET LOCAL search_path = pg_catalog, pg_temp;"
    assert [line.split()[-2 if "table" in line else -4] for line in lines[2:]] == ["a", "b", "g", "f"]


def test_control_file_names_version_and_language(project):
    build.build(project / "build", project)
    control = (project / "build/cerebro.control").read_text()
    assert "default_version = '1.1.0'" in control
    assert "requires = 'plpython3u'" in control
    assert "schema" not in control


def test_upgrade_from_a_release_runs_only_later_migrations(project):
    build.build(project / "build", project)
    text = (project / "build/cerebro--1.0.0--1.1.0.sql").read_text()
    assert "create table a" not in text
    assert "create table b" in text and "view f" in text


def test_reload_scripts_are_for_development_only(project):
    build.build(project / "build", project)
    assert not list((project / "build").glob("*reload*"))
    build.build(project / "build", project, development=True)
    assert "create table" not in (project / "build/cerebro--reload--1.1.0.sql").read_text()


@pytest.mark.parametrize("name", ["3-third.sql", "004-fourth.sql", "002-again.sql"])
def test_a_gap_or_a_repeat_in_the_numbers_is_refused(project, name):
    (project / "migrations" / name).write_text("select 1;\n")
    with pytest.raises(SystemExit, match="should begin with"):
        build.migrations(project)


def test_scripts_of_former_releases_are_built_as_they_were(project):
    build.build(project / "build", project)
    assert (project / "build/cerebro--1.0.0.sql").read_text() == "create table a ();\n"


def test_a_release_keeps_its_script_and_freezes_what_it_brings(project):
    build.release(project)
    assert (project / "releases/cerebro--1.1.0.sql").read_text() == build.whole(project)
    added = [(file, release) for _, file, release in build.frozen(project)[1:]]
    assert added == [("migrations/002-second.sql", "1.1.0"), ("releases/cerebro--1.1.0.sql", "1.1.0")]
    for sha256, file, _ in build.frozen(project)[1:]:
        assert hashlib.sha256((project / file).read_bytes()).hexdigest() == sha256
    with pytest.raises(SystemExit, match="1.1.0 is released already: raise __version__"):
        build.release(project)


def test_an_update_looks_first_whether_a_run_is_being_driven(project):
    build.build(project / "build", project, development=True)
    for name in ("cerebro--1.0.0--1.1.0.sql", "cerebro--reload--1.1.0.sql"):
        text = (project / "build" / name).read_text()
        assert 0 < text.index("is being driven") < text.index("create")


def test_what_was_released_is_unchanged():
    for sha256, file, release in build.frozen():
        found = hashlib.sha256((build.ROOT / file).read_bytes()).hexdigest()
        assert found == sha256, "%s was released with %s: write a new migration, or raise the version" % (file, release)


def test_a_version_that_was_released_is_as_it_was_released():
    if build.version() in build.released():
        kept = (build.ROOT / build.script_of(build.version())).read_text("utf-8")
        assert build.whole() == kept, "raise __version__: %s was released" % build.version()


def test_every_release_has_its_script():
    for release in build.released():
        assert any(file == build.script_of(release) for _, file, _ in build.frozen())


def test_this_project_builds(tmp_path):
    build.build(tmp_path)
    assert (tmp_path / ("cerebro--%s.sql" % build.version())).stat().st_size > 0
    shutil.rmtree(tmp_path)
