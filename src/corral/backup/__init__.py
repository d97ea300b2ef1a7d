"""Backups of a data folder: save, restore and check. `python -m corral.backup` runs them next to a server, or without one.

A backup is a folder, or one tar file with the same content:

    backup.json                the manifest, written last: a backup without it is not whole
    backup.lock                the data folder's id; held while a backup is made (not in a tar file)
    snapshot-ID/               state.db, logs.db and metrics.db of one instant, the keys, and the host's id
    blobs/f/0/f0…              the blobs that state.db refers to: hard links where the disk allows it, else copies

The next backup into the same folder writes another snapshot folder and adds the blobs that are new. It then replaces the manifest
and deletes what the new one does not name. So the folder always holds a whole backup, wherever a crash or a full disk stops it.
"""
