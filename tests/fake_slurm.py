"""A file-backed Slurm command line for tests of rare behaviour: real scripts run with it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    SubmissionRequest,
    parse_submission,
    submission_script,
)

if TYPE_CHECKING:
    from pathlib import Path

SBATCH = r"""#!/bin/sh
# Accepts a job as $FAKE_SLURM/jobs/<id>; $FAKE_SLURM/sbatch.sh, if there, says what it prints and returns instead.
for option; do
  case $option in
    --job-name=*) name=${option#*=} ;;
    --comment=*) comment=${option#*=} ;;
  esac
done
accept() {
  id=1001
  until mkdir "$FAKE_SLURM/ids/$id" 2>/dev/null; do id=$((id + 1)); done
  printf '%s|PENDING|%s|%s|%s\n' "$id" "$(date +%s)" "$comment" "$name" >"$FAKE_SLURM/jobs/$id"
  cat >"$FAKE_SLURM/ids/$id/script"
  printf '%s\n' "$@" >"$FAKE_SLURM/ids/$id/argv"
  env >"$FAKE_SLURM/ids/$id/env"
}
printf 'call\n' >>"$FAKE_SLURM/sbatch.calls"
if [ -e "$FAKE_SLURM/sbatch.sh" ]; then . "$FAKE_SLURM/sbatch.sh"; exit; fi
accept "$@"
echo "$id"
"""

SQUEUE = r"""#!/bin/sh
printf '%s\n' "$*" >>"$FAKE_SLURM/squeue.calls"
if [ -e "$FAKE_SLURM/squeue.sh" ]; then . "$FAKE_SLURM/squeue.sh"; exit; fi
format= name=
while [ $# -gt 0 ]; do
  case $1 in
    -o) format=$2; shift ;;
    -n) name=$2; shift ;;
  esac
  shift
done
cat "$FAKE_SLURM"/jobs/* 2>/dev/null | while IFS='|' read -r id state submitted comment job; do
  case $job in *'|'*) comment="$comment|${job%|*}" job=${job##*|} ;; esac
  [ -n "$name" ] && [ "$name" != "$job" ] && continue
  case $format in
    'row|%j') printf 'row|%s\n' "$job" ;;
    %A) printf '%s\n' "$id" ;;
    'queue|'*'|%r|%j') printf 'queue|%s|%s|%s|%s\n' "$id" "$state" "$comment" "$job" ;; # the comment as the reason
    queue*'|%k') printf 'queue|%s|%s|%s\n' "$id" "$job" "$comment" ;;
    queue*) printf 'queue|%s|%s\n' "$id" "$job" ;;
    *%S*) printf '%s|%s|%s|N/A|N/A|1||None|%s\n' "$id" "$state" "$submitted" "$job" ;;
    *) printf '%s|%s|%s|%s|%s\n' "$id" "$state" "$submitted" "$comment" "$job" ;;
  esac
done
"""

SACCT = r"""#!/bin/sh
printf '%s\n' "$*" >>"$FAKE_SLURM/sacct.calls"
if [ -e "$FAKE_SLURM/sacct.sh" ]; then . "$FAKE_SLURM/sacct.sh"; exit; fi
"""

SCONTROL = r"""#!/bin/sh
printf '%s\n' "$*" >>"$FAKE_SLURM/scontrol.calls"
if [ -e "$FAKE_SLURM/scontrol.sh" ]; then . "$FAKE_SLURM/scontrol.sh"; exit; fi
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""

SCANCEL = r"""#!/bin/sh
printf '%s\n' "$*" >>"$FAKE_SLURM/scancel.calls"
for word; do
  case $word in [0-9]*) rm -f "$FAKE_SLURM/jobs/$word" ;; esac
done
"""


@dataclass
class FakeSlurm:
    """Directory of the commands and their records."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "FAKE_SLURM": str(self.root),
        }

    def behave(self, command: str, shell: str) -> None:
        """Replace the behaviour of *command*; in that of sbatch, ``accept "$@"`` accepts the job."""
        (self.root / f"{command}.sh").write_text(shell)

    def behave_normally(self, command: str) -> None:
        (self.root / f"{command}.sh").unlink(missing_ok=True)

    def calls(self, command: str) -> list[str]:
        path = self.root / f"{command}.calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def jobs(self) -> list[str]:
        return sorted(path.name for path in (self.root / "jobs").iterdir())

    def accepted(self, job_id: str, what: str) -> str:
        return (self.root / "ids" / job_id / what).read_text()

    def start(self, script: str, commands: SlurmCommands | None = None) -> subprocess.Popen[bytes]:
        """Start *script* as a login node does, in a separate session, so that all its processes can be killed."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", (commands or SlurmCommands()).remote_shell()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(script.encode())
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, script: str, commands: SlurmCommands | None = None) -> CommandResult:
        process = self.start(script, commands)
        out, err = process.communicate(timeout=120)
        return CommandResult(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def submit(self, request: SubmissionRequest) -> SubmissionOutcome:
        return parse_submission(self.run(submission_script(request)))


def fake_slurm(root: Path) -> FakeSlurm:
    for name in ("bin", "jobs", "ids"):
        (root / name).mkdir(parents=True)
    commands = {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scontrol": SCONTROL, "scancel": SCANCEL}
    for name, text in commands.items():
        path = root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return FakeSlurm(root)
