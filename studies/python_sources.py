"""Write the Python sources of the installed packages as token files for `data=tokens`: a corpus without a download.

    python -m studies.python_sources FOLDER [--megabytes 150] [--vocabulary 16384]

Takes `.py` files of this interpreter's packages and library in the order of their hashes, each text once, up to a size
in all. Every hundredth is for validation. A byte-level BPE is trained on a fifth of the others. Writes `train.bin` and
`val.bin` (uint16; token 0 ends a text), `tokenizer.json`, and `corpus.json`: counts, and a SHA-256 over all texts.
Needs `tokenizers` (extra `hf`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|end|>"
BATCH = 2000


def texts(most_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield package and text of source files, ordered by hash, each text once, until `most_bytes` are reached."""
    files: dict[str, tuple[str, bytes]] = {}
    for root in map(Path, (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))):
        for path in sorted(root.rglob("*.py")):
            content = path.read_bytes()
            files.setdefault(hashlib.sha256(content).hexdigest(), (path.relative_to(root).parts[0], content))
    total = 0
    for _, (package, content) in sorted(files.items()):
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        total += len(content)
        if total > most_bytes:
            return
        yield package, text


def trained(sources: Sequence[str], vocabulary: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer trained on these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sources, trainer)
    return tokenizer


def write(path: Path, tokenizer: Tokenizer, sources: Sequence[str]) -> int:
    """Write the texts as tokens; returns how many."""
    count = 0
    with path.open("wb") as file:
        for start in range(0, len(sources), BATCH):
            for encoded in tokenizer.encode_batch_fast(sources[start : start + BATCH]):
                count += len(encoded.ids) + 1
                file.write(np.array([*encoded.ids, 0], dtype=np.uint16).tobytes())
    return count


def main() -> None:
    """Write the files of the module's docstring."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--megabytes", type=float, default=150.0)
    arguments.add_argument("--vocabulary", type=int, default=16384)
    given = arguments.parse_args()
    sources = list(texts(round(given.megabytes * 1e6)))
    packages = Counter[str]()
    whole = hashlib.sha256()
    for package, text in sources:
        whole.update(text.encode())
        packages[package] += len(text)
    validation = [text for _, text in sources[::100]]
    training = [text for index, (_, text) in enumerate(sources) if index % 100]
    given.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = trained(training[::5], given.vocabulary)
    tokenizer.save(str(given.folder / "tokenizer.json"))
    about = {
        "python": sys.version.split()[0],
        "sha256": whole.hexdigest(),
        "vocabulary": tokenizer.get_vocab_size(),
        "files": {"train": len(training), "val": len(validation)},
        "characters": {"train": sum(map(len, training)), "val": sum(map(len, validation))},
        "tokens": {
            "train": write(given.folder / "train.bin", tokenizer, training),
            "val": write(given.folder / "val.bin", tokenizer, validation),
        },
        "largest_packages": dict(packages.most_common(12)),
    }
    (given.folder / "corpus.json").write_text(json.dumps(about, indent=2) + "\n")
    print(json.dumps(about))


if __name__ == "__main__":
    main()
