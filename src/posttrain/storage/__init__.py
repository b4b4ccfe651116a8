"""Where things last: run folders, checkpoints, trajectories. Imports `records` only, and no torch.

Invariant: a reader sees a file whole or not at all, whenever the writer was killed and however full the disk was.
"""

from posttrain.storage.atomic import StorageError, require_free, write_atomic
from posttrain.storage.checkpoints import CheckpointStore
from posttrain.storage.run_folder import STAGES, RunFolder, RunFolderError
from posttrain.storage.trajectories import TrajectoryStore

__all__ = [
    "STAGES",
    "CheckpointStore",
    "RunFolder",
    "RunFolderError",
    "StorageError",
    "TrajectoryStore",
    "require_free",
    "write_atomic",
]
