"""The small files: what is written comes back, damage is noticed, and hostile bytes lead to ChainErrors only."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import ChainError, Damaged, FormatTooNew, Malformed, NotEncrypted, RepositoryNotFound
from chainstore.odb import layout
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.record import SUITE_NONE, SUITE_V1

FORMAT = Format(bytes(range(16)), SUITE_V1)
QUICK = settings(deadline=None, max_examples=200)

flags = st.tuples(st.booleans(), st.booleans(), st.booleans())
formats = st.builds(
    Format,
    st.binary(min_size=16, max_size=16),
    st.sampled_from([SUITE_NONE, SUITE_V1]),
    st.integers(1, 1 << 30),
    st.dictionaries(st.text(max_size=8), flags, max_size=3).map(lambda found: tuple(found.items())),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@QUICK
@given(formats)
def test_a_format_comes_back(found):
    assert Format.from_bytes(found.to_bytes()) == found
    assert json.loads(found.to_bytes())["repo"] == found.repo_id.hex()


@QUICK
@given(formats, st.data())
def test_a_flipped_bit_in_a_format_is_noticed_or_changes_nothing(found, data):
    raw = bytearray(found.to_bytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with suppress(Malformed, FormatTooNew):
        assert Format.from_bytes(bytes(raw)) == found


@QUICK
@given(st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_no_format(data):
    with pytest.raises((Malformed, FormatTooNew)):
        Format.from_bytes(data)


@QUICK
@given(st.sampled_from(["chainstore", "repo", "suite", "chunk", "extensions"]), json_values)
def test_a_format_with_a_right_checksum_and_a_wrong_field_leads_to_nothing_else(name, value):
    fields = json.loads(FORMAT.to_bytes())
    del fields["check"]
    fields[name] = value
    fields["check"] = layout._check(fields)
    with suppress(ChainError):
        found = Format.from_bytes(json.dumps(fields).encode())
        found.check_extensions(writing=True)
        assert isinstance(found.chunk_bytes, int)


@pytest.mark.parametrize(
    ("name", "value"),
    [("chunk", 0), ("chunk", -1), ("chunk", True), ("chunk", 1 << 31), ("repo", ""), ("repo", "00" * 15)],
)
def test_a_format_without_a_chunk_size_or_an_id_is_malformed(name, value):
    fields = json.loads(FORMAT.to_bytes())
    del fields["check"]
    fields[name] = value
    fields["check"] = layout._check(fields)
    with pytest.raises(Malformed):
        Format.from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 200_000, b"1" * 10_000], ids=["lists", "dicts", "digits"])
def test_json_that_goes_on_and_on_is_malformed(tmp_path, data):
    with pytest.raises(Malformed):
        Format.from_bytes(data)
    (tmp_path / "index.owner").write_bytes(data)
    with pytest.raises(Damaged):
        Layout(tmp_path).read_owner()


def test_an_extension_that_we_do_not_know_is_refused_for_what_it_forbids():
    reads = Format(FORMAT.repo_id, SUITE_V1, extensions=(("x", (True, True, True)),))
    writes = Format(FORMAT.repo_id, SUITE_V1, extensions=(("x", (False, True, True)),))
    collects = Format(FORMAT.repo_id, SUITE_V1, extensions=(("x", (False, False, True)),))
    for writing in (False, True):
        with pytest.raises(FormatTooNew, match="read"):
            reads.check_extensions(writing=writing)
        collects.check_extensions(writing=writing)
    writes.check_extensions(writing=False)
    with pytest.raises(FormatTooNew, match="write"):
        writes.check_extensions(writing=True)


def test_a_damaged_format_is_read_from_its_backup(tmp_path):
    place = Layout(tmp_path)
    with pytest.raises(RepositoryNotFound):
        place.read_format()
    place.write_format(FORMAT)
    for name in ("format", "format.bak"):
        (tmp_path / name).write_bytes(b"{}")
        if name == "format":
            assert place.read_format() == FORMAT
    with pytest.raises(Malformed):
        place.read_format()


def test_key_slots_beside_a_format_without_encryption_are_refused(tmp_path):
    place = Layout(tmp_path)
    place.write_format(Format(bytes(16), SUITE_NONE))
    (tmp_path / "keyring").write_bytes(b"")
    with pytest.raises(NotEncrypted):
        place.read_format()


def test_key_slots_that_are_gone_or_damaged_are_damage(tmp_path):
    with pytest.raises(Damaged):
        Layout(tmp_path).read_keyring()
    (tmp_path / "keyring").write_bytes(b"x" * 1000)
    with pytest.raises(Damaged):
        Layout(tmp_path).read_keyring()


@QUICK
@given(st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(0, 2**63), st.text(max_size=10))
def test_an_owner_comes_back(tmp_path_factory, uuid, inode, host):
    place = Layout(tmp_path_factory.mktemp("owner"))
    place.write_owner(Owner(uuid, inode, host))
    assert place.read_owner() == Owner(uuid, inode, host)


@QUICK
@given(
    st.binary(max_size=60)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries({"uuid": json_values, "inode": json_values, "host": json_values}).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_any_bytes_are_no_owner(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("owner")
    (folder / "index.owner").write_bytes(data)
    with pytest.raises(Damaged):
        Layout(folder).read_owner()


@pytest.mark.parametrize("uuid", ["../../../etc", "/etc", "", "a" * 31, "A" * 32, "a" * 32 + "\n"])
def test_an_owner_never_leads_out_of_the_folder_of_indexes(tmp_path, uuid):
    (tmp_path / "index.owner").write_bytes(Owner(uuid, 1, "host").to_bytes())
    with pytest.raises(Damaged):
        Layout(tmp_path).read_owner()


@pytest.mark.parametrize("inode", ["1e999", "NaN", "true", '"5"', "-3"])
def test_an_owner_whose_inode_is_no_number_of_one_is_damage_or_just_not_ours(tmp_path, inode):
    (tmp_path / "index.owner").write_text(f'{{"uuid": "{"a" * 32}", "inode": {inode}, "host": "h"}}')
    with suppress(Damaged):
        assert type(Layout(tmp_path).read_owner().inode) is int
