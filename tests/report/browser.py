"""Pages opened in a real browser, headless."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
# What a person would see: pictures that load, drawings with a size, nothing that sticks out of the page.
_PROBE = """<script>
addEventListener("load", () => {
  const pictures = [...document.images], drawings = [...document.querySelectorAll("svg")];
  document.documentElement.setAttribute("data-found", JSON.stringify({
    pictures: pictures.length,
    broken: pictures.filter(p => !p.complete || p.naturalWidth < 2).map(p => p.alt),
    drawings: drawings.length,
    empty: drawings.filter(d => d.getBBox().width < 2 || d.getBoundingClientRect().height < 2)
      .map(d => d.getAttribute("aria-label")),
    headings: [...document.querySelectorAll("h1, h2")].map(h => h.innerText),
    sticksOut: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    requests: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith("data:")),
  }));
});
</script></body>"""


@dataclass(frozen=True)
class Seen:
    """What a browser makes of a page.

    Attributes:
        found: Of the page: pictures, broken, drawings, empty, headings, sticksOut, requests.
        console: Lines that the page wrote to the console.
        picture: (H, W, 3) screenshot.
        dom: The page's text after its scripts have run.
    """

    found: dict[str, Any]
    console: list[str]
    picture: NDArray[np.uint8]
    dom: str = ""


def look_at(page: Path, folder: Path, width: int = 1200) -> Seen:
    """Open a page in a browser; skip the test where there is none.

    Args:
        page: The HTML file.
        folder: For the browser's profile and the screenshot.
        width: Of the window.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    probed = folder / "probed.html"
    probed.write_text(page.read_text(encoding="utf-8").replace("</body>", _PROBE), encoding="utf-8")
    shot = folder / "shot.png"
    size = f"--window-size={width},2000"
    dom = _run([program, *_FLAGS, size, "--dump-dom"], probed, folder)
    seen = _run([program, *_FLAGS, size, "--enable-logging=stderr", f"--screenshot={shot}"], page, folder)
    answer = re.search(r'data-found="([^"]*)"', dom.stdout)
    assert answer is not None, dom.stderr[-2000:]
    console = [line for line in seen.stderr.splitlines() if ":CONSOLE" in line]
    return Seen(json.loads(unescape(answer[1])), console, np.asarray(Image.open(shot).convert("RGB")), dom.stdout)


def _run(words: list[str], page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [*words, f"--user-data-dir={profile}", page.absolute().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done
