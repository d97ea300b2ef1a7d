"""Why Corral does not serve some operations of the services that it serves. The error for such an operation has the reason."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

# Service → patterns of operations → the reason
REASONS: Mapping[str, Mapping[str, str]] = {
    "iam": {
        "*SAML* *OpenIDConnect* *WebIdentity*": "it has no identity providers: its users have access keys",
        "*MFA*": "it has no multi-factor authentication",
        "*Certificate* *SSHPublicKey* *ServiceSpecificCredential*": "its users have access keys, and no other credentials",
        "*LoginProfile* *Password*": "it has no web console, so its users have no passwords",
        "*Organizations*": "it has one account, which belongs to no organization",
        "*CredentialReport": "ListUsers, ListAccessKeys and GetAccessKeyLastUsed have the same facts",
    },
}


def reason_of(service: str, operation: str) -> str:
    """Return why an operation is not served. Return an empty text if there is no particular reason."""
    for patterns, reason in REASONS.get(service, {}).items():
        if any(fnmatchcase(operation, pattern) for pattern in patterns.split()):
            return reason
    return ""
