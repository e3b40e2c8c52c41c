"""Headless Chromium on a file, by subprocess: what the page's DOM and its picture are after its script has run."""

from __future__ import annotations

import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
         "--hide-scrollbars")


def chromium(folder, page, *flags):
    """What Chromium prints about `page`; `folder` holds its profile."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"needs a browser, none of {', '.join(NAMES)} is installed")
    command = [found, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


def dom(folder, page, probe, *flags):
    """The DOM of a copy of `page` in which the JavaScript `probe` ran at the end, and the page's console."""
    text = page.read_text(encoding="utf-8")
    before, policy, after = text.partition('http-equiv="Content-Security-Policy"')
    assert policy  # which would forbid the probe, so the copy has none
    copy = folder / "probed.html"
    copy.write_text((before + 'name="dropped"' + after).replace("</body>", f"<script>{probe}</script></body>"))
    done = chromium(folder, copy, "--dump-dom", "--enable-logging=stderr", *flags)
    return done.stdout, console(done.stderr)


def console(errors):
    """The lines that pages, not the browser, wrote."""
    return [line for line in errors.splitlines() if "CONSOLE" in line]
