"""Where may untrusted actions run? In a sandbox; see `pool` for how to use one and `probe` for what this machine can
do."""

from posttrain.sandbox.errors import SandboxError, SandboxFileError, SandboxUnavailable
from posttrain.sandbox.pool import Sandbox, SandboxPool
from posttrain.sandbox.probe import Capabilities, probe
from posttrain.sandbox.spec import ExecResult, SandboxSpec, Usage

__all__ = [
    "Capabilities",
    "ExecResult",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxPool",
    "SandboxSpec",
    "SandboxUnavailable",
    "Usage",
    "probe",
]
