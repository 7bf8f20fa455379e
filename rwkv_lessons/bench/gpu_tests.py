"""How the tests that need a GPU went on one: written by `make test-gpu`, shown in the README."""

import json
from pathlib import Path

from rwkv_lessons.records.fingerprint import fingerprint, kernel_code
from rwkv_lessons.records.schema import RECORDS, load, path

NAME = "gpu-tests"
COMMAND = "make test-gpu"
OUTCOMES = {"passed": ("passed", "xpassed"), "failed": ("failed", "error"), "skipped": ("skipped",)}
MOST_NAMED = 40  # failed tests


def save(stats, seconds, here=None, folder=None):
    """Writes the summary of a run; returns the path.

    Args:
        stats: pytest's reports by outcome: {"passed": [report, …], …}.
        seconds: of the whole run.
        here: what `verify.machine.machine` says, if not this machine's.
        folder: of records, if not this project's own: <folder>/<gpu>/gpu-tests.json.
    """
    from rwkv_lessons.verify.machine import machine  # imports torch, which the table does not need

    here = here or machine()
    counts = {name: sum(len(stats.get(x, ())) for x in kinds) for name, kinds in OUTCOMES.items()}
    failures = {report.nodeid for x in OUTCOMES["failed"] for report in stats.get(x, ())}
    names = ("driver", "cuda", "date", "commit", "python", "torch", "triton", "numba", "numba_cuda")
    provenance = {"gpu": here["gpu"]} | {name: here[name] for name in names if here[name]}
    provenance = dict.fromkeys(("driver", "cuda", "commit"), "unknown") | provenance
    provenance |= {"command": COMMAND, "timing": "wall clock"}
    data = {"name": NAME, "provenance": provenance, **counts, "seconds": round(seconds)}
    data |= {"assembler": here["assembler"], "sha256": here["sha256"]}
    if failures:
        data["failures"] = sorted(failures)[:MOST_NAMED]
    file = path(NAME, here["gpu"], folder and Path(folder))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def rows(folder=None):
    """A line of the table for each GPU on which the tests ran, as text."""
    current, table = fingerprint(*kernel_code()), []
    for file in sorted((folder or RECORDS).glob(f"*/{NAME}.json")):
        record = load(file)
        origin, result = record.provenance, record.ceilings
        versions = [f"{name.replace('_', '-')} {version}" for name, version in origin.versions()]
        versions += [f"ptxas {result['assembler']}"]
        same = "this code" if result["sha256"] == current else "**older code**"
        numbers = [str(result[name]) for name in ("passed", "failed", "skipped", "seconds")]
        versions_text = f"driver {origin.driver}, {', '.join(versions)}, commit {origin.commit}"
        table.append([origin.gpu, *numbers, same, origin.date, versions_text])
    return table


HEAD = ["GPU", "passed", "failed", "skipped", "seconds", "of", "on", "with"]
