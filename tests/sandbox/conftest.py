from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from posttrain.sandbox import Sandbox, SandboxPool, SandboxSpec, probe


@pytest.fixture
def isolated() -> None:
    found = probe()
    if found.tier == "none":
        pytest.skip("no sandbox on this machine: " + "; ".join(found.problems))


@pytest.fixture
async def pool(isolated: None) -> AsyncIterator[SandboxPool]:
    spec = SandboxSpec(
        timeout_s=5, memory_mib=256, pids=32, output_bytes=64 * 1024, file_mib=8, files_mib=16, files_count=500
    )
    async with SandboxPool(spec) as pool:
        yield pool


@pytest.fixture
async def sb(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with pool.sandbox() as sandbox:
        yield sandbox
