"""What the documents show is what is tested."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["toy_pipeline.py", "toy_sampler.py"])
def test_the_strategies_of_the_document_are_those_that_are_installed_and_tested(name):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/write_a_strategy.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert (ROOT / "tests/data" / name).read_text(encoding="utf-8") in blocks


def test_no_word_of_the_glossary_is_explained_twice():
    words = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/words.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for word in words if word not in ("word", "---")]
    assert len(words) == len(set(words)) > 40
