"""What a listener tells Spark's processes of the servers that its own client asks; an address server may tell others.

Options are texts, which a query keeps as long as it runs. Pure: no Spark.
"""

from __future__ import annotations

from rocketbox.client import ClientOptions, MQClientInstance, TlsOptions
from rocketbox.spark.servers import Servers, SparkTls

__all__ = ["ToldServers"]


class ToldServers:
    """Those of ``instance``; ``credentials_file`` has its keys, where it has any."""

    def __init__(self, instance: MQClientInstance, credentials_file: str | None) -> None:
        self._instance = instance
        self._credentials_file = credentials_file

    @property
    def name_server(self) -> str:
        """The name servers that are known now, in one order: a worker that lives on has a client for each text."""
        return ";".join(sorted(self._instance.name_servers_to_ask))

    def now(self) -> Servers:
        """For a query that begins: by then its topic was found, and so a name server is known."""
        said = self._instance.options
        tls = _tls_of(said) if said.tls_enable else None
        return Servers(self.name_server, said.namespace, said.namespace_v2, tls, self._credentials_file)


def _tls_of(client: ClientOptions) -> SparkTls:
    """What Spark's processes are told of TLS; whole paths, since they work elsewhere."""
    said = client.tls or TlsOptions()
    ca_file, cert_file, key_file = (
        None if path is None else str(path.absolute()) for path in (said.ca_file, said.cert_file, said.key_file)
    )
    return SparkTls(ca_file, cert_file, key_file, said.server_name, said.verify)
