"""The handlers of requests, one folder per AWS service. `operations/services.py` has the table of these folders."""
