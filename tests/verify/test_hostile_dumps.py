"""Files made to harm: each is refused with a clear message, nothing in it runs, and nothing is written."""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import dump_files
from samestep.verify import dumps
from samestep.verify.dumps.loading import DumpError, Given

LIMIT = 1 << 22


class Payload:
    """Pickles as a call that makes a file: proof of execution."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")


@pytest.fixture
def folder(tmp_path):
    """A good dump, beside a file that no dump may reach."""
    dump_files.write(tmp_path / "dump", dump_files.step())
    np.save(tmp_path / "secret.npy", np.zeros((33, 2), np.float32))
    return tmp_path / "dump"


def tree(path):
    return sorted((str(found), found.stat(follow_symlinks=False).st_size) for found in path.parent.rglob("*"))


def refused(path, match, given=None, limit=LIMIT):
    before = tree(path)
    with pytest.raises(DumpError, match=match) as caught:
        dumps.load(path, given, limit)
    assert tree(path) == before
    text = str(caught.value)
    assert len(text) < 400
    assert text.isprintable()
    return text


def replaced(folder, name, data):
    """The good dump with `accum` in a file `name` of these bytes instead."""
    (folder / "accum.npy").unlink(missing_ok=True)
    (folder / name).write_bytes(data)
    return folder


def test_the_dump_is_good_before_it_is_harmed(folder):
    assert len(dumps.load(folder, None, LIMIT)) == 1


# Code.

def evil_archive(marker):
    """What torch.save would write of a payload: a zip file with a pickle in it."""
    file = io.BytesIO()
    torch.save({"accum": torch.zeros(2)}, file)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["archive/data.pkl"] = pickle.dumps(Payload(marker), protocol=2)
    return zipped(members)


def zipped(members, **options):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def object_npy(marker):
    file = io.BytesIO()
    np.save(file, np.array([Payload(marker)], object), allow_pickle=True)
    return file.getvalue()


def test_the_payload_runs_where_pickles_are_loaded(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran"))).close()
    assert (tmp_path / "ran").exists()
    file = io.BytesIO(object_npy(tmp_path / "again"))
    np.load(file, allow_pickle=True)[0].close()
    assert (tmp_path / "again").exists()
    torch.load(io.BytesIO(evil_archive(tmp_path / "third")), weights_only=False).close()
    assert (tmp_path / "third").exists()


@pytest.mark.parametrize(("name", "make", "match"), [
    ("accum.pt", evil_archive, "'accum.pt' cannot be loaded as plain tensors; nothing in it was executed"),
    ("accum.pt", lambda marker: pickle.dumps(Payload(marker)), "'accum.pt' is no readable archive"),
    ("accum.pt", lambda marker: torch_legacy(Payload(marker)), "'accum.pt' is no readable archive"),
    ("accum.npy", object_npy, "holds Python objects .* pickled code; they are never loaded"),
    ("accum.npy", lambda marker: pickle.dumps(Payload(marker)), "has no readable .npy header"),
    ("accum.npz", lambda marker: zipped({"accum.npy": object_npy(marker)}), "holds Python objects"),
    ("inputs.npz", lambda marker: zipped({"accum.npy": object_npy(marker)}), "holds Python objects"),
    ("accum.npz", lambda marker: zipped({"accum.npy": pickle.dumps(Payload(marker))}), "has no readable .npy header"),
    ("accum.safetensors", lambda marker: pickle.dumps(Payload(marker)), "accum.safetensors"),
])
def test_code_is_not_run(folder, tmp_path, name, make, match):
    marker = tmp_path / "ran"
    refused(replaced(folder, name, make(marker)), match)
    assert not marker.exists()


def torch_legacy(value):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def test_case_json_is_text_only(folder, tmp_path):
    (folder / "case.json").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    refused(folder, "'case.json' is n")
    assert not (tmp_path / "ran").exists()


# .npy

def npy(header, data=b"\0" * 264, version=(1, 0)):
    text = header.encode("latin-1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def header(descr="'<f4'", shape="(33, 2)", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


BAD_NPY = {
    "empty": (b"", "no readable .npy header"),
    "no magic": (b"x" * 400, "no readable .npy header"),
    "version 3": (npy(header(), version=(3, 0)), r"version \(3, 0\); accepted: versions \(1, 0\) and \(2, 0\)"),
    "version 9": (npy(header(), version=(9, 9)), r"version \(9, 9\)"),
    "short": (npy(header(), b"\0" * 263), "264 bytes; 263 follow its header"),
    "long": (npy(header(), b"\0" * 265), "264 bytes; 265 follow its header"),
    "larger shape": (npy(header(shape="(33, 3)")), r"shape \(33, 3\), 396 bytes; 264 follow"),
    "huge shape": (npy(header(shape=f"({2**62}, 4)")), "264 follow its header"),
    "overflowing shape": (npy(header(shape=f"({2**32}, {2**32})")), "264 follow its header"),
    "thousands of digits": (npy(header(shape="(" + "9" * 5000 + ",)")), "no readable .npy header"),
    "NaN shape": (npy(header(shape="(nan,)")), "no readable .npy header"),
    "infinite shape": (npy(header(shape="(1e999,)")), "no readable .npy header"),
    "negative shape": (npy(header(shape="(-33, -2)")), r"declares the shape \(-33, -2\)"),
    "negative and zero": (npy(header(shape="(0, -2)"), b""), "declares the shape"),
    "bool shape": (npy(header(shape="(33, 2, True)")), "declares the shape"),
    "shape is a call": (npy(header(shape="(exit(),)")), "no readable .npy header"),
    "nested": (npy("(" * 9000), "no readable .npy header"),
    "long header": (npy("{" + " " * 60_000 + "}"), "no readable .npy header"),
    "header beyond the file": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1), "no readable .npy header"),
    "NUL": (npy("\0" * 60), "no readable .npy header"),
    "object": (npy(header(descr="'|O'")), "holds Python objects"),
    "structure of objects": (npy(header(descr="[('a', '<f4'), ('b', '|O')]")), "holds Python objects"),
    "structure": (npy(header(descr="[('a', '<f4')]")), "accepted: float32, float16, bfloat16"),
    "subarray": (npy(header(descr="('<f4', (2,))")), "accepted: float32|no readable"),
    "text": (npy(header(descr="'<U1'")), "holds <U1; accepted: float32"),
    "wide void": (npy(header(descr="'|V4'")), "accepted: float32"),
    "giant void": (npy(header(descr="'|V2147483647'")), "accepted: float32"),
    "complex": (npy(header(descr="'<c8'")), "holds complex64; accepted: float32"),
    "bytes": (npy(header(descr="'|i1'")), "holds int8; accepted: float32"),
    "no dtype": (npy(header(descr="'nonsense'")), "no readable .npy header"),
}


@pytest.mark.parametrize("name", BAD_NPY)
def test_npy_headers_that_lie(folder, name):
    data, match = BAD_NPY[name]
    refused(replaced(folder, "accum.npy", data), match)
    (folder / "accum.npy").unlink()
    refused(replaced(folder, "accum.npz", zipped({"accum.npy": data})), match)


# Archives

GOOD_NPY = npy(header())
GOOD_ZIP = zipped({"accum.npy": GOOD_NPY})


def declares(data, name, size):
    """The archive with another unpacked size of a member in its table of contents."""
    start = data.index(b"PK\x01\x02")
    while data[start + 46:start + 46 + len(name)] != name.encode():
        start = data.index(b"PK\x01\x02", start + 1)
    return data[:start + 24] + struct.pack("<I", size) + data[start + 28:]


def packed_size(data, size):
    start = data.index(b"PK\x01\x02")
    return data[:start + 20] + struct.pack("<I", size) + data[start + 24:]


def encrypted(data):
    start = data.index(b"PK\x01\x02")
    return data[:start + 8] + b"\1\0" + data[start + 10:]


BOMB = zipped({"accum.npy": npy(header(shape=f"({2**24},)"), bytes(2**26))}, compression=zipfile.ZIP_DEFLATED,
              compresslevel=1)
BAD_ARCHIVES = {
    "bomb": (BOMB, r"needs 67,108,9\d\d bytes of memory; [\d,]+ of this dump's limit of 4,194,304 are left"),
    "bomb that says it is small": (declares(BOMB, "accum.npy", 392), "Bad CRC-32"),
    "small that says it is a bomb": (declares(GOOD_ZIP, "accum.npy", 2**31), "needs 2,147,483,648"),
    "says it is larger": (declares(GOOD_ZIP, "accum.npy", 1000), "declares 1000 bytes and has|unpacked"),
    "overlap": (packed_size(GOOD_ZIP, 100_000), "its members declare 100000: they overlap"),
    "up": (zipped({"../accum.npy": GOOD_NPY}), "a member named '../accum.npy', which leads out of the archive"),
    "absolute": (zipped({"/accum.npy": GOOD_NPY}), "leads out of the archive"),
    "hidden up": (zipped({"accum.npy": GOOD_NPY, "a/../../b.npy": b""}), "leads out of the archive"),
    "backslash": (zipped({"..\\accum.npy": GOOD_NPY}), "leads out of the archive"),
    "folder": (zipped({"accum.npy/": b""}), "leads out of the archive or is a folder"),
    "encrypted": (encrypted(GOOD_ZIP), "is encrypted or compressed by another method"),
    "lzma": (zipped({"accum.npy": GOOD_NPY}, compression=zipfile.ZIP_LZMA), "by another method than deflate"),
    "truncated": (GOOD_ZIP[:-30], "is no readable archive"),
    "no archive": (b"PK\x05\x06" + bytes(10), "is no readable archive"),
    "empty": (b"", "is no readable archive"),
    "no members": (zipped({}), "holds nothing; expected 'accum' or 'momentum_buffer'|is no readable"),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_archives_that_lie(folder, name):
    data, match = BAD_ARCHIVES[name]
    refused(replaced(folder, "accum.npz", data), match)
    (folder / "accum.npz").unlink()
    if name != "no members":
        refused(replaced(folder, "accum.pt", data), match)


def test_two_members_of_one_name(folder):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("accum.npy", GOOD_NPY)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("accum.npy", GOOD_NPY)
    refused(replaced(folder, "accum.npz", file.getvalue()), "a member named 'accum.npy' twice")


def test_a_table_of_contents_of_many_members(folder):
    data = zipped({f"{k:060000}": b"" for k in range(40)})
    refused(replaced(folder, "accum.npz", data), "has a table of contents of more than 2,097,152 bytes", limit=1 << 30)


# .pt and .safetensors

def changed_pt(tensors, change):
    """A .pt file whose pickle is changed by hand."""
    file = io.BytesIO()
    torch.save(tensors, file)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    before = members["archive/data.pkl"]
    members["archive/data.pkl"] = change(before)
    assert members["archive/data.pkl"] != before
    return zipped(members)


BAD_PT = {
    "storage larger than its bytes": (
        lambda: changed_pt({"accum": torch.zeros(33, 2)}, lambda code: code.replace(b"KBt", b"M\xff\x0ft")),
        "cannot be loaded as plain tensors"),
    "tensor larger than its storage": (
        lambda: changed_pt({"accum": torch.zeros(66)}, lambda code: code.replace(b"KB\x85", b"M\xff\x0f\x85")),
        "cannot be loaded as plain tensors"),
    "expanded": (lambda: saved({"accum": torch.zeros(1).expand(1 << 40)}), "needs 4,398,046,511,104 bytes of memory"),
    "long pickle": (lambda: saved({"x" * 200_000: torch.zeros(2)}), "declares 200,.* bytes; accepted: 100,000"),
    "sparse": (lambda: saved({"accum": torch.zeros(33, 2).to_sparse()}), "accepted: a plain tensor on the CPU"),
    "meta": (lambda: saved({"accum": torch.zeros(33, 2, device="meta")}), "accepted: a plain tensor on the CPU"),
    "bytes": (lambda: saved({"accum": torch.zeros(33, 2, dtype=torch.int8)}), "holds int8; accepted: float32"),
    "complex": (lambda: saved({"accum": torch.zeros(33, 2, dtype=torch.complex64)}), "holds complex64"),
    "list": (lambda: saved([torch.zeros(33, 2)]), "holds list; accepted: a plain tensor"),
    "text": (lambda: saved({"accum": "x"}), "holds str; accepted: a plain tensor"),
    "bool": (lambda: saved({"accum": True}), "holds bool; accepted: a plain tensor"),
    "another shape": (lambda: saved({"accum": torch.zeros(2, 33)}), r"has the shape \[2, 33\]; accepted: \[33, 2\]"),
    "other names": (lambda: saved({"a": torch.zeros(2), "b": torch.zeros(2)}), "holds 'a', 'b'; expected 'accum' or"),
}


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize("name", BAD_PT)
def test_pt_files_that_are_no_plain_tensors(folder, name):
    make, match = BAD_PT[name]
    refused(replaced(folder, "accum.pt", make()), match)


def safetensors(entries, data=b"\0" * 264, length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def described(dtype="F32", shape=(33, 2), offsets=(0, 264)):
    return {"accum": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


BAD_SAFETENSORS = {
    "empty": (b"", "is no readable .safetensors file"),
    "truncated": (safetensors(described())[:-1], "is no readable .safetensors file"),
    "long": (safetensors(described(), b"\0" * 265), "is no readable .safetensors file"),
    "giant header": (safetensors(described(), length=2**63), "declares a header of more than 100,000 bytes"),
    "header beyond the file": (safetensors(described(), length=5000), "is no readable .safetensors file"),
    "NaN shape": (safetensors(described(shape=(float("nan"),))), "is no readable .safetensors file"),
    "negative shape": (safetensors(described(shape=(-33, -2))), "is no readable .safetensors file"),
    "overflowing shape": (safetensors(described(shape=(2**32, 2**32, 2**32))), "is no readable .safetensors file"),
    "wrong shape": (safetensors(described(shape=(33, 3))), "is no readable .safetensors file"),
    "offsets beyond": (safetensors(described(offsets=(0, 2**40))), "is no readable .safetensors file"),
    "offsets backwards": (safetensors(described(offsets=(264, 0))), "is no readable .safetensors file"),
    "bytes": (safetensors(described("I8", (264,))), "holds I8; accepted: F32, F16, BF16, F64"),
    "not UTF-8": (safetensors(b"\xff\xfe{}"), "is no readable .safetensors file"),
    "deep": (safetensors(b'{"a":' * 10_000), "is no readable .safetensors file"),
}


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_safetensors_files_that_lie(folder, name):
    data, match = BAD_SAFETENSORS[name]
    refused(replaced(folder, "accum.safetensors", data), match)


# .bin

@pytest.mark.parametrize(("size", "fields", "match"), [
    (263, {}, "has 263 bytes, but float32 of shape \\[33, 2\\] has 264; an 'offset' says where"),
    (265, {}, "has 265 bytes"), (0, {}, "has 0 bytes"), (528, {}, "has 528 bytes"),
    (264, {"offset": 1}, "has 264 bytes; 265 are needed"), (264, {"offset": 2**70}, "has 264 bytes; 118059"),
    (264, {"shape": [2**40, 2**40]}, r"has 264 bytes, but float32 of shape \[1099511627776, 1099511627776\]"),
    (264, {"shape": [66, 1]}, r"has the shape \[66, 1\]; accepted: \[33, 2\]"),
    (264, {"dtype": "float64"}, "has 264 bytes, but float64"),
])
def test_raw_files_of_the_wrong_size(folder, size, fields, match):
    replaced(folder, "raw.bin", bytes(size))
    dump_files.write_case(folder, dtype="float32", shape=[33, 2], inputs={
        "accum": {"file": "raw.bin", **fields}, **{name: f"{name}.npy" for name in ("parameters", "gradient", "stat")}},
        learning_rate="learning_rate.npy", momentum="momentum.npy")
    refused(folder, match)


# Names and kinds of files

@pytest.mark.parametrize("name", ["../secret.npy", "/etc/passwd", "sub/../../secret.npy", "", ".", "..", "a//b.npy",
                                  "./accum.npy", "a\\b.npy", "accum.npy\0", "accum.npy/", "\x1b[2J/../x"])
def test_names_that_lead_out_of_the_dump(folder, name):
    dump_files.write_case(folder, inputs={"accum": name, "parameters": "parameters.npy", "gradient": "gradient.npy",
                                          "stat": "stat.npy"},
                          learning_rate="learning_rate.npy", momentum="momentum.npy")
    refused(folder, "is no name of a file inside the dump; accepted: a relative name without|is of no known format")
    dump_files.write_case(folder, inputs=name.replace(".npy", ".npz"))
    refused(folder, "is no name of a file inside the dump|is of no known format")


def test_symbolic_links(folder, tmp_path):
    (folder / "accum.npy").unlink()
    (folder / "accum.npy").symlink_to(tmp_path / "secret.npy")
    refused(folder, "'accum.npy' is a symbolic link; accepted: regular files only")
    (folder / "accum.npy").unlink()
    (folder / "accum.npy").symlink_to(tmp_path / "nowhere")
    refused(folder, "'accum.npy' is a symbolic link")
    (folder / "accum.npy").unlink()
    (tmp_path / "elsewhere").mkdir()
    np.save(tmp_path / "elsewhere" / "accum.npy", np.zeros((33, 2), np.float32))
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    dump_files.write_case(folder, inputs={"parameters": "sub/accum.npy"})
    refused(folder, "'sub/accum.npy': 'sub' is no folder, or a symbolic link")
    (folder / "case.json").rename(tmp_path / "case.json")
    (folder / "case.json").symlink_to(tmp_path / "case.json")
    refused(folder, "'case.json' is a symbolic link")
    refused(folder / "case.json", "'case.json' is a symbolic link")


def test_steps_behind_a_symbolic_link_are_no_steps(folder, tmp_path):
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "step_0").symlink_to(folder)
    refused(tmp_path / "outer", "the parameters before the step are missing")


def test_a_dump_reached_through_a_link_is_the_users_own_choice(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert len(dumps.load(tmp_path / "link")) == 1


def test_files_that_are_none(folder):
    (folder / "accum.npy").unlink()
    os.mkfifo(folder / "accum.npy")
    refused(folder, "'accum.npy' is a FIFO; accepted: regular files only")
    (folder / "accum.npy").unlink()
    (folder / "accum.npy").mkdir()
    refused(folder, "'accum.npy' is a folder")
    (folder / "accum.npy").rmdir()
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.getcwd()
        os.chdir(folder)  # the path of a socket is short
        listening.bind("accum.npy")
        os.chdir(before)
        refused(folder, "'accum.npy' is a socket")
    (folder / "accum.npy").unlink()
    os.mkfifo(folder / "case.json")
    refused(folder, "'case.json' is a FIFO")
    refused(folder / "case.json", "'case.json' is a FIFO")


def test_devices():
    with pytest.raises(DumpError, match="'zero' is a device; accepted: regular files only"):
        dumps.load(Path("/dev/zero"))


def test_the_limit_holds_for_all_files_together(folder):
    refused(folder, r"npy' needs 392 bytes of memory; \d+ of this dump's limit of 2,000 are left \(--mem", limit=2000)
    assert len(dumps.load(folder, None, 3200)) == 1
    big = replaced(folder, "accum.npy", b"")
    with open(folder / "accum.npy", "wb") as file:
        file.truncate(1 << 40)  # takes no room on disk
    refused(big, "'accum.npy' needs 1,099,511,627,776 bytes of memory", limit=dumps.LIMIT)


def test_damaged_files_are_refused_or_read_but_never_crash(folder):
    """Bytes changed, cut out or put in at random: whatever is raised is a DumpError."""
    step = dump_files.step("bfloat16", shape=(8,))
    given = Given(dtype="bfloat16", shape=(8,), learning_rate=0.1, momentum=0.9)
    rng = np.random.default_rng(0)
    refusals = 0
    for form in ("npy", "npz", "safetensors", "pt"):
        target = dump_files.write(folder / form, step, form, scalars=False)
        path = target / ("accum.npy" if form == "npy" else f"inputs.{form}")
        good = path.read_bytes()
        for _ in range(100):
            at = int(rng.integers(len(good)))
            inserted = rng.integers(0, 256, rng.integers(0, 5), np.uint8).tobytes()
            path.write_bytes(good[:at] + inserted + good[at + int(rng.integers(0, 5)):])
            try:
                dumps.load(target, given, LIMIT)
            except DumpError:
                refusals += 1
    assert refusals > 200
