"""The process of one rank: ``python -m validate.running.worker RANK RANKS FOLDER``, as ``spawn`` starts it."""

import pickle
import sys
from pathlib import Path

from torch import distributed as dist

from profiles.errors import DiffusimError
from validate.running.rank import carry_out, join


def main(rank: int, num_ranks: int, folder: Path) -> int:
    """Carry out the jobs of a folder; rank 0 writes what came of them. Return the exit status."""
    jobs = pickle.loads((folder / "jobs").read_bytes())
    try:
        pids = join(rank, num_ranks, f"file://{folder / 'store'}", jobs[0].device)
        outcomes = carry_out(jobs, pids)
    except DiffusimError as error:
        print(error, file=sys.stderr)
        return 2
    if rank == 0:
        (folder / "outcomes").write_bytes(pickle.dumps(outcomes))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
