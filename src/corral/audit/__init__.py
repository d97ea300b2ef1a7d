"""The audit: who called which operation, from where, and with which result. It is kept in files of the data folder."""
