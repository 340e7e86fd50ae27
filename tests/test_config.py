import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore import config
from chainstore.config import KeySource, parse_duration, parse_size
from chainstore.errors import ConfigError, InvalidInput


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("CHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


# --- places


def test_the_user_key_lies_in_the_users_configuration(monkeypatch, tmp_path):
    assert config.user_key_path() == tmp_path / ".config" / "chainstore" / "user.key"
    monkeypatch.setenv("CHAIN_CONFIG_DIR", str(tmp_path / "elsewhere"))
    assert config.user_key_path() == tmp_path / "elsewhere" / "user.key"


def test_places_can_be_chosen_and_are_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, place in [("CHAIN_CACHE_DIR", config.cache_dir), ("CHAIN_HOME", config.chain_home)]:
        assert place().is_relative_to(tmp_path)
        monkeypatch.setenv(name, "some/where")
        assert place() == tmp_path / "some" / "where"
        monkeypatch.setenv(name, "~/there")
        assert place() == tmp_path / "there"


def test_an_index_that_cannot_lie_in_its_repository_goes_to_the_job_the_machine_or_the_user(monkeypatch, tmp_path):
    for name in ("CHAIN_INDEX_DIR", "SLURM_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CHAIN_CACHE_DIR", str(tmp_path))
    assert config.index_dirs() == (tmp_path / "index",)
    monkeypatch.setenv("TMPDIR", "/local")
    monkeypatch.setenv("SLURM_TMPDIR", "/local/job7")
    job, machine = Path("/local/job7/chainstore/index"), Path("/local/chainstore/index")
    assert config.index_dirs() == (job, machine, tmp_path / "index")
    monkeypatch.setenv("SLURM_TMPDIR", "/local")
    assert config.index_dirs() == (machine, tmp_path / "index")
    monkeypatch.setenv("CHAIN_INDEX_DIR", "~/indexes")
    assert config.index_dirs() == (Path("~/indexes").expanduser(),)


def test_an_empty_variable_is_an_unset_one(monkeypatch):
    monkeypatch.setenv("CHAIN_REPO", "")
    assert config.repo_from_environment() is None
    monkeypatch.setenv("CHAIN_REPO", "runs/gpt")
    assert config.repo_from_environment() == "runs/gpt"


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
24 23 0:47 / /home/a\\040b rw - tmpfs tmpfs rw
25 23 0:48 / /var rw master:7 propagate_from:2 - overlay overlay rw
odd line
"""


@pytest.mark.parametrize(
    ("major", "minor", "kind"), [(8, 1, "ext4"), (0, 47, "tmpfs"), (0, 48, "overlay"), (0, 4, ""), (0, 7, "")]
)
def test_the_file_system_is_told_by_its_device_number(major, minor, kind):
    assert config._file_system_type(os.makedev(major, minor), MOUNTS) == kind


@pytest.mark.parametrize(("kind", "durable"), [("ext4", True), ("tmpfs", False), ("overlay", False), ("nfs4", True)])
def test_a_home_lasts_unless_it_lies_in_memory_or_in_a_container(monkeypatch, tmp_path, kind, durable):
    device = tmp_path.stat().st_dev
    line = f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {kind} none rw"
    monkeypatch.setattr(config, "_mountinfo", lambda: line)
    assert config.home_is_durable() is durable
    assert config.home_is_durable(tmp_path / "not" / "yet") is durable
    if not durable:
        assert kind in config.home_problem()


def test_a_home_is_taken_as_durable_where_the_mounts_are_unknown(monkeypatch):
    monkeypatch.setattr(config, "_mountinfo", lambda: "")
    assert config.home_problem() is None


def test_this_systems_own_mounts_can_be_read():
    proc = Path("/proc")
    if not (proc / "self" / "mountinfo").exists():
        pytest.skip("no /proc here")
    assert config._file_system_type(proc.stat().st_dev, config._mountinfo()) == "proc"


def test_a_home_that_cannot_be_written_or_is_none_is_not_durable(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o400)
    assert "cannot be written" in config.home_problem(tmp_path / "file" / "chainstore")
    assert "no home" in config.home_problem(Path("~/.config"))


# --- keys


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("CHAIN_KEY_FILE", "file", "/keys/a.key"),
        ("CHAIN_KEY_COMMAND", "command", "pass show 'a b'"),
        ("CHAIN_PASSPHRASE", "passphrase", " hunter2 "),
    ],
)
def test_the_environment_names_a_key(monkeypatch, name, kind, value):
    assert config.key_from_environment() is None
    monkeypatch.setenv(name, value)
    assert config.key_from_environment() == KeySource(kind, value, name)


def test_two_keys_at_once_are_refused_without_showing_them(monkeypatch):
    monkeypatch.setenv("CHAIN_PASSPHRASE", "hunter2")
    monkeypatch.setenv("CHAIN_KEY_FILE", "/keys/a.key")
    with pytest.raises(ConfigError, match="CHAIN_KEY_FILE and CHAIN_PASSPHRASE") as caught:
        config.key_from_environment()
    assert "hunter2" not in repr(caught.value)


def test_a_passphrase_or_command_is_not_shown():
    assert "hunter2" not in repr(KeySource("passphrase", "hunter2", "CHAIN_PASSPHRASE"))
    assert "tok3n" not in str(KeySource("command", "vault --token=tok3n", "CHAIN_KEY_COMMAND"))
    assert "/keys/a" in repr(KeySource("file", "/keys/a", "CHAIN_KEY_FILE"))


def test_the_users_settings_name_a_key(monkeypatch, tmp_path):
    (tmp_path / "config.toml").write_text('key_file = "~/a.key"\n[other]\nthing = 1\n')
    monkeypatch.setenv("CHAIN_CONFIG_DIR", str(tmp_path))
    settings = config.read_user_config()
    assert settings["other"] == {"thing": 1}
    source = config.key_from_user_config(settings)
    assert (source.kind, source.value) == ("file", str(tmp_path / "a.key"))
    assert config.key_from_user_config({"key_command": "pass"}).kind == "command"
    assert config.key_from_user_config({}) is None
    for wrong in ({"key_file": 7}, {"key_file": "a", "key_command": "b"}):
        with pytest.raises(ConfigError):
            config.key_from_user_config(wrong)


def test_no_settings_are_empty_and_broken_ones_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CHAIN_CONFIG_DIR", str(tmp_path))
    assert config.read_user_config() == {}
    for content in (b"key_file = ", b"\xff\xfe", b"a = 1\na = 2"):
        (tmp_path / "config.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"config\.toml"):
            config.read_user_config()
    (tmp_path / "config.toml").unlink()
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml"):
        config.read_user_config()


# --- host, time, numbers


def test_the_clock_and_the_names_are_there(monkeypatch):
    assert config.now().utcoffset() == timedelta(0)
    assert config.now() <= config.now()
    assert config.host_name()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert config.user_name() == f"uid {os.getuid()}"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 256 << 20),
        ("2 mib", 2 << 20),
        ("64k", 64 << 10),
        ("64kB", 64_000),
        ("1.5GB", 1_500_000_000),
        ("1.5g", 3 << 29),
        ("4096", 4096),
        ("10B", 10),
        ("1PiB", 1 << 50),
        ("9007199254740993", 9007199254740993),
        (" 1TiB ", 1 << 40),
        (0, 0),
        (7, 7),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


NO_SIZES = ["", "MiB", "-1", "1 iB", "1ib", "1XB", "1e6", "0x10", "1 M B", "\u0663", -1, True, 1.5, None]


@pytest.mark.parametrize("text", NO_SIZES)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_size(text)


@given(st.integers(0, 2**62))
def test_a_size_in_digits_is_exact(size):
    assert parse_size(str(size)) == parse_size(size) == size


DURATIONS = {"30s": 30, "1h30m": 5400, "12h": 43200, "500ms": 0.5, "2w": 1209600, "1.5 h": 5400, 3: 3, 0.25: 0.25}
DURATIONS |= {"5min": 300, "7 sec": 7, "14d": 1209600, "1d 2h 3m 4s": 93784, "30M": 1800}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


NO_DURATIONS = ["", "30", "h", "-1s", "1y", "1h30", "s30", -1, float("nan"), float("inf"), True, None]


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_duration(text)
