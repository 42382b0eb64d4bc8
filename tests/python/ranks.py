# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes that live for the whole test run; a case is a function that all call, as are
tests whose first argument is `group`.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import pathlib
import runpy
import socket
import sys
import tempfile
import time
import traceback
from multiprocessing import forkserver
from unittest import mock

import pytest

from hosts import Hosts, enter

WORLD_SIZE = 4
COMM_SECONDS = 120  # a rank that compiles a model may come so much later than its peers
CASE_SECONDS = 300
SOON = 10.0  # seconds, of the 20 after which the collectives of an own_group fail


def over(*sizes: int, ranks: str = "ranks"):
    """Has a test run on so many ranks, each of which is a process; ranks: the fixture of them."""
    given = [(ranks, size) for size in sizes]
    return pytest.mark.parametrize("group", given, ids=map(str, sizes), indirect=True)


def own_group(ranks: list[int], seconds: float = 20):
    """A group of these ranks of a case, which may end it."""
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=seconds)
    return dist.new_group(ranks, timeout=timeout)


def sum_over(group, *tensors) -> None:
    """Adds up what the ranks of a group hold, in place; None: this process alone."""
    import torch.distributed as dist

    for tensor in tensors if group is not None else ():
        dist.all_reduce(tensor, group=group)


def refuses(call, error: type[BaseException] | tuple, pattern: str) -> None:
    """Checks that call raises this kind of error, with a message that matches."""
    with pytest.raises(error, match=pattern or None):
        call()


def refuses_soon(call, error: type[BaseException] | tuple, pattern: str) -> None:
    """What refuses checks, and that nobody waited until collectives of the group fail."""
    begin = time.monotonic()
    refuses(call, error, pattern)
    assert time.monotonic() - begin < SOON


def _serve(rank: int, world_size: int, store: str, pipe, backend: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    torch.set_num_threads(1)
    if "nccl" in backend:
        torch.cuda.set_device(rank)
        torch.set_default_device(torch.device("cuda", rank))
    timeout = datetime.timedelta(seconds=COMM_SECONDS)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timeout
    )
    groups = {n: dist.new_group(range(n), timeout=timeout) for n in range(1, world_size + 1)}
    kept = set(distributed_c10d._world.pg_map)
    while (task := pipe.recv()) is not None:
        number, size, case, arguments = task
        # torch numbers groups as each process makes them, and a case, of few, may be for few ranks.
        distributed_c10d._world.group_count = 1000 * number
        try:
            with mock.patch.dict(os.environ):  # which the case may change
                result = case(groups[size], *arguments)
            pipe.send((None, result))
        except BaseException:  # the parent shows it
            pipe.send((traceback.format_exc(), None))
        if "magi_attention.api" in sys.modules:
            sys.modules["magi_attention.api"].clear_cache()
        if "torch._dynamo" in sys.modules:  # what failed to compile would be skipped by later cases
            torch._dynamo.reset()
        # Another rank may still be about to connect in a group whose making has ended here.
        with contextlib.suppress(RuntimeError):  # ranks that are being stopped
            dist.barrier(groups[size])
        megatron = sys.modules.get("megatron.core.parallel_state")
        if megatron is not None and megatron.model_parallel_is_initialized():
            megatron.destroy_model_parallel()  # which keeps the groups of its case until the next
        _end_groups_but(kept)
        if "magi_attention._group_holders" in sys.modules:  # lets go when it sees another group
            sys.modules["magi_attention._group_holders"].note_group(groups[size])


def _end_groups_but(kept: set) -> None:
    """Threads of a gloo group poll as long as it lives. A group is held by its name in a frame, and
    its other ranks may wait until it is let go of: hence a frame that ends.
    """
    from torch.distributed import distributed_c10d

    for group in set(distributed_c10d._world.pg_map) - kept:
        distributed_c10d.destroy_process_group(group)


def fork_server():
    """The context of processes that are forked from one that has imported what they use, which
    starts here, unless it runs, and is not waited for.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        forkserver.ensure_running()
    return context


def _run(
    program: str, arguments: list[str], variables: dict[str, str], output: str, places: list[str]
) -> None:
    enter(places)
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(variables)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")


def launch(
    program, *arguments: str, ranks: int = 0, hosts: Hosts | None = None, **variables: str
) -> tuple[int, str]:
    """The exit code of a Python program, a path or its text, and what it has printed. Its process
    is forked like those of ranks, and given variables of the environment; ranks: as many of it,
    which are told what torchrun tells them; hosts: on which half of the ranks each run.
    """
    num_local = ranks // 2 if hosts else ranks
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        told = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
        free.close()
        told |= hosts.rendezvous() if hosts else {}
        told |= dict(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(num_local))
        if isinstance(program, str):
            text, program = program, os.path.join(folder, "program.py")
            pathlib.Path(program).write_text(text)
        started = []
        for rank in range(max(1, ranks)):
            host, local_rank = divmod(rank, max(1, num_local))
            of_rank = told | dict(RANK=str(rank), LOCAL_RANK=str(local_rank)) if ranks else {}
            output = os.path.join(folder, f"{rank}.out")
            places = hosts.places(host) if hosts else []
            given = (str(program), list(arguments), variables | of_rank, output, places)
            started.append(fork_server().Process(target=_run, args=given))
            started[-1].start()
        deadline = time.monotonic() + CASE_SECONDS
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
        output = "".join(path.read_text() for path in sorted(pathlib.Path(folder).glob("*.out")))
        return next((p.exitcode for p in started if p.exitcode), 0), output


class Ranks:
    """Runs cases; started at the first one, and again after one that failed. A backend with nccl: a
    GPU for each rank, which is torch's default device there. A case that takes longer than
    `seconds` has failed.
    """

    def __init__(
        self, world_size: int = WORLD_SIZE, backend: str = "gloo", seconds: float = CASE_SECONDS
    ) -> None:
        self._world_size, self._backend, self._seconds = world_size, backend, seconds
        self._workers, self._num_cases = [], 0

    @property
    def has_gpus(self) -> bool:
        return "nccl" in self._backend

    def _start(self) -> None:
        # What is imported may have asked for GPUs, which a fork cannot use.
        context = multiprocessing.get_context("spawn") if self.has_gpus else fork_server()
        handle, store = tempfile.mkstemp()
        os.close(handle)
        os.unlink(store)
        for rank in range(self._world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, self._world_size, store, theirs, self._backend)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self._workers.append((process, ours))

    def run(self, size: int, case, *arguments):
        """case(group, *arguments) on the first `size` ranks; results in rank order."""
        if not self._workers:
            self._start()
        workers = self._workers[:size]
        self._num_cases += 1
        for _, pipe in workers:
            pipe.send((self._num_cases, size, case, arguments))
        errors, results = [], []
        deadline = time.monotonic() + self._seconds
        for rank, (_, pipe) in enumerate(workers):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                errors.append(f"rank {rank} gave no answer within {self._seconds} s")
                continue
            try:
                error, result = pipe.recv()
            except EOFError:
                errors.append(f"rank {rank} ended")
                continue
            results.append(result)
            if error is not None:
                errors.append(f"rank {rank}:\n{error}")
        if errors:
            self.stop()
            raise AssertionError("\n".join(errors))
        return results

    def stop(self) -> None:
        for process, _ in self._workers:
            process.kill()
            process.join()
        self._workers = []
