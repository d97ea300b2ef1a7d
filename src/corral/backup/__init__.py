"""Saves, restores and checks backups of a data folder. The server may run while its data folder is saved or checked.

A backup is a folder, or one tar file with the same content:

    backup.json                the manifest; it is written last, so a backup without it is incomplete
    backup.lock                contains the data folder's id; locked while a backup is made; a tar file does not contain it
    snapshot-ID/               copies of the three databases from the same instant, the keys, the settings, and the host's id
    blobs/f/0/f0…              the blobs that state.db refers to: hard links if the disk allows them, else copies

The next backup into the same folder creates another snapshot folder and adds new blobs. Then it replaces the manifest. Finally it
deletes the old snapshot folder and the blobs that the new backup does not need. So after the first backup, the folder always
contains a complete backup, even after a crash or on a full disk.
"""
