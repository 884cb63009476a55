"""`ozymandias-dns` as it is installed: etcd behind TLS and a password, IPv6, port 53, no root."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from ozymandias.store.etcd import Credentials, EtcdStore
from ozymandias.store.names import put_records
from tests.coredns_server import free_port
from tests.etcd_server import EtcdCluster
from tests.integration.edge.dns_questions import found_at, job_records
from tests.integration.edge.test_processes import process, wait_for

NOBODY = 65534
ASK = """
import socket
query = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\3web\\3ozy\\10internal\\0\\0\\1\\0\\1"
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(5)
        asking.sendto(query, (address, 53))
        print(asking.recv(512)[3] & 15)
"""


async def test_store_behind_tls_and_password(tmp_path: Path):
    """With certificates and a user that may only read names, on IPv4 and IPv6; with a wrong
    password the names are not known, which is not the same as missing."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    client = authority.issue_cert("dns.example", common_name="nobody-in-particular")
    files = {
        "ca": authority.cert_pem,
        "server": server.private_key_and_cert_chain_pem,
        "cert": client.cert_chain_pems[0],
        "key": client.private_key_pem,
    }
    for name, blob in files.items():
        blob.write_to_path(str(tmp_path / name))
    (tmp_path / "right").write_text("word\n")
    (tmp_path / "wrong").write_text("guess\n")
    options = [f"--{option}={tmp_path / 'server'}" for option in ("cert-file", "key-file")]
    options += ["--client-cert-auth", f"--trusted-ca-file={tmp_path / 'ca'}"]
    options += ["--auth-token-ttl=1"]
    ctl = [f"--{option}={tmp_path / name}" for option, name in (("cacert", "ca"), ("cert", "cert"))]
    ctl += [f"--key={tmp_path / 'key'}"]
    with EtcdCluster.start(1, scheme="https", options=options, ctl_options=ctl) as etcd:
        credentials = Credentials(
            ca=files["ca"].bytes(), cert=files["cert"].bytes(), key=files["key"].bytes()
        )
        store = EtcdStore.connect(etcd.endpoints, credentials)
        records = job_records("web", "default", ["10.1.0.1", "10.1.0.2"])
        await store.txn((), list(put_records(records, 0)))
        await store.aclose()
        etcd.ctl("user", "add", "root:secret")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("user", "add", "dns:word")
        etcd.ctl("role", "add", "names")
        etcd.ctl("role", "grant-permission", "names", "read", "/skydns/", "/skydns0")
        etcd.ctl("user", "grant-role", "dns", "names")
        etcd.ctl("auth", "enable")
        for password, expected in (("right", ["10.1.0.1", "10.1.0.2"]), ("wrong", "SERVFAIL")):
            port = free_port()
            settings = {
                "etcd": {
                    "endpoints": list(etcd.endpoints),
                    **{f"{kind}_file": str(tmp_path / kind) for kind in ("ca", "cert", "key")},
                    "user": "dns",
                    "password_file": str(tmp_path / password),
                },
                "dns": {"listen": f"127.0.0.1:{port}", "host_listen": f"[::1]:{port}"},
            }
            with process("dns", tmp_path, settings):
                for address in ("127.0.0.1", "::1"):
                    await wait_for(found_at(port, "web.default", address=address), expected)


@contextmanager
def namespace() -> Iterator[str]:
    """A network of its own with nothing but loopback, where port 53 is nobody's."""
    name = f"ozy-dns-{secrets.token_hex(4)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def unprivileged(name: str, *capabilities: str) -> list[str]:
    """Runs a command in the namespace as nobody, with these capabilities and no others."""
    # Reading any file stands in for an installation that everybody may read.
    listed = ",".join(f"+{c}" for c in ("dac_read_search", *capabilities))
    command = ["nsenter", f"--net=/run/netns/{name}", "setpriv", "--no-new-privs"]
    command += ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return [*command, "--inh-caps", f"-all,{listed}", "--ambient-caps", listed]


def test_port_53_without_root(tmp_path: Path):
    """An unprivileged user with CAP_NET_BIND_SERVICE answers on port 53 over IPv4 and IPv6, also
    without etcd; without the capability the process says what is wrong and ends."""
    file = tmp_path / "ozymandias.toml"
    settings = {"listen": "127.0.0.1:53", "host_listen": "[::1]:53", "forwarders": ["127.0.0.9"]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    file.write_text('[etcd]\nendpoints = ["http://127.0.0.1:1"]\n[dns]\n' + "\n".join(lines))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OZY_", "NOTIFY_"))}
    command = [sys.executable, "-m", "ozymandias.daemon.dns", "--config", str(file)]
    notices = str(tmp_path / "notify")
    with namespace() as name, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        failed = subprocess.run(
            [*unprivileged(name), *command], capture_output=True, text=True, env=environment
        )
        assert failed.returncode == 2 and "Permission denied" in failed.stderr, failed
        ready.bind(notices)
        os.chmod(notices, 0o666)
        os.chmod(tmp_path, 0o755)
        ready.settimeout(20)
        environment["NOTIFY_SOCKET"] = notices
        running = subprocess.Popen(
            [*unprivileged(name, "net_bind_service"), *command], env=environment
        )
        try:
            assert b"READY=1" in ready.recv(200)
            status = Path(f"/proc/{running.pid}/status").read_text()
            assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}" in status
            asking = ["nsenter", f"--net=/run/netns/{name}", sys.executable, "-c", ASK]
            answers = subprocess.run(asking, capture_output=True, text=True, check=True)
            assert answers.stdout.split() == ["2", "2"]  # SERVFAIL: not read from etcd yet
        finally:
            running.send_signal(signal.SIGTERM)
            assert running.wait(20) == 0
