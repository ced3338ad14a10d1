"""`atoll schema`."""

import json
import sys

from atoll.cli.common import app


@app.command()
def schema() -> None:
    """Print the JSON schema of the experiment file, with which editors check and complete it.

    A file that begins with the line `#:schema ./experiment.schema.json` is checked by Taplo and Even Better TOML.

    Example: atoll schema > experiment.schema.json
    """
    from atoll.settings.json_schema import experiment_schema

    sys.stdout.write(json.dumps(experiment_schema(), indent=2) + "\n")
