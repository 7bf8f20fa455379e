"""What the workflows of GitHub run is there: targets of the Makefile, modules, tests."""

import re
import shutil
from importlib.util import find_spec

import pytest
import yaml
from support import release
from support.makefile import INSTALL, MAKEFILE

import rwkv_lessons
from rwkv_lessons.lab.commands import lock
from rwkv_lessons.lab.course.exercises import ROOT

PUBLISHES = "pypa/gh-action-pypi-publish@release/v1"  # as the index's own guide has it
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", MAKEFILE, re.M))


def steps(text):
    return [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]


def missing(text):
    """What the steps of a workflow run or use, and cannot."""
    found, installed = [], set()
    for step in steps(text):
        if "uses" in step and not re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]):
            found += {step["uses"]} - {PUBLISHES}  # of a tag of a major version only
        run = step.get("run", "")
        if asked := re.search(r"pip install (.*)", run):
            installed |= set(asked[1].split())
        if target := re.match(r"make ([\w-]+)", run):
            found += {target[1]} - TARGETS
        if module := re.search(r"-m ([\w.]+)", run):
            found += [] if module[1] in installed or find_spec(module[1]) else [module[1]]
        found += [
            name
            for name in re.findall(r"(?:warplens/)?tests/\S+", run)
            if not (ROOT / name).exists()
        ]
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


def test_a_release_needs_its_version_everywhere_and_an_address(tmp_path):
    for name in ("rwkv_lessons/__init__.py", "warplens/__init__.py", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"## {rwkv_lessons.__version__}, 2026-12-01\n")
    (tmp_path / "address.txt").write_text("https://example.org/owner/rwkv-lessons\n")
    assert list(release.lacking(f"v{rwkv_lessons.__version__}", tmp_path)) == []
    assert len(list(release.lacking("v99.0.0", tmp_path))) == 4
    (tmp_path / "address.txt").write_text("# none yet\n")
    (said,) = release.lacking(f"v{rwkv_lessons.__version__}", tmp_path)
    assert "address" in said
