"""Apache's servers with access control on, and users who may do what a test says: ACL 1.0 of 4.x, ACL 2.0 of 5.x.

What a user may do is said as ``tests.support.broker.rights`` says it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio

from rocketbox.client import Admin, ClientOptions, Credentials, CredentialsProvider, MQClientInstance, Producer
from rocketbox.client.api.answers import ask
from rocketbox.errors import AccessDeniedError, BrokerError
from rocketbox.protocol.command import RemotingCommand
from tests.conformance.apache import ApacheServers, apache_servers, home
from tests.conformance.secured import TlsFiles
from tests.support.broker.access import ADMIN
from tests.support.broker.rights import May, account, plain_acl

__all__ = ["ADMIN", "TOPIC", "AclServers", "acl_servers", "producer", "user"]

TOPIC = "departures"  # of the page's table

GET_RUNTIME_INFO = 28
CREATE_USER, UPDATE_USER, CREATE_ACL, UPDATE_ACL = 3001, 3002, 3006, 3007
AUTH = "org.apache.rocketmq.auth"
ACL_2 = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}),
}


def user(name: str, secret: str = "") -> Credentials:
    """Access keys have more than 6 characters: ACL 1.0 reads nothing of a file with a shorter one."""
    return Credentials(access_key=name, secret_key=secret or f"secret-of-{name}")


def producer(name_server: str, credentials: Credentials | CredentialsProvider | None) -> Producer:
    """Of the group desk, which sends as that user."""
    return Producer("desk", name_server=name_server, client_options=ClientOptions(credentials=credentials))


class AclServers:
    """Servers with access control, whose users may be changed while they run."""

    def __init__(self, servers: ApacheServers, plain_acl: Path | None, administrator: ClientOptions) -> None:
        self.name_server = servers.name_server
        self.administrator = administrator
        """As whom, and how, users and topics are made."""
        self.broker = servers.broker
        self._plain_acl = plain_acl
        self._accounts: dict[str, dict[str, object]] = {}
        self._known: set[str] = set()

    @property
    def has_acl_1(self) -> bool:
        return self._plain_acl is not None

    async def let(self, user: Credentials, may: May) -> None:
        """Make the user, or change it: its secret key, and what it may. Brokers of 4.x read it within a second."""
        self._accounts[user.access_key] = account(user, may)
        if self._plain_acl is not None:
            self._plain_acl.write_text(plain_acl(self._accounts.values()))
            return
        known = user.access_key in self._known
        self._known.add(user.access_key)
        who = {"username": user.access_key, "password": user.secret_key, "userType": "Normal", "userStatus": "enable"}
        entries = [{"resource": resource, "actions": actions, "sourceIps": [], "decision": "Allow"}
                   for resource, actions in may.policies.items()]  # fmt: skip
        subject = f"User:{user.access_key}"
        acl = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
        async with MQClientInstance(self.name_server, options=self.administrator) as instance:
            for code, fields, body in (
                (UPDATE_USER if known else CREATE_USER, {"username": user.access_key}, who),
                *([(UPDATE_ACL if known else CREATE_ACL, {"subject": subject}, acl)] if entries else []),
            ):
                command = RemotingCommand.request(code, fields, json.dumps(body).encode())
                await ask(instance.remoting, self.broker, command, timeout=10)

    async def make_topic(self, topic: str = TOPIC) -> None:
        """That of the page's table, or another, with two queues."""
        async with Admin(name_server=self.name_server, client_options=self.administrator) as admin:
            await admin.create_topic(topic, queues=2)

    async def until_known(self, user: Credentials) -> None:
        """Return when the broker takes the user's keys: those of 4.x look at their file every 5 s."""
        async with MQClientInstance(
            self.name_server, options=replace(self.administrator, credentials=user)
        ) as instance:
            with anyio.fail_after(30):
                while True:
                    request = RemotingCommand.request(GET_RUNTIME_INFO)
                    try:
                        await ask(instance.remoting, self.broker, request, timeout=10)
                    except AccessDeniedError as error:
                        if not error.wrong_keys:
                            return
                        await anyio.sleep(0.1)
                    except BrokerError:
                        return  # it took the keys, and fails in its first second, when there are no figures to show
                    else:
                        return


@contextmanager
def acl_servers(folder: Path, version: str, *, tls: TlsFiles | None = None, **settings: str) -> Iterator[AclServers]:
    """A name server and broker of a version on which nobody but ADMIN may do anything; with TLS alone, if any."""
    home(folder)
    java_options = tls.java_options if tls is not None else ()
    administrator = replace(tls.client_options if tls is not None else ClientOptions(), credentials=ADMIN)
    if version.startswith("4."):
        file = folder / "conf" / "plain_acl.yml"
        file.write_text(plain_acl(()))
        with apache_servers(
            folder, version, java_options=java_options, keeps_store=False, aclEnable="true", **settings
        ) as servers:
            yield AclServers(servers, file, administrator)
        return
    (folder / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    auth = folder / "auth"
    with apache_servers(
        folder, version, java_options=java_options, keeps_store=False, authConfigPath=auth, **ACL_2, **settings
    ) as servers:
        yield AclServers(servers, None, administrator)
