"""A server that checks replies and keeps the books, while another strategy steps the model."""

from __future__ import annotations

from fedsparq.compress.payload import Payload
from fedsparq.federate.server import RoundOutcome, Server, ServerState


class Relay(Server):
    """Hands each sound update on instead of adding it up."""

    _last: Payload | None = None

    def take(self) -> Payload | None:
        """The update of the reply that was received last."""
        last, self._last = self._last, None
        return last

    def close(self, stepped: bool) -> RoundOutcome:
        """End the round. If the model was not stepped, no reply counts: the clients will send theirs again."""
        if not stepped:
            self._current().counted.clear()
        return self.close_round()

    def _add(self, client: int, payload: Payload, weight: float) -> None:
        self._last = payload

    def _stepped(self, current: object) -> ServerState:
        return self.state
