"""What can go wrong on our side. What the sandboxed program does wrong is an `ExecResult`, never one of these."""

from __future__ import annotations


class SandboxError(RuntimeError):
    """The sandbox itself failed (could not start, its holder died, a wait ran out): the reward is `Invalid`."""


class SandboxUnavailable(SandboxError):
    """This machine can not isolate untrusted programs in the way that was asked for; the message says why and the
    mend."""


class SandboxFileError(OSError):
    """A path that can not be read or written from outside: a symbolic link, a folder, a device, or nothing at all."""
