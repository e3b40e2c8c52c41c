"""Where the tensors of a dump lie when CASE.json does not say: by the names of the files. See docs/dumps.md."""

from __future__ import annotations

import re
from typing import Any

from samestep.verify.dumps.case_file import ALIASES, INPUTS, OUTPUTS, Entry
from samestep.verify.dumps.files import DumpError, Folder
from samestep.verify.dumps.formats import READERS
from samestep.verify.dumps.reader import Reader

HINT = "docs/dumps.md lists the names that are understood."
_SUFFIXES = (".bin", *READERS)
_CONTAINERS = (".npz", ".safetensors", ".pt")
_STEP = re.compile(r"step_(\d{1,9})")
# input_0.bin, NAME.input.0.npy, output1.bin; a converter may append the shape: NAME.output.0.33x2.npy
_NUMBERED = re.compile(r"(?:.*[._-])?(input|output)[._-]?(\d{1,3})(?:\.\d+(?:x\d+)*)?", re.DOTALL)

Places = dict[str, dict[str, Entry]]  # "inputs" and "outputs": entries by tensor


def placed(folder: Folder, reader: Reader, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps with an entry for every tensor there is; folders step_0, step_1, ... are steps of their own."""
    numbered = sorted((int(match[1]), name) for name in folder.names()
                      if (match := _STEP.fullmatch(name)) and folder.is_folder(name))
    if len(steps) == 1 and numbered and not {"inputs", "outputs"} & set(steps[0]):
        return [{**steps[0], **_discovered(folder, reader, name)} for _, name in numbered]
    found: Places | None = None
    complete = []
    for step in steps:
        sides = {}
        for side in ("inputs", "outputs"):
            if side not in step:
                found = found or _discovered(folder, reader, "")
                sides[side] = found[side]
            elif isinstance(step[side], str):
                sides[side] = _contained(reader, step[side], side)
            else:
                sides[side] = step[side]
        complete.append({**step, **sides})
    return complete


def _discovered(folder: Folder, reader: Reader, below: str) -> Places:
    """The tensors of one folder by the conventional names of its files."""
    places: Places = {"inputs": {}, "outputs": {}}
    containers = []
    for name in folder.names(below):
        stem, dot, end = name.rpartition(".")
        path = f"{below}/{name}" if below else name
        if f"{dot}{end}".lower() not in _SUFFIXES:
            continue
        role = _role(stem)
        if role is not None:
            _add(places, *role, Entry(path))
        elif f"{dot}{end}".lower() in _CONTAINERS:
            containers.append((stem, path))
    for stem, path in containers:
        if stem in places:
            for tensor, entry in _contained(reader, path, stem).items():
                _add(places, stem, tensor, entry)
        elif len(containers) == 1 and not places["inputs"]:
            for key in reader.tensors(path).names:
                if (role := _role(key)) is not None:
                    _add(places, *role, Entry(path, key))
    return places


def _contained(reader: Reader, file: str, side: str) -> dict[str, Entry]:
    """The entries of a file that holds all inputs, all outputs, or both; other names in it are ignored.

    Outputs are the names that end in _out; in a file of outputs only they may go without.
    """
    if file.lower().endswith((".bin", ".npy")):
        raise DumpError(f"{side}: {file!r} holds one tensor; accepted: a file of named tensors "
                        f"({', '.join(_CONTAINERS)}), or an object of files by tensor")
    roles = {key: role for key in reader.tensors(file).names if (role := _role(key)) is not None}
    if side == "outputs" and all(role[0] == "inputs" for role in roles.values()):
        roles = {key: ("outputs", role[1]) for key, role in roles.items() if role[1] in OUTPUTS}
    places: Places = {"inputs": {}, "outputs": {}}
    for key, role in roles.items():
        _add(places, *role, Entry(file, key))
    return places[side]


def _role(stem: str) -> tuple[str, str] | None:
    """Which side and tensor a name stands for, None if it is none of ours."""
    numbered = _NUMBERED.fullmatch(stem)
    if numbered:
        order = INPUTS if numbered[1] == "input" else ("parameters", "accum", "stat")
        number = int(numbered[2])
        return (f"{numbered[1]}s", order[number]) if number < len(order) else None
    name = stem.removesuffix("_out")
    tensor, side = ALIASES.get(name, name), "inputs" if name == stem else "outputs"
    return (side, tensor) if tensor in (INPUTS if side == "inputs" else OUTPUTS) else None


def _add(places: Places, side: str, tensor: str, entry: Entry) -> None:
    other = places[side].get(tensor)
    if other is not None:
        raise DumpError(f"{side}.{tensor} stands twice: in {other.file!r} and in {entry.file!r}")
    places[side][tensor] = entry
