"""The system calls that a sandboxed program may not make, as a classic BPF program.

What for: namespaces leave the whole kernel interface reachable; this closes what an ordinary program never needs: new
namespaces and mounts, key rings (not namespaced), io_uring, bpf, perf, tracing, kernel modules, and socket families
other than unix, inet, inet6 and netlink. A denied call fails with EPERM, `clone3` with ENOSYS (its flags lie in
memory, out of a filter's sight, and libc then falls back to `clone`); a call through a foreign ABI (32-bit on 64-bit)
kills the process.

Sources: linux/seccomp.h, linux/audit.h, linux/bpf_common.h; call numbers from asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import struct

# name: (x86_64, aarch64)
_DENIED = {
    "ptrace": (101, 117),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "acct": (163, 89),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink
_X32_BIT = 0x40000000

_LOAD, _EQ, _GE, _SET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NR, _AT_ARCH, _AT_ARG0 = 0, 4, 16  # offsets in struct seccomp_data; ARG0: its low half (little endian)
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def _deny(code: int) -> int:
    return 0x00050000 | code


def filter_program(machine: str) -> bytes:
    """The filter for `machine` (`platform.machine()`): packed `struct sock_filter`, 8 bytes each, less than one pipe
    write.

    An unknown machine gets a filter that allows everything: `knows(machine)` tells, and the probe reports it.
    """
    if machine not in _ARCH:
        return struct.pack("<HBBI", _RET, 0, 0, _ALLOW)
    column, arch = _ARCH[machine]
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _AT_ARCH),
        (_EQ, 1, 0, arch),
        (_RET, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NR),
        (_GE, 0, 1, _X32_BIT),
        (_RET, 0, 0, _KILL if machine == "x86_64" else _deny(errno.ENOSYS)),
        (_EQ, 0, 1, _CLONE3[column]),
        (_RET, 0, 0, _deny(errno.ENOSYS)),
        (_EQ, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _AT_ARG0),
        (_SET, 0, 1, _NEW_NAMESPACES),
        (_RET, 0, 0, _deny(errno.EPERM)),
        (_RET, 0, 0, _ALLOW),
        (_EQ, 0, len(_FAMILIES) + 3, _SOCKET[column]),
        (_LOAD, 0, 0, _AT_ARG0),
        *[(_EQ, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)],
        (_RET, 0, 0, _deny(errno.EPERM)),
        (_RET, 0, 0, _ALLOW),
    ]
    numbers = sorted(pair[column] for pair in _DENIED.values())
    program += [(_EQ, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    program += [(_RET, 0, 0, _ALLOW), (_RET, 0, 0, _deny(errno.EPERM))]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def knows(machine: str) -> bool:
    return machine in _ARCH
