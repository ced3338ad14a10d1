"""`atoll schema`."""

import json
import sys

from atoll.cli.common import app


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors to check and complete them.

    Taplo and Even Better TOML check a file that begins with the line `#:schema ./experiment.schema.json`.

    Example: atoll schema > experiment.schema.json
    """
    from atoll.settings.json_schema import experiment_schema

    sys.stdout.write(json.dumps(experiment_schema(), indent=2) + "\n")
