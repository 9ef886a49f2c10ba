"""What Alembic runs for each command: the connection is handed in, there is no configuration file.

The declared tables are not loaded: migrations are written by hand, and a test compares the outcome.
"""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
