"""Users (3001 to 3005) and policies (3006 to 3010) of ACL 2.0, as administrators change and read them.

A change counts at once and is answered when it is on the disk. Other than at Apache's, no answer holds a password, and
what is misspelt (a type, an action) is refused, not left out.

Source: Apache RocketMQ 5.x ``AdminBrokerProcessor``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping

from rocketbox.access.control import AccessControl
from rocketbox.access.users import User, UserError, UserTable
from rocketbox.errors import StoreError
from rocketbox.protocol.auth_bodies import (
    decode_acl,
    decode_user,
    encode_acl,
    encode_acls,
    encode_user,
    encode_users,
)
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection, RequestHandler

__all__ = ["AccessHandler"]

_log = logging.getLogger(__name__)


class AccessHandler:
    """Answers those who administer the table; whether they may was asked before."""

    def __init__(self, access: AccessControl, users: UserTable) -> None:
        self._access = access
        self._users = users

    def codes(self) -> Mapping[int, RequestHandler]:
        return {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.put_acl,
            RequestCode.AUTH_UPDATE_ACL: self.put_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.get_acl,
            RequestCode.AUTH_LIST_ACL: self.list_acls,
        }

    async def create_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Add a user; only a super user adds another."""
        name = request.ext_fields.get("username", "")
        info = dataclasses.replace(decode_user(request.body), username=name)

        def create() -> int:
            if (info.user_type or "").lower() == "super" and not self._by_super_user(connection, request):
                raise UserError("The super user can only be create by super user", ResponseCode.SYSTEM_ERROR)
            return self._users.create(info)

        return await self._change(connection, request, create, f"user {name!a} was made")

    async def update_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change a user; only a super user changes one, or makes one."""
        name = request.ext_fields.get("username", "")
        info = dataclasses.replace(decode_user(request.body), username=name)

        def update() -> int:
            if (info.user_type or "").lower() == "super" and not self._by_super_user(connection, request):
                raise UserError("The super user can only be update by super user", ResponseCode.SYSTEM_ERROR)
            self._check_may_touch(connection, request, self._users.get(name))
            return self._users.update(info)

        return await self._change(connection, request, update, f"user {name!a} was changed")

    async def delete_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete a user with his policies, if he is there."""
        name = request.ext_fields.get("username", "")

        def delete() -> int:
            self._check_may_touch(connection, request, self._users.get(name))
            return self._users.delete(name)

        return await self._change(connection, request, delete, f"user {name!a} was deleted")

    def get_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """A user without his password; no body when there is none."""
        name = request.ext_fields.get("username", "")
        if not name.strip():
            return RemotingCommand.response(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._users.get(name)
        return RemotingCommand.response(body=b"" if user is None else encode_user(user.info()))

    def list_users(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Those whose name has the filter in it."""
        users = self._users.all(request.ext_fields.get("filter", ""))
        return RemotingCommand.response(body=encode_users(user.info() for user in users) if users else b"")

    async def put_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Add entries to a user's policies, each in place of the one for the same resource."""
        acl = decode_acl(request.body)
        subject = request.ext_fields.get("subject")

        def put() -> int:
            return self._users.add_policies(subject, acl)

        return await self._change(connection, request, put, f"policies of {subject!a} were changed")

    async def delete_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Take an entry of a user's policies away, or all of them."""
        fields = request.ext_fields
        subject = fields.get("subject")

        def delete() -> int:
            return self._users.delete_policies(subject, fields.get("policyType"), fields.get("resource"))

        return await self._change(connection, request, delete, f"policies of {subject!a} were deleted")

    def get_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """A user's policies; no body when there are none."""
        try:
            user = self._users.subject(request.ext_fields.get("subject"))
        except UserError as error:
            return RemotingCommand.response(error.code, str(error))
        return RemotingCommand.response(body=encode_acl(user.acl()) if user.policies else b"")

    def list_acls(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """All users' policies; of subjects and resources that have the filters in them."""
        fields = request.ext_fields
        subject, resource = fields.get("subjectFilter", ""), fields.get("resourceFilter", "")
        users = [user for user in self._users.all() if subject in f"User:{user.name}"]
        found = [acl for user in users if (acl := user.acl(resource)).policies]
        return RemotingCommand.response(body=encode_acls(found) if found else b"")

    async def _change(
        self, connection: Connection, request: RemotingCommand, change: Callable[[], int], what: str
    ) -> RemotingCommand:
        try:
            await self._users.written(change())
        except UserError as error:
            return RemotingCommand.response(error.code, str(error))
        except StoreError as error:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(error))
        by = self._access.user_of(connection, request)
        _log.info("%s by %s from %s", what, "somebody" if by is None else ascii(by.name), connection.remote_address)
        return RemotingCommand.response()

    def _by_super_user(self, connection: Connection, request: RemotingCommand) -> bool:
        user = self._access.user_of(connection, request)
        return user is not None and user.is_super

    def _check_may_touch(self, connection: Connection, request: RemotingCommand, user: User | None) -> None:
        if user is not None and user.is_super and not self._by_super_user(connection, request):
            raise UserError("The super user can only be update by super user")
