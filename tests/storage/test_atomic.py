"""Files on disks that fill up, and writers that die."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.storage import StorageError, require_free, write_atomic
from posttrain.storage.atomic import in_words, sweep

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root; the limit on file sizes is tested instead")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"can not mount a small disk here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run([umount, folder], check=True)


def test_the_content_and_its_folder_are_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_atomic(path, b"one")
    assert path.read_bytes() == b"one"
    write_atomic(path, lambda temporary: temporary.write_text("two"))
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_file_has_the_permissions_the_user_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "file", b"one")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_writer_that_raises_leaves_the_previous_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one")

    def fails(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        write_atomic(path, fails)
    assert path.read_bytes() == b"one"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_line_that_says_what_is_safe(tiny_disk: Path) -> None:
    path = tiny_disk / "file"
    write_atomic(path, b"one")
    with pytest.raises(StorageError) as caught:
        write_atomic(path, b"x" * 300_000)
    message = str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    assert str(path) in message
    assert "needs 293.0 KiB" in message
    assert "free" in message
    assert "previous file is intact" in message
    assert "\n" not in message
    assert path.read_bytes() == b"one"
    assert [p.name for p in tiny_disk.iterdir()] == ["file"]
    with pytest.raises(StorageError, match="nothing was left behind"):
        write_atomic(tiny_disk / "other", lambda temporary: temporary.write_bytes(b"x" * 300_000))
    write_atomic(path, b"two")


def test_a_disk_error_that_another_writer_reports_is_understood(tiny_disk: Path) -> None:
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = {"a": numpy.zeros(100_000, numpy.float32)}
    with pytest.raises(StorageError, match="No space left"):
        write_atomic(tiny_disk / "a.safetensors", lambda temporary: safetensors.save_file(tensors, temporary))
    assert list(tiny_disk.iterdir()) == []


def test_a_limit_on_file_sizes_is_a_storage_error_too(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from posttrain.storage import StorageError, write_atomic
        path = Path(sys.argv[1])
        write_atomic(path, b"one")
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            write_atomic(path, b"x" * 100_000)
        except StorageError as error:
            print(error)
        assert path.read_bytes() == b"one"
        assert [p.name for p in path.parent.iterdir()] == [path.name]
    """)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large (needs 97.7 KiB" in done.stdout
    assert "intact" in done.stdout


def test_too_little_room_is_said_before_the_work_starts(tmp_path: Path) -> None:
    require_free(tmp_path / "not" / "there" / "yet", 1, "the model")
    with pytest.raises(StorageError, match=r"the model needs 1048576.0 TiB .* free: make room"):
        require_free(tmp_path / "not" / "there", 2**60, "the model")


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"one")
    (tmp_path / ".file.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / ".step-000001.0123abcd.tmp").mkdir()
    (tmp_path / ".step-000001.0123abcd.tmp" / "weights").write_bytes(b"half")
    sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_sizes_are_written_for_people() -> None:
    assert [in_words(n) for n in (0, 1023, 1536, 2**20, 3 * 2**30, 2**41)] == [
        "0 bytes",
        "1023 bytes",
        "1.5 KiB",
        "1.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
    ]
