"""A headless Chromium for tests of pages, if this machine has one."""

import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
NEEDS_BROWSER = pytest.mark.skipif(
    BROWSER is None, reason=f"none of {', '.join(NAMES)} is on the PATH"
)


def browse(profile: Path, *options: str) -> list[str]:
    """Return the command of a browser that asks no other host; a new `profile` is its own."""
    assert BROWSER is not None
    return [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *("--disable-sync", f"--user-data-dir={profile}", "--window-size=1400,3000"),
        *options,
    ]
