"""How tables that calls made are told from all others: by a mark in their COMMENT, which only their owner can write."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from typing import List, Optional

from cerebro_udf.errors import CerebroError, NotSupported

_GRANTS = """
select pg_catalog.format(
    'grant %s on %s to %s%s', a.privilege_type, $2
  , coalesce((select pg_catalog.quote_ident(r.rolname) from pg_catalog.pg_roles r where r.oid = a.grantee), 'public')
  , case when a.is_grantable then ' with grant option' else '' end) as command
from pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
where c.oid = $1::text::pg_catalog.regclass and a.grantee <> c.relowner
"""

_POLICIES = "select c.relrowsecurity as policies from pg_catalog.pg_class c where c.oid = $1::text::pg_catalog.regclass"


_MARK = re.compile(r"cerebro\.(predict_table|pack) (\{.*\})", re.DOTALL)


@dataclass(frozen=True)
class Mark:
    """Who made a table.

    Attributes:
        call: The function of schema cerebro: ``predict_table`` or ``pack``.
        source, target: Of the call.
        coordinator: Names the database that the call was made in.
        transaction: Number of the call's transaction there.
        run, key: Of a call of ``predict_table``.
        name: Of the marked table when it was made; one that still has it and that nothing refers to is a leftover.
        left: Servers that hold tables of the targets before it, and that the call itself had nothing to do with.
    """

    call: str
    source: str
    target: str
    coordinator: str
    transaction: int
    run: Optional[str] = None
    key: List[str] = field(default_factory=list)
    name: Optional[str] = None
    left: List[str] = field(default_factory=list)

    LIKE = "cerebro.%"  # every mark, and maybe other comments

    def named(self, name: str) -> "Mark":
        return dataclasses.replace(self, name=name)

    def text(self) -> str:
        fields = dataclasses.asdict(self)
        return "cerebro.%s %s" % (fields.pop("call"), json.dumps(fields, ensure_ascii=False))

    @classmethod
    def of(cls, comment: Optional[str]) -> Optional["Mark"]:
        """Read a table's comment; None if it is no mark."""
        match = _MARK.fullmatch(comment or "")
        if match is None:
            return None
        try:
            return cls(match.group(1), **json.loads(match.group(2)))
        except (ValueError, TypeError):
            return None


def copy_grants(plpy, old: str, new: str, call: str) -> None:
    """Grant on one relation, which a call makes, what is granted on another; both quoted and qualified.

    Raises:
        NotSupported: the other has row security, without which its grants would show more.
    """
    if plpy.execute(plpy.prepare(_POLICIES, ["text"]), [old])[0]["policies"]:
        raise has_policies(old, call)
    for row in plpy.execute(plpy.prepare(_GRANTS, ["text", "text"]), [old, new]):
        plpy.execute(row["command"])


def has_policies(relation: str, call: str) -> NotSupported:
    return NotSupported(
        "table %s has row security" % relation,
        "Its policies would go with it, and its grants then show every row.",
        _kept(call) + "; or drop the table, and set the policies on the new one.",
    )


def depended_on(relation: str, call: str, detail: str) -> CerebroError:
    hint = _kept(call) + "; or drop them first."
    raised = CerebroError("table %s cannot be replaced: other objects depend on it" % relation, detail, hint)
    raised.sqlstate = "2BP01"
    return raised


def _kept(call: str) -> str:
    """How a call leaves a table alone that it would replace."""
    return "Name another target" if call == "pack" else 'Set options.if_exists to "append"'
