"""What the pages show works, and what they link to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_program_in_the_readme_runs_and_runs_again(tmp_path: Path) -> None:
    [program] = blocks(ROOT / "README.md", "python")
    for revision in (1, 2):
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert f"revision={revision}" in done.stdout


def test_the_store_in_the_howto_passes_the_contract_as_the_howto_says(tmp_path: Path) -> None:
    harness, contracts, _ = blocks(ROOT / "docs" / "howto" / "test-your-own-store.md", "python")
    (tmp_path / "test_mine.py").write_text(harness + contracts)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "TestLeases"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d\d+ passed", done.stdout, re.MULTILINE), done.stdout


def test_the_demo_survives_its_crashes() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "survive_a_crash.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed with SIGKILL") == 2
    assert done.stdout.count("replayed model:1 from the journal") == 1
    assert done.stdout.count("asked the world: model:1") == 1
    assert "NO " not in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []
