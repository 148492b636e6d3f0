"""Pages: well formed, nothing from elsewhere, text never taken for markup."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from geoseg.report.html import figure, page, paragraph, section, table


class Checker(HTMLParser):
    """Collects tags, and complains about those that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_a_page_is_well_formed_and_escapes_its_text():
    evil = '<script>alert("x")</script> & co'
    parts = [paragraph(evil), section(evil, table((evil, "n"), [(evil, "1"), ("sum", "2")], ["#ff0000"], True))]
    text = page(evil, parts)
    checked = Checker(text)
    assert "<script" not in text
    assert checked.text.count(evil) == 6
    assert ("style", "background:#ff0000") in checked.attributes
    assert text.count('class="strong"') == 1


def test_a_picture_travels_inside_the_page(tmp_path: Path):
    path = tmp_path / "a.png"
    Image.new("RGB", (3, 2), (1, 2, 3)).save(path)
    attributes = dict(Checker(page("t", [figure(path, "a & b")])).attributes)
    kind, data = attributes["src"].split(",", 1)
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data) == path.read_bytes()
    assert attributes["alt"] == "a & b"
