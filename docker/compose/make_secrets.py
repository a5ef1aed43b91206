"""Create the secrets of compose.yaml. Usage: python3 docker/compose/make_secrets.py [FOLDER].

Writes one file for each secret; existing files are not changed. The folder is private. Its files are readable for
everyone, because they are mounted one by one into containers whose users differ.
"""

from __future__ import annotations

import base64
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).with_name("secrets")


def make_secrets(folder: Path) -> list[str]:
    """Write the missing files.

    :param folder: created if it does not exist
    :returns: names of the files that were written
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    written: list[str] = []

    def kept(name: str, content: str) -> str:
        file = folder / name
        if not file.exists():
            draft = folder / f"{name}.new"
            draft.write_text(content)
            draft.chmod(0o444)
            draft.replace(file)
            written.append(name)
        return file.read_text()

    database = f"airflow:{kept('postgres_password', secrets.token_hex(24))}@postgres:5432/airflow"
    kept("sql_alchemy_conn", f"postgresql+psycopg2://{database}")
    kept("sql_alchemy_conn_async", f"postgresql+asyncpg://{database}")
    kept("result_backend", f"db+postgresql+psycopg2://{database}")
    broker = secrets.token_hex(24)
    lines = kept("redis_conf", f"requirepass {broker}\nappendonly yes\ndir /data\n").splitlines()
    broker = next(line.split()[1] for line in lines if line.startswith("requirepass "))
    kept("broker_url", f"redis://:{broker}@redis:6379/0")
    for name in ("session_key", "jwt_secret"):
        kept(name, secrets.token_hex(32))
    kept("fernet_key", base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
    return written


if __name__ == "__main__":
    made = make_secrets(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    print(f"made {', '.join(made)}" if made else "all secrets exist")
