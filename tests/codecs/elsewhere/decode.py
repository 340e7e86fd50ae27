"""Decode recorded chains, in whatever surroundings this process was given: `python decode.py MODE FOLDER [RUN...]`.

Torch is out of reach, but in the mode "torch": there states are checked out, as users do it.

Prints what the arrays of every commit are, by digest, what kinds of record they were made from, what every predictor
makes of strange numbers, and what these surroundings are like, so that whoever asks can tell that they are others.
"""

import hashlib
import json
import math
import os
import sys
import threading
from collections import Counter
from pathlib import Path

MODE = sys.argv[1]
if MODE != "torch":
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it fails

import numpy as np  # noqa: E402
from modes import arithmetic, enter  # noqa: E402

import chainstore  # noqa: E402
from chainstore.codecs.adam import Optimizer  # noqa: E402
from chainstore.codecs.adam_parameters import TOUCHED, Hyper, Parameters, Predictor, parameters_for, parse  # noqa: E402
from chainstore.codecs.base import ADAM, DIFFERENCE, PLANES, XOR  # noqa: E402
from chainstore.codecs.floating import same_everywhere  # noqa: E402
from chainstore.codecs.planes import WORD_TYPES, Scratch  # noqa: E402
from chainstore.ids import ObjectId  # noqa: E402
from chainstore.model.commit import Commit  # noqa: E402
from chainstore.model.frame import split_record  # noqa: E402
from chainstore.observe import silent  # noqa: E402
from chainstore.odb.local import LocalDatabase  # noqa: E402
from chainstore.ops.checkout import fill  # noqa: E402
from chainstore.repository import Repository  # noqa: E402
from chainstore.repository import open as open_repository  # noqa: E402
from chainstore.state.leaf import Destination  # noqa: E402

NAMES = {PLANES: "planes", XOR: "xor", DIFFERENCE: "difference"}
ONE_STEP = (Predictor.SECOND, Predictor.WEIGHT, Predictor.MOMENTUM, Predictor.GREATEST, *TOUCHED)
THREADS = 2
NUMBERS = [(place + 1) / 9 for place in range(7)]  # computed before a mode is entered


def predictions() -> str:
    """Return a digest of what every predictor in every variant makes of numbers of all sizes, denormal and none."""
    digest = hashlib.sha256()
    random = np.random.default_rng(3)
    for predictor in Predictor:
        for variant in range(8):
            steps = 1 if predictor in ONE_STEP else 3
            shape = parse(parameters_for(predictor, Hyper(1e-3), 40, steps, variant))
            numbers = tuple(NUMBERS[place % 7] for place in range(len(shape.numbers)))
            for width, words in WORD_TYPES.items():
                if width >= 4:
                    bases = [random.integers(0, 1 << 8 * width, 5000, words.newbyteorder("=")) for _ in range(4)]
                    out = np.empty(5000, words)
                    with same_everywhere():
                        optimizer = Optimizer(Parameters(predictor, variant, steps, numbers), width, Scratch())
                        optimizer.predict(bases[: shape.bases], out)
                    digest.update(out.tobytes())
    return digest.hexdigest()


def surroundings() -> dict[str, object]:
    inherited: list[dict[str, str]] = []
    thread = threading.Thread(target=lambda: inherited.append(arithmetic()))
    thread.start()
    thread.join()
    random = np.random.default_rng(5).standard_normal(1_000_003)
    small = np.abs(random[:4096].astype(np.float32))
    return {
        "here": arithmetic(),
        "in a thread": inherited[0],
        "functions": {name: getattr(math, name)(0.7).hex() for name in ("exp", "log", "expm1", "log1p")},
        "pow": [math.pow(0.999, 117.0).hex(), math.pow(0.9, 1.0).hex(), (0.999**117).hex()],
        "numpy power": float(np.float64(0.999) ** np.float64(117.0)).hex(),
        "blas": float(np.dot(random, random)).hex(),
        "vector functions": hashlib.sha256(np.exp(np.log(small)).tobytes()).hexdigest(),
        "numpy": np.__version__,
        "package": str(Path(chainstore.__file__).parent.parent),
        "torch": sys.modules.get("torch") is not None,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "features": enabled(),
    }


def enabled() -> list[str]:
    """Return the instruction sets that numpy has other loops for, and uses here."""
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]


def kinds(db: LocalDatabase, ids: set[ObjectId]) -> Counter[str]:
    """Count the records of objects, and of all that they build on, by what was done to them."""
    counts: Counter[str] = Counter()
    with db.view() as view:
        for id, node in db.lay_out(ids).items():
            assert node.place is not None
            record = view.inline(id)
            if record is None:
                pack = db.packs.path(view.pack(node.place.pack).pack).read_bytes()
                record = pack[node.place.offset :]
            header, payload = split_record(memoryview(record), "record")
            tag = header.codecs[0]
            if tag == ADAM:
                parameters = parse(payload)
                counts[f"{parameters.predictor.name} {parameters.variant}"] += 1
            else:
                counts[NAMES.get(tag, "other")] += 1
    return counts


def digests(repo: Repository, commit: Commit) -> dict[str, str]:
    """Return digests of the arrays of a commit by path."""
    if MODE == "torch":
        from record import arrays, digest

        return {path: digest(tensor) for path, tensor in arrays(repo.checkout(commit))}
    entries = [entry for entry in repo.snapshot(commit).manifest.entries if entry.spec is not None]
    destinations = [Destination(entry, memoryview(bytearray(entry.nbytes)), live=False) for entry in entries]
    fill(repo._handle.core.db, destinations, threads=THREADS, max_memory_bytes=1 << 28, observer=silent)
    made = (hashlib.sha256(destination.buffer).hexdigest() for destination in destinations)
    return {"/".join(map(str, entry.path)): digest for entry, digest in zip(entries, made, strict=True)}


def main(mode: str, folder: str, *names: str) -> None:
    enter(mode)
    found: dict[str, dict[str, dict[str, str]]] = {}
    counts: Counter[str] = Counter()
    for path in sorted(Path(folder).iterdir()):
        if path.name in names or not names:
            with open_repository(path, readonly=True, threads=THREADS) as repo:
                commits = list(repo.log())
                found[path.name] = {str(commit.id): digests(repo, commit) for commit in commits}
                chunks = {id for commit in commits for id in repo.snapshot(commit).manifest.chunks()}
                counts += kinds(repo._handle.core.db, chunks)
    told = {"digests": found, "kinds": counts, "predictions": predictions(), "surroundings": surroundings()}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
