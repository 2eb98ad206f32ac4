from tests.migration.databases import database

__all__ = ["database"]
