"""`python -m corral.server`: the server process that `corral up` starts."""

import gc

gc.disable()  # `startup.py` enables it again: objects that imports create stay in use, so to look for garbage is in vain

from corral.server.startup import main  # noqa: E402

if __name__ == "__main__":
    main()
