"""Hides secrets from files: values from the environment, and whatever looks like a secret."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_OF_SECRET = "<hidden"  # begins what stands for a value that is a secret by its name
HIDDEN = f"{_OF_SECRET}>"

SHORTEST = 4  # a shorter value from the environment is hidden in the config, but not searched for in other texts

_ANYWHERE = r"passwd|password|passphrase|secrets?|token|credentials?|api_?key|access_?key|private_?key|auth|bearer"
_AT_END = r"pass|passcode|pwd|pw|pin|creds"  # only at the end of a name: `pin_memory` is no secret
_SHELLS_FOLDER = "PWD"  # the shell's name of the working folder
_SECRET_NAME = re.compile(rf"(^|[_.\-])(({_ANYWHERE})($|[_.\-])|({_AT_END})$)", re.IGNORECASE)

# The patterns take linear time, since lines come from programs: a match never starts inside a run that an earlier
# attempt has scanned. That is why the name before a secret word is not matched, and a web token from its run's start.
_ISSUED = re.compile(
    r"""
      \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                                   # AWS
    | \bgh[pousr]_[A-Za-z0-9]{30,}\b | \bgithub_pat_\w{30,}           # GitHub
    | \bglpat-[\w-]{20,}                                              # GitLab
    | \bhf_[A-Za-z0-9]{20,}\b                                         # Hugging Face
    | \bsk-[A-Za-z0-9_-]{20,}                                         # OpenAI and others
    | \bxox[abprs]-[A-Za-z0-9-]{10,}                                  # Slack
    | \bAIza[0-9A-Za-z_-]{35}                                         # Google
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----(?:.|\n)*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    | (?<=://)[^\s/@:]*:[^\s/@]+(?=@)                                 # user:password@ in an address
    """,
    re.VERBOSE,
)
_WEB_TOKEN = re.compile(r"(?<![\w-])(?=[\w-]+\.[\w-]{10,}\.[\w-]{5})([\w-]*?)\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}")
_ASSIGNED = re.compile(
    rf"""
    (?: (?:{_ANYWHERE})\b
      | (?! (?<![\w.\-])(?-i:{_SHELLS_FOLDER}) ) (?<![a-z])(?:{_AT_END})
        (?= ['"]?\s*= | ['"]\s*: )      # "first pass: compiled" is prose: a colon counts only after a quote
    )
    ['"]?\s*[=:]\s*['"]?
    (?P<value> [^\s'",;&]{{{SHORTEST},}} )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_HARMLESS = "None none null True true False false".split()  # and numbers
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")
_LONG_NUMBER = re.compile(r"-?\d{6,}")  # may be a password
_OVERRIDE = re.compile(r"([\w.+~@/\-]+)=(.+)", re.DOTALL)  # an override for Hydra, whose value may have any form
_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Secrets:
    """The values to hide, each with its replacement."""

    hidden: Mapping[str, str] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(raw: Any, resolved: Any, environment: Mapping[str, str]) -> Secrets:
        """Find the secrets of a config in its unresolved and its resolved values.

        Texts and numbers under secret names in the environment, and texts under such names in the config, are hidden
        wherever they stand. Other values from the environment are hidden in texts, with two exceptions for numbers. One
        of fewer than 6 digits, or with a decimal point or exponent, stays. A whole number of 6 digits or more is hidden
        only where it stands as a whole word: it may be a password, but also a part of a date, an id, a decimal number
        or the label of a cell (`2×131072`). Values that are numbers and not texts, such as measurements and batch
        sizes, stay. A value of fewer than `SHORTEST` characters is hidden only where it is a whole value.
        """
        hidden = {value: HIDDEN for value in _values_under_secret_names(resolved)}
        for name in _FROM_ENVIRONMENT.findall(_text(raw)):
            # A value from the environment may be a secret whatever its name says.
            if value := environment.get(name, ""):
                hidden.setdefault(value, _placeholder(name, value))
        return Secrets(hidden)

    def text(self, text: str) -> str:
        """The text with its secrets replaced."""
        return self._replaced(text, self.hidden)

    def _replaced(self, text: str, hidden: Iterable[str]) -> str:
        # Longest first: one may be a part of another.
        for value in sorted(hidden, key=len, reverse=True):
            if not self._is_number(value):
                text = text.replace(value, self.hidden[value]) if len(value) >= SHORTEST else text
            elif value in text and _LONG_NUMBER.fullmatch(value):
                text = re.sub(rf"(?<![\w×])(?<!\d\.){value}(?![\w×]|\.\d)", self.hidden[value], text)
        text = _WEB_TOKEN.sub(rf"\1{HIDDEN}", _ISSUED.sub(HIDDEN, text))
        return _ASSIGNED.sub(_hide_assigned, text)

    def value(self, value: Any, key: str = "") -> Any:
        """JSON values without them; a text under a name like `token` is one, and so is what an override gives it."""
        if isinstance(value, Mapping):
            # A name of a metric or field is no secret, even if `report.metric` takes it from the environment.
            secret = [known for known in self.hidden if self._is_secret(known)]
            return {self._replaced(str(name), secret): self.value(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, key) for item in value]
        if isinstance(value, str):
            if value in self.hidden:
                return self.hidden[value]
            if value and is_secret_name(key):
                return HIDDEN
            named = _OVERRIDE.fullmatch(value)
            hides = named and is_secret_name(named[1]) and not named[2].startswith((_OF_SECRET, "${"))
            return f"{named[1]}={HIDDEN}" if named and hides else self.text(value)
        text = str(value)
        is_hidden = text in self.hidden and not (isinstance(value, bool) or self._is_number(text))
        return self.hidden[text] if is_hidden else value

    def _is_number(self, value: str) -> bool:
        """Return whether a hidden value is a number, and by its name no secret: a batch size, a port, a year."""
        # A measured number may equal it, and dates and ids may contain it.
        return bool(_NUMBER.fullmatch(value)) and not self._is_secret(value)

    def _is_secret(self, value: str) -> bool:
        """Return whether a hidden value is a secret by its name."""
        return self.hidden[value].startswith(_OF_SECRET)


NO_SECRETS = Secrets()  # hides only what looks like a secret by itself


def is_secret_name(name: str) -> bool:
    """Return whether a value of this name is a secret: `api_key`, `DB_PASS`; not `max_tokens` or `pin_memory`."""
    return name != _SHELLS_FOLDER and bool(_SECRET_NAME.search(name))


def _placeholder(name: str, value: str) -> str:
    """Tells two values apart, so that another one is another question, unless the name says that it is a secret."""
    if is_secret_name(name):
        return f"{_OF_SECRET} {name}>"
    return f"<{name} {hashlib.sha256(value.encode()).hexdigest()[:8]}>"


def _hide_assigned(assignment: re.Match[str]) -> str:
    value = assignment["value"]
    is_harmless = value.startswith(("<", "${")) or value in _HARMLESS or set(value) <= {*"0123456789."}
    return assignment[0] if is_harmless else assignment[0].removesuffix(value) + HIDDEN


def _values_under_secret_names(value: Any, key: str = "") -> Iterable[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _values_under_secret_names(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _values_under_secret_names(item, key)
    elif isinstance(value, str) and len(value) >= SHORTEST and is_secret_name(key):
        yield value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(_text(item) for item in value.values())
    return "\n".join(map(_text, value)) if isinstance(value, list) else str(value)
