"""Ranks of scripts: torch and diffusers are imported once, and so many ranks are forked for each line that is read.

A line has a folder, a script of it, ranks, what runs once before, and arguments; ``printed`` has what they print.
"""

import json
import os
import runpy
import socket
import sys
from multiprocessing import get_context

import torch.distributed.fsdp  # noqa: F401

import profiles.measuring.timing.starting  # noqa: F401  and with it the networks of diffusers

Process = get_context("fork").Process


def ended(*processes):
    """The exit codes of processes that are started and waited for."""
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def all_ranks(folder, script, count, before, *arguments):
    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": count}
    exec(before, {})
    sys.argv = [script, *arguments]
    sys.exit(any(ended(*(Process(target=one_rank, args=(rank, script)) for rank in range(int(count))))))


def one_rank(rank, script):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    runpy.run_path(script, run_name="__main__")


for line in sys.stdin:
    print(*ended(Process(target=all_ranks, args=json.loads(line))), flush=True)
