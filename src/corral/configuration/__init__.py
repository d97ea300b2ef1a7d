"""corral.toml, the configuration file in the data folder. The server and the command line read and change it with this package.

settings.py     declares every setting: its name, its default and its rule
file.py         reads and checks the file, and stores changed settings in it
toml_edit.py    changes single lines of a TOML text, so that comments and order stay

A setting has a table and a key in the file. Its name is `TABLE.KEY`, for example `up.port`.
"""
