"""The trajectories of a run: one Parquet file per phase and step, `rl-000012.parquet`, written once.

A file holds the columns of `posttrain.records.arrow` and before them `phase` and `step`, so that a query over the
whole folder (pyarrow.dataset, duckdb, pandas) needs nothing but the files.

Invariants: a file is whole or absent; what a step trained on never changes. A step that is written again (a run that
was killed between its trajectories and its checkpoint) has to bring what training would read unchanged; measured
seconds may differ, and the first file stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.records import Group
from posttrain.records.arrow import from_table, to_table
from posttrain.storage.atomic import write_atomic

if TYPE_CHECKING:
    import pyarrow as pa

# What training reads, and so what a second writing has to repeat; timings and what the environment printed may differ.
_CONTENT = (
    *("task_id", "task", "group_id", "attempt", "seed", "token_ids", "logprobs", "producers", "policy_versions"),
    *("stop_reason", "reward_value", "reward_parts", "failure"),
)


class TrajectoryStore:
    """The trajectories in `folder`; it is created by the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, phase: str, step: int, groups: Sequence[Group]) -> Path:
        """Saves the groups of a step, durably; returns the file.

        Nothing happens where the same groups are there already. ValueError where others are; StorageError where the
        disk can not take them.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path(phase, step)
        table = to_table(groups)
        if path.exists():
            if not table.select(_CONTENT).equals(self._table(path).select(_CONTENT)):
                raise ValueError(
                    f"{path} holds other trajectories of {phase} step {step}: a step is written once; "
                    "use another run folder to run it again"
                )
            return path
        metadata = table.schema.metadata
        table = table.add_column(0, "phase", pa.array([phase] * len(table), pa.string()))
        table = table.add_column(1, "step", pa.array([step] * len(table), pa.int64())).replace_schema_metadata(metadata)
        write_atomic(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
        return path

    def read(self, phase: str, step: int) -> list[Group] | None:
        """The groups of a step as they were written; None where the step has none. ValueError for a damaged file."""
        path = self.path(phase, step)
        if not path.exists():
            return None
        table = self._table(path)
        try:
            return from_table(table)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def steps(self, phase: str) -> list[int]:
        """Steps of `phase` that have trajectories, ascending."""
        if not self.folder.is_dir():
            return []
        pattern = re.compile(re.escape(phase) + r"-(\d{6,})\.parquet")
        return sorted(int(match[1]) for entry in self.folder.iterdir() if (match := pattern.fullmatch(entry.name)))

    def iterate(self, phase: str) -> Iterator[tuple[int, list[Group]]]:
        """(step, groups) of every step of `phase`, ascending; one step in memory at a time."""
        for step in self.steps(phase):
            groups = self.read(phase, step)
            if groups is not None:
                yield step, groups

    def path(self, phase: str, step: int) -> Path:
        """Where a step's trajectories are, or will be."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", phase) or step < 0:
            raise ValueError(f"phase {phase!r} step {step}: a phase is a word in lower case, and steps count from 0")
        return self.folder / f"{phase}-{step:06d}.parquet"

    def _table(self, path: Path) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # ParquetFile and not read_table: the latter looks for partitions in the folder's name.
            with pq.ParquetFile(path) as file:
                return file.read()
        except pa.ArrowException as error:
            raise ValueError(f"{path} is damaged ({error}); remove it to run that step again") from error
