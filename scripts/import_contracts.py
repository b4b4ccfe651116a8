"""Two contract types for import-linter that say what the table of rooms says, and bear rooms that are not built yet.

`rooms`: each direct import from one room (a package right under the root) into another must be in that room's line.
`without`: no listed module may reach an external package, directly or through other modules of ours.
"""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, fields, output

ALWAYS_ALLOWED = "records"


def parse_rooms(lines: list[str]) -> dict[str, frozenset[str]]:
    """`"a: b c.d"` -> `{"a": {"b", "c.d"}}`; `ValueError` where a line has no colon or a room has two lines."""
    rooms: dict[str, frozenset[str]] = {}
    for line in lines:
        name, colon, allowed = line.partition(":")
        if not colon or name in rooms:
            raise ValueError(f"{line!r}: write `room: what it may import`, one line a room")
        rooms[name.strip()] = frozenset(allowed.split())
    return rooms


def room_violation(root: str, rooms: dict[str, frozenset[str]], importer: str, imported: str) -> str | None:
    """Why this import is against the table, or None. Modules are full names; `root` itself may import anything."""
    prefix = root + "."
    if not importer.startswith(prefix) or not imported.startswith(prefix):
        return f"{importer} takes a name from the root package: import it from its room" if imported == root else None
    here, there = importer.removeprefix(prefix), imported.removeprefix(prefix)
    room, target = here.split(".")[0], there.split(".")[0]
    if room == "__main__" or room == target or (target == ALWAYS_ALLOWED and room in rooms):
        return None
    if room not in rooms:
        return f"{room} is not a room of the table: give it a line"
    allowed = any(there == name or there.startswith(name + ".") for name in rooms[room])
    return None if allowed else f"{room} may not import {there}"


class RoomsContract(Contract):
    rooms: Any = fields.ListField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        root = self.session_options["root_packages"][0]
        rooms = parse_rooms(list(self.rooms))
        broken = []
        for importer in sorted(m for m in graph.modules if m == root or m.startswith(root + ".")):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                why = room_violation(root, rooms, importer, imported)
                details = graph.get_import_details(importer=importer, imported=imported)
                if imported == root:  # `import posttrain`, to find its folder, takes no name from it
                    details = [d for d in details if d["line_contents"].strip() != f"import {root}"]
                if why and details:
                    lines = ", ".join(str(d["line_number"]) for d in details)
                    broken.append(f"{importer}:{lines} imports {imported}: {why}")
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line)


class WithoutContract(Contract):
    modules: Any = fields.ListField(subfield=fields.StringField())
    forbidden: Any = fields.ListField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        root = self.session_options["root_packages"][0]
        broken = []
        for name in self.modules:
            top = f"{root}.{name}"
            if top not in graph.modules:
                continue  # not built yet
            for module in sorted({top, *graph.find_descendants(top)}):
                for package in sorted({f.split(".")[0] for f in self.forbidden} & graph.modules):
                    chain = graph.find_shortest_chain(importer=module, imported=package)
                    if chain:
                        broken.append(" -> ".join(chain))
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line)
