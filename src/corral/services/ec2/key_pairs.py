"""Key pairs with real RSA and ED25519 keys. CreateKeyPair returns the private key, and Corral does not store it."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
    load_ssh_public_key,
)

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, create, delete, list_resources
from corral.services.ec2 import errors
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, every, new_id
from corral.store import Store

RSA_BITS = 2048
RSA_BITS_ACCEPTED = (1024, 2048, 4096)
NAME_MAX_CHARACTERS = 255
PublicKey = RSAPublicKey | Ed25519PublicKey
PrivateKey = RSAPrivateKey | Ed25519PrivateKey


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    name, public = params["KeyName"], params["_public"]
    if not (1 <= len(name) <= NAME_MAX_CHARACTERS and name.isascii() and name.isprintable() and name == name.strip()):
        rule = f"It must have 1 to {NAME_MAX_CHARACTERS} printable ASCII characters, and no space at its beginning or end."
        raise errors.invalid_value(name, "KeyName", rule)
    if every(tx, caller, "key-pair", KeyName=name):
        raise errors.InvalidKeyPairDuplicate(f"The keypair '{name}' already exists")
    openssh = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return {
        "KeyPairId": new_id(tx, "key"),
        "KeyType": "rsa" if isinstance(public, RSAPublicKey) else "ed25519",
        "KeyFingerprint": params["_fingerprint"],
        "CreateTime": tx.now_s,
        "PublicKey": f"{openssh} {name}",
    }


KEY_PAIR = ResourceType(
    EC2,
    "key-pair",
    id="KeyPairId",
    one="KeyPair",
    many="KeyPairs",
    new=_new,
    members=("KeyName",),
    ids="KeyPairIds",
    selects=filtered({"key-pair-id": "KeyPairId", "key-name": "KeyName", "fingerprint": "KeyFingerprint"}),
)


def generate_key(params: Params) -> Params:
    """Add a new RSA key to a request that needs one. The server calls this before the transaction: a new key can take a second."""
    return {**params, "_key": generate_private_key(65537, RSA_BITS)} if params.get("KeyType", "rsa") == "rsa" else params


def create_key_pair(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if params.get("KeyFormat", "pem") != "pem":
        raise errors.UnsupportedOperation(
            "Corral writes private keys as PEM only: omit KeyFormat, and convert the key with puttygen."
        )
    if params.get("KeyType", "rsa") == "ed25519":
        key: PrivateKey = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(tx.ids.hex32() + tx.ids.hex32()))
        fingerprint = _openssh_fingerprint(key.public_key())
        material = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    else:
        key = params["_key"] if "_key" in params else generate_private_key(65537, RSA_BITS)
        fingerprint = _colons(hashlib.sha1(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())))
        material = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    document = create(tx, caller, KEY_PAIR, {**params, "_public": key.public_key(), "_fingerprint": fingerprint})
    return {**_created(document), "KeyMaterial": material.decode()}


def import_key_pair(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    public = _public_key(params["PublicKeyMaterial"])
    if isinstance(public, RSAPublicKey):
        fingerprint = _colons(hashlib.md5(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)))
    else:
        fingerprint = _openssh_fingerprint(public)
    return _created(create(tx, caller, KEY_PAIR, {**params, "_public": public, "_fingerprint": fingerprint}))


def describe_key_pairs(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if names := params.get("KeyNames"):
        ids = [named_key(tx, caller, name)["KeyPairId"] for name in names]
        params = {**params, "KeyPairIds": [*params.get("KeyPairIds", ()), *ids]}
    reply = list_resources(tx, params, caller, KEY_PAIR)
    if not params.get("IncludePublicKey"):
        reply["KeyPairs"] = [{name: value for name, value in each.items() if name != "PublicKey"} for each in reply["KeyPairs"]]
    return reply


def delete_key_pair(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Delete a key pair. As on EC2, it is no error if the key pair does not exist."""
    if "KeyName" not in params and "KeyPairId" not in params:
        raise errors.MissingParameter("The request must contain the parameter KeyName or KeyPairId")
    wanted = {member: params[member] for member in ("KeyName", "KeyPairId") if member in params}
    for document in every(tx, caller, "key-pair", **wanted):
        delete(tx, caller, KEY_PAIR, document)
        return {"Return": True, "KeyPairId": document["KeyPairId"]}
    return {"Return": True}


def named_key(tx: Tx[Store], caller: Caller, name: str) -> Document:
    for document in every(tx, caller, "key-pair", KeyName=name):
        return document
    raise errors.name_not_found("key-pair", name)


def _created(document: Document) -> dict[str, Any]:
    return {**{member: document[member] for member in ("KeyPairId", "KeyName", "KeyFingerprint")}, "Tags": document.get("Tags", [])}


def _public_key(material: bytes) -> PublicKey:
    for load in (load_ssh_public_key, load_pem_public_key, load_der_public_key):
        try:
            key = load(material)
        except (ValueError, UnsupportedAlgorithm):
            continue
        if isinstance(key, Ed25519PublicKey) or (isinstance(key, RSAPublicKey) and key.key_size in RSA_BITS_ACCEPTED):
            return key
        break
    raise errors.InvalidKeyFormat("Key is not in valid OpenSSH public key format")


def _colons(digest: Any) -> str:
    return ":".join(f"{byte:02x}" for byte in digest.digest())


def _openssh_fingerprint(public: PublicKey) -> str:
    blob = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1]
    return b64encode(hashlib.sha256(b64decode(blob)).digest()).decode()
