"""Whose a run, an alias or a model is, and who may use it: granted and taken back in the caller's own transaction."""

from __future__ import annotations

from typing import Any, List, Tuple

from cerebro_udf.errors import NotFound, not_owner

PUBLIC = "public"  # all roles; no role can have this name

_FIND = {
    "run": "r.id, r.owner from cerebro_internal.%s_run r where r.name = $1 order by r.owner = current_user desc, r.id",
    "alias": "r.owner from cerebro_internal.%s_alias r where r.alias = $1 and r.nth = 1 order by r.owner = current_user desc, r.owner",
    "model": "r.id, r.owner from cerebro_internal.%s_model r where r.name = $1 order by r.owner = current_user desc, r.id",
}


def change(plpy, kind: str, name: str, role: str, granted: bool) -> None:
    """Grant the use of something to a role, or take it back; what is so already stays so.

    Args:
        kind: ``run`` (or an alias, which passes on its owner's runs) or ``model``.
        name: Its name; it belongs to the caller, or to a role of which the caller is a member.
        role: A role's name, or ``public`` for all roles.
        granted: Whether the role is to have it.

    Raises:
        NotFound: there is no such run, model or role.
        NoPrivilege: the caller may use it, and no more.
    """
    found, kind = owned(plpy, kind, name)
    keys = ["owner", "alias"] if kind == "alias" else [kind]
    values: List[Any] = [found["owner"], name, role] if kind == "alias" else [found["id"], role]
    types = ["name", "text", "name"] if kind == "alias" else ["int4", "name"]
    same = " and ".join("g.%s = $%d" % (key, number) for number, key in enumerate([*keys, "role"], 1))
    view = "cerebro_internal.visible_%s_grant" % kind
    held = bool(len(plpy.execute(plpy.prepare("select 1 from %s g where %s" % (view, same), types), values)))
    if not held and role != PUBLIC:
        if not len(plpy.execute(plpy.prepare("select 1 from pg_catalog.pg_roles o where o.rolname = $1", ["name"]), [role])):
            raise NotFound('role "%s" does not exist' % role, None, "\\du lists all roles; public stands for all of them.")
    if granted and not held:
        holes = ", ".join("$%d" % (number + 1) for number in range(len(values)))
        plpy.execute(plpy.prepare("insert into %s (%s, role) values (%s)" % (view, ", ".join(keys), holes), types), values)
    elif held and not granted:
        plpy.execute(plpy.prepare("delete from %s g where %s" % (view, same), types), values)


def owned(plpy, kind: str, name: str) -> Tuple[Any, str]:
    """What is meant, which belongs to the caller or to a role of which the caller is a member, and of which kind it is.

    Args:
        kind, name: As for :func:`change`; or ``alias``.

    Raises:
        NotFound: there is no such thing.
        NoPrivilege: the caller may use it, and no more.
    """
    kinds = ["run", "alias"] if kind == "run" else [kind]
    for seen in ("visible", "usable"):
        for one in kinds:
            rows = plpy.execute(plpy.prepare("select " + _FIND[one] % seen + " limit 1", ["text"]), [name])
            if len(rows) and seen == "visible":
                return rows[0], one
            if len(rows):
                raise not_owner(one, name, rows[0]["owner"])
    raise NotFound('%s "%s" does not exist' % (kind, name), None, "select %s from cerebro.%s; shows all %ss." % (kind, kind, kind))
