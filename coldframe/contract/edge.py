"""Where the edge of an installation is."""

from coldframe.contract.model import Model


class EdgeInfo(Model):
    """The second port: E2B protocol and ports of sandboxes, with TLS and without."""

    port: int
    domains: tuple[str, ...]
    """Every name below them leads there, as far as this server is concerned: `PORT-ID.DOMAIN`."""
    certificate: str
    """Of the authority that its certificates are from, as PEM: what a client has to trust for TLS."""
