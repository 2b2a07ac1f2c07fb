"""A job of a Slurm array, or of an indexed job of Kubernetes: its share of the rows, into a file of its own."""

import json
import os
import sys
from pathlib import Path

from engine_work import answered, rows

if "SLURM_ARRAY_TASK_ID" in os.environ:
    index, count = int(os.environ["SLURM_ARRAY_TASK_ID"]), int(os.environ["SLURM_ARRAY_TASK_COUNT"])
else:
    index, count = int(os.environ["JOB_COMPLETION_INDEX"]), int(os.environ["JOB_COMPLETIONS"])

folder, number = Path(sys.argv[1]), int(sys.argv[2])
done = answered(rows(number)[index::count])
(folder / f"{index}.json").write_text(json.dumps(done))
