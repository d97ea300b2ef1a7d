"""The door: the TLS port at which hosts join from other machines, and the server's end of their connections.

The folder `door` of the data folder has these files. Only the owner of the data folder can read them.

authority.pem   the key and the certificate of the authority, which signs the certificates of the door and of hosts
server.pem      the key and the certificate of the door; each server writes new ones
server.sock     the socket on which the server accepts what the door passes on
door.log        the log of the door
lock            held by the door

`server/tls/` has further files in this folder.
"""

AUTHORITY, SERVER, SOCKET, LOG, LOCK = "authority.pem", "server.pem", "server.sock", "door.log", "lock"
