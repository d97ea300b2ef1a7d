"""TLS for other machines, on the port of the API: `corral up --tls`.

Connections to loopback and to the address of Corral in containers have no TLS, and nothing here concerns them. On all other
connections, the first byte from the client says whether it begins a handshake. Then the server passes the connection to a process
that ends TLS (`__main__.py`), and serves the Unix socket that leads to this process. So neither handshakes nor encryption delay the
server.

The folder `door` of the data folder has these files for TLS:

https.pem   the key and the certificate of this server; each server writes new ones. Not with --tls-certificate.
ca.pem      the certificate that clients need to verify this server (AWS_CA_BUNDLE), without its key
https.log   the log of the process
"""

CERTIFICATE, BUNDLE, LOG = "https.pem", "ca.pem", "https.log"
AUTHORITY_PATH = "/_corral/authority"  # the page with the content of ca.pem
