"""What the workflows of GitHub run is there: targets of the Makefile, modules, tests."""

import re
from importlib.util import find_spec

import pytest
import yaml
from support.makefile import INSTALL, MAKEFILE

from rwkv_lessons.lab.course import lock
from rwkv_lessons.lab.course.exercises import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", MAKEFILE, re.M))


def steps(text):
    return [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]


def missing(text):
    """What the steps of a workflow run or use, and cannot."""
    found = []
    for step in steps(text):
        if "uses" in step and not re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]):
            found.append(step["uses"])  # of a tag of a major version only
        run = step.get("run", "")
        if target := re.match(r"make ([\w-]+)", run):
            found += {target[1]} - TARGETS
        if module := re.search(r"-m ([\w.]+)", run):
            found += [] if find_spec(module[1]) else [module[1]]
        found += [name for name in re.findall(r"tests/\S+", run) if not (ROOT / name).exists()]
    return found


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_what_is_there(workflow):
    text = workflow.read_text()
    assert missing(text) == []
    assert any("run" in step for step in steps(text))
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in yaml.safe_load(text)["jobs"].values())


@pytest.mark.parametrize(
    "before, after, lacks",
    [
        ("make test ", "make tests ", "tests"),
        ("checkout@v5", "checkout@main", "actions/checkout@main"),
        ("tests/mla/test_mla.py", "tests/test_moa.py", "tests/test_moa.py"),
        ("-m pytest", "-m rwkv_lessons.nothing", "rwkv_lessons.nothing"),
    ],
)
def test_what_is_missing_is_seen(before, after, lacks):
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert before in text
    assert set(missing(text.replace(before, after))) == {lacks}


def test_contributors_are_told_of_targets_that_are_there():
    told = set(re.findall(r"make ([a-z][\w-]+)", (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"setup", "test", "lock", "record"} <= told <= TARGETS


def test_the_oldest_python_is_tested_and_others_install_from_the_lock():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    oldest = lock.project()["requires-python"].removeprefix(">=")
    assert oldest in jobs["linux"]["strategy"]["matrix"]["python"]
    (install,) = (s["run"] for s in jobs["others"]["steps"] if "install" in s.get("run", ""))
    assert install.replace('"', "").removeprefix("python -m pip install ") == INSTALL
