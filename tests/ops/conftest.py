"""A small open database."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from chainstore.odb.local import LocalDatabase
from tests.odb.stores import Store


@pytest.fixture
def db(tmp_path) -> Iterator[LocalDatabase]:
    with closing(Store(tmp_path / "store", encrypted=False).create()) as db:
        yield db
