"""The habits of the repository: what lint, locks, layers and make promise stays true as files are added."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hallwatch
from hallwatch.cli import COMMANDS

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
LOCKS = sorted((CHECKOUT / "requirements").glob("*.txt"))
# The extras that each lock holds on top of the core.
LOCKED_EXTRAS = {
    "dashboards": ["dashboards"],
    "dev": ["kafka", "test", "dev"],
    "runtime": ["kafka"],
    "test": ["kafka", "test"],
}
# Character classes keep these patterns from matching themselves.
REGISTRY_HOST = re.compile(
    r"py[p]i\.org|python[h]osted\.org|registry\.npm[j]s\.org|proxy\.go[l]ang\.org|crates\.i[o]\b"
    r"|repo1?\.mave[n]|deb\.deb[i]an\.org"
)
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:home|Users)/\w|(?<![\w.~$}])/(?:roo[t]|wor[k])/")


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    names = [name for name in listing.stdout.split("\0") if name]
    return [path for path in (CHECKOUT / name for name in names) if path.is_file()]


def packages() -> set[str]:
    return {path.parent.name for path in CHECKOUT.glob("*/__init__.py")}


def locked(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", lock.read_text(), re.MULTILINE))


def linter_contract(name: str) -> dict[str, list[str]]:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    found: dict[str, list[str]] = next(contract for contract in contracts if contract["id"] == name)
    return found


def test_there_is_one_lock_for_each_use() -> None:
    assert {lock.stem for lock in LOCKS} == set(LOCKED_EXTRAS)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_locked_requirement_has_a_hash_and_no_line_names_an_address(lock: Path) -> None:
    text = lock.read_text()
    lines = [
        line for line in text.replace("\\\n", "").splitlines() if line and not line.lstrip().startswith("#")
    ]
    unpinned = [
        line for line in lines if not re.fullmatch(r"\S+==\S+( .*)?( +--hash=sha256:[0-9a-f]{64})+", line)
    ]
    assert lines
    assert unpinned == []
    assert re.findall(r"://|\bindex|find-links|trusted| @ ", text) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_declared_dependency_is_locked_at_a_version_it_allows(lock: Path) -> None:
    pins = locked(lock)
    extras = PROJECT["project"]["optional-dependencies"]
    declared = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    declared += [text for extra in LOCKED_EXTRAS[lock.stem] for text in extras[extra]]
    requirements = [Requirement(text) for text in declared]
    unmet = [
        str(r) for r in requirements if not r.specifier.contains(pins.get(canonicalize_name(r.name), "0"))
    ]
    assert unmet == [], "run make lock"


def test_the_locks_agree_on_the_version_of_a_package() -> None:
    newest = locked(CHECKOUT / "requirements/dev.txt")
    for lock in LOCKS:
        different = {name: pin for name, pin in locked(lock).items() if newest.get(name, pin) != pin}
        assert different == {}, lock.name


def test_the_layers_and_the_wheel_cover_every_package() -> None:
    layers = re.findall(r"\w+", " ".join(linter_contract("layers")["layers"]))
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == packages()
    assert sorted(layers) == sorted(packages())
    assert set(linter_contract("one-kafka")["source_modules"]) == packages()
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == packages() - {
        "dashboards"
    }
    assert set(PROJECT["tool"]["mypy"]["files"]) == packages() | {"tests"}


def test_every_package_says_in_two_lines_what_it_is_for_and_what_it_may_import() -> None:
    wrong = []
    for package in sorted(packages()):
        for init in sorted((CHECKOUT / package).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
            if len(docstring.splitlines()) != 2:
                wrong.append(str(init.relative_to(CHECKOUT)))
    assert wrong == []


def test_the_package_and_its_metadata_agree_on_the_version() -> None:
    assert hallwatch.__version__ == PROJECT["project"]["version"]


def test_make_help_names_every_target() -> None:
    targets = re.findall(r"^\.PHONY: (\S+)", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  ([a-z-]+) +\S", shown, re.MULTILINE) == targets


def test_no_file_names_a_registry_host_or_a_path_of_someones_machine() -> None:
    found = []
    for path in tracked_files():
        content = path.read_bytes()
        text = "" if b"\0" in content else content.decode(errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if REGISTRY_HOST.search(line) or MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(CHECKOUT)}:{number}")
    assert found == []


PAGES = [path for path in tracked_files() if path.suffix == ".md"]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*\w\.(?:py|md|sql|yaml|toml|txt))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_what_a_page_links_to_or_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [page.parent / link for link in LINK.findall(text) if "://" not in link]
    files = [CHECKOUT / name for name in NAMED_FILE.findall(text)]
    assert [str(path) for path in (*links, *files) if not path.exists()] == []
    targets = re.findall(r"^\.PHONY: (\S+)", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z]+)", text)) <= set(targets)
    assert set(re.findall(r"`hallwatch ([a-z][a-z-]*)", text)) <= set(COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "index = https://pyp" + "i.org/simple",
        "cd /ro" + "ot/hall",
        "log: /hom" + "e/ada/run",
        "'/Use" + "rs/ada/x'",
    ],
)
def test_the_patterns_for_hosts_and_paths_find_what_they_are_for(line: str) -> None:
    assert REGISTRY_HOST.search(line) or MACHINE_PATH.search(line)


@pytest.mark.parametrize(("no_skip", "exit_code"), [("0", 0), ("1", 1)])
def test_a_skipped_test_fails_only_where_nothing_may_skip(
    no_skip: str, exit_code: int, tmp_path: Path
) -> None:
    shutil.copy(CHECKOUT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_skips.py").write_text(
        "import pytest\n\ndef test_of_a_capture():\n    pytest.skip('the capture is absent')\n\n"
        "@pytest.mark.xfail(strict=True)\ndef test_of_a_known_fault():\n    assert False\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "HALLWATCH_NO_SKIP": no_skip},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == exit_code, run.stdout
    assert ("test_of_a_capture" in run.stdout) is bool(exit_code)
    assert "the capture is absent" in run.stdout
    assert "1 xfailed" in run.stdout
