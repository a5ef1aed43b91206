from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.setup.host_keys import presented_keys

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_a_banner_in_another_encoding_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = tmp_path / "ssh-keyscan"
    scan.write_text(
        "#!/bin/sh\n\n"
        r"printf '# login:22 SSH-2.0-caf\351\n' >&2"
        "\n"
        r"printf '# caf\351\nlogin ssh-rsa AAAAB\nlogin ssh-ed25519 AAAAC\n'"
        "\n"
    )
    scan.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert presented_keys("login", 22) == ["login ssh-ed25519 AAAAC", "login ssh-rsa AAAAB"]
