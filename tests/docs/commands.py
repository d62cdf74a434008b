"""Read the commands and the code in the documentation."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs/results"
"""What was measured once, with the commands of that day."""

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.is_relative_to(RECORDS)]

_BLOCK = re.compile(
    r"(?P<reason><!-- not run: (?P<why>[^>]+) -->\n)?```(?P<language>\w+)\n(?P<fenced>.*?)```"
    r"|(?:(?<=\n\n)|(?<=\A))(?P<indented>(?: {4}[^\n]*\n)+)",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of code: its language (`bash` for indented blocks), and the reason why it is not run, if any."""

    page: str
    language: str
    text: str
    why_not: str = ""

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of each command of a shell block, without comments."""
        joined = self.text.replace("\\\n", " ")
        for line in joined.splitlines():
            for part in line.split(" && "):
                words = shlex.split(part, comments=True)
                if words[:2] == ["uv", "run"]:  # which runs the rest in the project's environment
                    words = words[4:] if words[2] == "--extra" else words[2:]
                if words:
                    yield words


def blocks(page: Path) -> list[Block]:
    """Return all blocks of a page; indented blocks are shell if they begin with a command."""
    blocks_of_page = []
    for match in _BLOCK.finditer(page.read_text()):
        fenced = match["fenced"] is not None
        text = match["fenced"] if fenced else re.sub(r"(?m)^ {4}", "", match["indented"])
        language = match["language"] if fenced else ("bash" if _is_shell(text) else "text")
        name = page.relative_to(ROOT).as_posix()
        blocks_of_page.append(Block(page=name, language=language, text=text, why_not=(match["why"] or "").strip()))
    return blocks_of_page


def _is_shell(text: str) -> bool:
    return bool(re.match(r"(python|pip|pytest|ray|ruff|mypy|sweep-orchestrator)\b", text))
