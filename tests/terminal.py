"""A real terminal for tests: tmux with a separate server, a bash, and a fixed size."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from eventually import eventually

PROMPT = "ready> "


class Terminal:
    def __init__(self, folder: Path, environment: dict[str, str], columns: int, rows: int = 30) -> None:
        self.columns, self.rows = columns, rows
        self._socket = folder / "tmux"
        self._environment = environment
        tmux = shutil.which("tmux")
        assert tmux, "these tests need tmux: apt-get install tmux"
        self._tmux = [tmux, "-S", str(self._socket), "-f", "/dev/null"]
        settings = [f"{name}={value}" for name, value in environment.items() if name not in ("TERM", "COLUMNS", "LINES", "TMUX")]
        shell = ["env", "-i", *settings, "TERM=screen-256color", f"PS1={PROMPT}", "bash", "--norc", "--noprofile"]
        size = ["-x", str(columns), "-y", str(rows)]
        self._do("new-session", "-d", *size, shlex.join(["cd", str(folder)]) + " && exec " + shlex.join(shell))
        self.until(PROMPT.strip())

    def type(self, text: str) -> None:
        """Type the text and press Enter."""
        self._do("send-keys", "-l", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by their tmux names: C-c, q, Enter."""
        self._do("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._do("resize-window", "-x", str(columns), "-y", str(rows))
        self.columns, self.rows = columns, rows

    def screen(self) -> list[str]:
        """The lines of the screen, without the empty lines at the end."""
        return self._do("capture-pane", "-p").rstrip("\n").split("\n")

    def until(self, *texts: str) -> list[str]:
        """Wait until all these texts are on the screen, and return the screen.

        A screen can be seen while it is drawn. Who reads more of it than these texts gives its last line, too.
        """

        def seen() -> list[str] | None:
            screen = self.screen()
            return screen if all(text in "\n".join(screen) for text in texts) else None

        try:
            return eventually(seen)
        except AssertionError:
            raise AssertionError(f"not all of {texts} on:\n" + "\n".join(self.screen())) from None

    def until_gone(self, text: str) -> None:
        try:
            eventually(lambda: text not in "\n".join(self.screen()))
        except AssertionError:
            raise AssertionError(f"still {text!r} on:\n" + "\n".join(self.screen())) from None

    def prompts(self) -> int:
        return sum(line.startswith(PROMPT.strip()) for line in self.screen())

    def until_prompt(self) -> list[str]:
        """Wait until the shell prompts for a command (the last line is a bare prompt), and return the screen."""
        try:
            return eventually(lambda: screen if (screen := self.screen())[-1].strip() == PROMPT.strip() else None)
        except AssertionError:
            raise AssertionError("no prompt on:\n" + "\n".join(self.screen())) from None

    def settings(self) -> str:
        """The terminal's own settings (stty -g)."""
        tty = self._do("display-message", "-p", "#{pane_tty}").strip()
        return subprocess.check_output(["stty", "-F", tty, "-g"], text=True).strip()

    def is_alternate(self) -> bool:
        return self._do("display-message", "-p", "#{alternate_on}").strip() == "1"

    def cursor_is_shown(self) -> bool:
        return self._do("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, env=self._own())

    def _do(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], capture_output=True, env=self._own())
        assert done.returncode == 0, f"tmux {words}: {done.stderr.decode()}"
        return done.stdout.decode()

    def _own(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": self._environment["HOME"], "LC_ALL": "C.UTF-8"}
