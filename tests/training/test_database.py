"""The database that two searches open at the same moment."""

import optuna
import pytest
from sqlalchemy.exc import IntegrityError

from depthscope.errors import UsageError
from depthscope.training import search
from depthscope.training.search import storage_of


def refusing(times, monkeypatch):
    """PostgreSQL, whose tables another process makes meanwhile, refuses so often."""
    asked, made = [], optuna.storages.RDBStorage

    def opened(url):
        asked.append(url)
        if len(asked) <= times:
            raise IntegrityError("CREATE TABLE studies", {}, ValueError("pg_type_typname_nsp_index"))
        return made(url)

    monkeypatch.setattr(optuna.storages, "RDBStorage", opened)
    monkeypatch.setattr(search, "POLL", 0.0)
    return asked


def test_tables_that_another_makes_at_the_same_moment_are_taken(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    asked = refusing(2, monkeypatch)
    storage = storage_of(tmp_path, url)
    assert asked == [url] * 3 and storage.get_all_studies() == []


def test_a_database_that_goes_on_refusing_is_told(tmp_path, monkeypatch):
    asked = refusing(10, monkeypatch)
    with pytest.raises(UsageError, match="storage: must be the URL of a database that can be reached"):
        storage_of(tmp_path, "sqlite://")
    assert len(asked) == 3


def test_what_is_no_url_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "POLL", 60.0)
    with pytest.raises(UsageError, match="got 'trials'"):
        storage_of(tmp_path, "trials")
