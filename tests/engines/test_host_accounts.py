"""The Unix accounts of users: which of them a host says it has."""

from __future__ import annotations

import os
import pwd

import pytest

from corral.node.account_process import NoAccount, find_account

OTHER = next((each for each in pwd.getpwall() if each.pw_uid not in (0, os.getuid())), None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other accounts")
@pytest.mark.parametrize(
    "name, why",
    [
        ("root", "as Corral itself"),
        ("no-such-account", "useradd no-such-account"),
        ("", "not the name"),
        ("0", "not the name"),
        ("a:b", "not the name"),
        ("-x", "not the name"),
        ("a\nb", "not the name"),
        ("../a", "not the name"),
        ("a" * 1000, "not the name"),
    ],
)
def test_accounts_that_no_run_may_have(name, why):
    with pytest.raises(NoAccount, match=why):
        find_account(name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_without_root_there_is_no_account():
    with pytest.raises(NoAccount, match="does not run as root"):
        find_account("ann")


def test_an_agent_answers_with_the_accounts_that_its_host_has(node, core):
    assert OTHER is not None
    known = {OTHER.pw_name: OTHER.pw_uid} if os.geteuid() == 0 else {}
    core.names = [OTHER.pw_name, "no-such-account", "root"]
    node.start_agent("--gpus", "none")
    core.until(lambda: core.accounts == [known], "answered the welcome")
    core.name_accounts("no-such-account")
    core.until(lambda: core.accounts[1:] == [{}], "answered a change")
