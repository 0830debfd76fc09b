"""Which version runs where, and who has to be brought up to date."""

from __future__ import annotations

import pytest

import cerebro_udf
from cerebro_udf import versions
from cerebro_udf.errors import SegmentNotReady, SessionOutdated

HERE = cerebro_udf.__version__


class Server:
    """What the catalog says of the extension."""

    def __init__(self, oid: int = 7, version: str = HERE):
        self.row = {"oid": oid, "version": version}

    def prepare(self, query):
        return query

    def execute(self, plan):
        return [self.row]


def test_the_installed_version_is_the_loaded_one():
    assert versions.installed() == HERE
    assert versions.refuse_outdated(Server(), {}) == HERE


@pytest.mark.parametrize("there, behind", [("0.0.9", 'segment "s"'), ("999.10.0", "the coordinator")])
def test_the_node_that_is_behind_is_the_one_to_upgrade(there, behind):
    told = versions.other_node("s", there)
    assert told.detail == "It runs %s, the coordinator %s." % (there, HERE)
    assert "on the host of %s," % behind in told.hint
    assert told.hint.startswith("Install version %s " % (there if behind == "the coordinator" else HERE))


@pytest.mark.parametrize("extension, hint", [("0.0.9", "ALTER EXTENSION cerebro UPDATE"), ("999.0.0", "Install version 999.0.0")])
def test_extension_and_package_of_two_versions_are_refused(extension, hint):
    with pytest.raises(SegmentNotReady) as caught:
        versions.refuse_mixed(extension)
    assert extension in caught.value.detail and HERE in caught.value.detail and hint in caught.value.hint


def test_an_extension_that_was_created_anew_is_not_the_one_that_is_remembered():
    server, gd = Server(), {}
    versions.refuse_outdated(server, gd)
    server.row["oid"] = 8
    with pytest.raises(SessionOutdated):
        versions.refuse_outdated(server, gd)


def test_a_package_that_is_gone_ends_the_session(monkeypatch, tmp_path):
    monkeypatch.setattr(cerebro_udf, "__file__", str(tmp_path / "gone.py"))
    with pytest.raises(SessionOutdated, match="upgraded") as caught:
        versions.refuse_outdated(Server(), {})
    assert "no longer installed" in caught.value.detail
