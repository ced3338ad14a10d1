"""How a node signs each call: as in Flower, except for the signed time."""

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

BACK_SECONDS = 150.0
"""Flower accepts times from 305 s ago to 5 s ahead; a time in the middle allows a node's clock to be off either way."""


class Signing:
    """Adds a node's key and a signed time to calls."""

    def __init__(self, key: Any) -> None:
        """Sign with this private key."""
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        self._key, self._public = key, public_key_to_bytes(key.public_key())

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Sign a call's headers."""
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.primitives.asymmetric import sign_message

        told = (datetime.now(UTC) - timedelta(seconds=BACK_SECONDS)).isoformat()
        headers = context.request.headers
        headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = b64encode(self._public).decode()
        headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(sign_message(self._key, told.encode())).decode()
        context.request.headers[TIMESTAMP_HEADER] = told
        return call_next(context)
