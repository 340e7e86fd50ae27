"""Recorded chains decode to the same bits elsewhere: with other threads, modes of the processor, libm and numpy.

Real optimizer steps are recorded once, by a process with torch, and decoded by processes without.  That such a test
can fail is shown with copies of the package that have one line spoiled: they decode what they should at home, and not
there.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainstore.codecs.adam_parameters import Predictor

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("elsewhere")
PATIENCE_SECONDS = 300
OTHER_NUMPYS = ("1.26.4", "2.0.2") if sys.version_info < (3, 13) else ("2.3.5",)  # with wheels for this Python

Digests = dict[str, dict[str, dict[str, str]]]
Environment = dict[str, str]


@dataclass(frozen=True)
class Recorded:
    """Repositories, one for each run, and the digests of what was committed: run -> commit -> path."""

    folder: Path
    digests: Digests


@dataclass(frozen=True)
class Flaw:
    """A line of the package as it must not be.

    Attributes:
        at_home_too: what it makes is not what the package makes, so it must record what it is to decode.
    """

    module: str
    line: str
    instead: str
    at_home_too: bool = False

    def package(self, folder: Path) -> Path:
        """Make a copy of the package that has it, and return the directory to import it from."""
        shutil.copytree(ROOT / "chainstore", folder / "chainstore", ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "chainstore" / self.module
        source = path.read_text()
        assert source.count(self.line) == 1, f"{self.module} no longer has the line to spoil"
        path.write_text(source.replace(self.line, self.instead))
        return folder


NUMBERS = "self._numbers = [self._type.type(number) for number in parameters.numbers]"


def numbers(expression: str, how: str = "self._type.type") -> str:
    """Return the line that takes the numbers of a prediction, with something done to each."""
    return f"self._numbers = [{how}({expression}) for number in parameters.numbers]"


MODE_AS_IT_IS = Flaw("codecs/floating.py", "_C.fesetenv(_DEFAULT_ENVIRONMENT)", "pass")
POWER = Flaw("codecs/adam.py", NUMBERS, numbers("__import__('math').pow(number, 1.0)"))
SUM_BY_BLAS = Flaw(
    "codecs/adam.py",
    NUMBERS,
    "noise = np.random.default_rng(5).standard_normal(1_000_003); weight = float(np.dot(noise, noise)) / noise.size\n"
    "        " + numbers("number * weight"),
    at_home_too=True,
)
VECTOR_FUNCTIONS = Flaw(
    "codecs/adam.py",
    "        np.sqrt(second, out=divisor)\n        np.divide(divisor, root, out=divisor)",
    "        np.log(second, out=divisor)\n        np.multiply(divisor, 0.5, out=divisor)\n"
    "        np.exp(divisor, out=divisor)\n        np.divide(divisor, root, out=divisor)",
    at_home_too=True,
)
LEFT_TO_PROMOTION = Flaw("codecs/adam.py", NUMBERS, numbers("number", "np.float64"), at_home_too=True)


def script(name: str, *words: object, package: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this test in a process of its own, with the package that lies in a directory."""
    path = os.pathsep.join(filter(None, (environment.pop("PYTHONPATH", ""), str(package))))
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / name), *map(str, words)],
        capture_output=True,
        text=True,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment, "PYTHONPATH": path},
        timeout=PATIENCE_SECONDS,
    )


def record(folder: Path, *runs: str, mode: str = "plain", package: Path = ROOT, **environment: str) -> Recorded:
    done = script("record.py", mode, folder, *runs, package=package, **environment)
    assert done.returncode == 0, done.stderr
    return Recorded(folder, json.loads(done.stdout))


def decode(
    recorded: Recorded, mode: str = "plain", *runs: str, package: Path = ROOT, **environment: str
) -> dict[str, Any]:
    """Decode chains, check that every array is what was committed, and return what surrounded that."""
    done = script("decode.py", mode, recorded.folder, *runs, package=package, **environment)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    names = set(runs or recorded.digests)
    assert set(told["digests"]) == names
    for name in names:
        assert set(told["digests"][name]) == set(recorded.digests[name])
        for commit, arrays in recorded.digests[name].items():
            found = told["digests"][name][commit]
            assert {path: found.get(path) for path in arrays} == arrays, (name, commit)
    seen: dict[str, Any] = told["surroundings"]
    assert seen["package"] == str(package) and seen["torch"] == (mode == "torch")
    return {**seen, "kinds": told["kinds"], "predictions": told["predictions"]}


def goes_wrong(recorded: Recorded, mode: str, *runs: str, package: Path, **environment: str) -> bool:
    """Tell whether decoding ends in bytes that do not hash to their id."""
    done = script("decode.py", mode, recorded.folder, *runs, package=package, **environment)
    assert done.returncode == 0 or "IdMismatch" in done.stderr, done.stderr
    return done.returncode != 0


def missing(what: str) -> None:
    """End the test: skipped by name, or failed where everything must be there."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what} is missing")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("elsewhere")
    return record(folder / "runs", CHAIN_CONFIG_DIR=str(folder / "settings"))


@pytest.fixture(scope="module")
def at_home(recorded: Recorded) -> dict[str, Any]:
    """Return what surrounds decoding where nothing is changed."""
    return decode(recorded)


@pytest.fixture(scope="module")
def last_bit(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return the environment in which the functions of libm differ in the last bit."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        missing("a C compiler")
    library = tmp_path_factory.mktemp("libm") / "last_bit.so"
    command = [str(compiler), "-O2", "-shared", "-fPIC", "-o", str(library), str(SCRIPTS / "last_bit.c"), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library)}


def test_the_runs_need_every_kind_of_difference_there_is(at_home):
    plain = {f"{name} 0" for name in Predictor.__members__}
    assert {"xor", "difference", "planes", *plain, "WEIGHT 2", "FIRST_IDLE 1"} <= set(at_home["kinds"])


@pytest.mark.parametrize("count", ["1", "2"])
def test_the_number_of_threads_changes_nothing(recorded, at_home, count):
    seen = decode(recorded, OMP_NUM_THREADS=count)
    assert seen["threads"] == count and seen["predictions"] == at_home["predictions"]


@pytest.mark.parametrize("mode", ["torch", "flush"])
def test_flushed_denormals_change_nothing(recorded, at_home, mode):
    seen = decode(recorded, mode)
    assert seen["predictions"] == at_home["predictions"]
    for place in ("here", "in a thread"):
        assert int(at_home[place]["tiny"], 16) and not int(seen[place]["tiny"], 16)


def test_another_direction_of_rounding_changes_nothing(recorded, at_home):
    seen = decode(recorded, "upward")
    assert seen["predictions"] == at_home["predictions"]
    assert seen["in a thread"] == seen["here"] != at_home["here"]


def test_functions_of_libm_that_differ_in_the_last_bit_change_nothing(recorded, at_home, last_bit):
    seen = decode(recorded, **last_bit)
    assert seen["predictions"] == at_home["predictions"]
    assert all(a != b for a, b in zip(seen["pow"], at_home["pow"], strict=True))
    assert seen["numpy power"] != at_home["numpy power"]
    assert all(seen["functions"][name] != value for name, value in at_home["functions"].items())


def test_the_instructions_that_numpy_picks_change_nothing(recorded, at_home):
    if not at_home["features"]:
        pytest.skip("numpy has but one kind of loop for this processor")
    seen = decode(recorded, NPY_DISABLE_CPU_FEATURES=" ".join(at_home["features"]))
    assert seen["features"] == [] and seen["predictions"] == at_home["predictions"]


WRITERS = ("denormal", "double every 3", "embedding every 5", "amsgrad")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["torch", "upward"])
def test_what_is_recorded_in_another_mode_is_read_here(tmp_path, mode):
    seen = decode(record(tmp_path / "runs", *WRITERS, mode=mode))
    assert any(kind.startswith("WEIGHT") for kind in seen["kinds"])


@pytest.mark.long
def test_what_is_recorded_with_another_libm_is_read_here(tmp_path, last_bit):
    seen = decode(record(tmp_path / "runs", *WRITERS, **last_bit))
    assert any(kind.startswith("WEIGHT") for kind in seen["kinds"])


@pytest.mark.parametrize("mode", ["torch", "flush", "upward"])
def test_a_decoder_that_leaves_the_mode_alone_fails(recorded, tmp_path, mode):
    package = MODE_AS_IT_IS.package(tmp_path)
    decode(recorded, "plain", "denormal", "adamw", package=package)
    assert goes_wrong(recorded, mode, "denormal", "adamw", package=package)
    assert not goes_wrong(recorded, mode, "momentum" if mode != "upward" else "bfloat16", package=package)


def test_a_decoder_that_takes_a_power_fails(recorded, tmp_path, last_bit):
    package = POWER.package(tmp_path)
    decode(recorded, "plain", "double", package=package)
    assert goes_wrong(recorded, "plain", "double", package=package, **last_bit)


@pytest.mark.long
def test_a_writer_that_leaves_the_mode_alone_is_not_understood_here(tmp_path):
    own = record(tmp_path / "runs", *WRITERS, mode="upward", package=MODE_AS_IT_IS.package(tmp_path))
    assert goes_wrong(own, "plain", package=ROOT)


@pytest.mark.long
def test_a_decoder_that_adds_up_by_blas_fails(recorded, tmp_path):
    sums = [decode(recorded, "plain", "double", OMP_NUM_THREADS=count)["blas"] for count in ("1", "2")]
    if sums[0] == sums[1]:
        pytest.skip("this BLAS adds up alike with one thread and with two")
    package = SUM_BY_BLAS.package(tmp_path)
    own = record(tmp_path / "runs", "double", package=package, OMP_NUM_THREADS="1")
    decode(own, package=package, OMP_NUM_THREADS="1")
    assert goes_wrong(own, "plain", package=package, OMP_NUM_THREADS="2")


@pytest.mark.long
def test_a_decoder_that_calls_functions_of_numpy_fails(recorded, at_home, tmp_path):
    features = " ".join(at_home["features"])
    seen = decode(recorded, "plain", "adamw", NPY_DISABLE_CPU_FEATURES=features)
    if seen["vector functions"] == at_home["vector functions"]:
        pytest.skip("the functions of this numpy come out alike on all processors")
    package = VECTOR_FUNCTIONS.package(tmp_path)
    own = record(tmp_path / "runs", "adamw", package=package)
    decode(own, package=package)
    assert goes_wrong(own, "plain", package=package, NPY_DISABLE_CPU_FEATURES=features)


@pytest.fixture(scope="module", params=OTHER_NUMPYS)
def other_numpy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Environment]:
    """Return another version of numpy, and the environment in which it is the one that is imported."""
    version: str = request.param
    if version == np.__version__:
        pytest.skip(f"numpy {version} is the one that is installed")
    folder = tmp_path_factory.mktemp("numpy")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--target"]
    done = subprocess.run([*command, str(folder), f"numpy=={version}"], capture_output=True, text=True)
    if done.returncode:
        missing(f"numpy {version} for Python {sys.version.split()[0]}: {done.stderr[-200:]}")
    return version, {"PYTHONPATH": str(folder)}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["plain", "flush"])
def test_another_numpy_changes_nothing(recorded, at_home, other_numpy, mode):
    version, environment = other_numpy
    seen = decode(recorded, mode, **environment)
    assert seen["numpy"] == version and seen["predictions"] == at_home["predictions"]


@pytest.mark.long
@pytest.mark.parametrize("other_numpy", OTHER_NUMPYS[:1], indirect=True)
def test_a_decoder_that_leaves_types_to_promotion_fails_with_a_numpy_that_promotes_otherwise(other_numpy, tmp_path):
    version, environment = other_numpy
    if version.startswith("1.") == np.__version__.startswith("1."):
        pytest.skip(f"numpy {version} promotes as {np.__version__} does")
    package = LEFT_TO_PROMOTION.package(tmp_path)
    own = record(tmp_path / "runs", "adamw every 5", package=package)
    decode(own, package=package)
    assert goes_wrong(own, "plain", package=package, **environment)
