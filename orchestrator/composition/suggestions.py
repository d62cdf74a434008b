"""What somebody may mean by an override that is none, or by a choice that there is not: the end of a line of error."""

from __future__ import annotations

from orchestrator.composition.config_groups import Groups

_SCRIPTS = (".py", ".sh")
_COMMAND = "a script of yours is run by trainable=command \"trainable.argv='python train.py --lr {lr}'\""


def lone_word(word: str, groups: Groups) -> str:
    """Of a value without its key."""
    if found := [f"{group}={word}" for group in sorted(groups.names) if word in groups.options(group)]:
        return f" (did you mean {' or '.join(found)}?)"
    if word.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    return "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"


def own_code(group: str, value: str) -> str:
    """Of code where the name of a choice was to be, and of a sweep in a file; nothing for any other word."""
    if group == "trainable" and value.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    module, colon, _ = value.partition(":")
    if not colon:
        return f"; one of your own, FOLDER/sweep/{value}.yaml, is found by -cd FOLDER" if group == "sweep" else ""
    key = "trainable=function trainable._target_" if group == "trainable" else f"{group}.name"
    return f"; code of yours is {key}={value} 'trusted_modules=[{module.partition('.')[0]}]'"
