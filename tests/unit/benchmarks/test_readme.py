"""Test that README's example can be remade."""

import pytest

from benchmarks.readme import ROOT, with_block


def test_only_the_block_of_the_kept_run_is_replaced():
    page = (ROOT / "README.md").read_text()
    changed = with_block(page, "a\nb\n")
    assert "```text\na\nb\n```\n" in changed and with_block(changed, "a\nb") == changed
    start, end = changed.split("```text\na\nb\n```\n")
    assert page.startswith(start) and page.endswith(end)
    with pytest.raises(ValueError, match=r"README\.md has no block"):
        with_block("# Title", "a")
