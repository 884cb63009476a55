"""CoreDNS's configuration, written from settings."""

import pytest

from ozymandias.edge.corefile import Corefile, render

ENDPOINTS = ("https://10.0.0.1:2379", "https://10.0.0.2:2379")


def test_the_whole_file() -> None:
    """Our zone from etcd with certificates, the rest forwarded, pages for health and figures."""
    text = render(
        Corefile(
            endpoints=ENDPOINTS,
            listen=("10.0.0.1", "127.0.0.1"),
            ca_file="/etc/ozymandias/ca.crt",
            cert_file="/etc/ozymandias/node.crt",
            key_file="/etc/ozymandias/node.key",
            forwarders=("9.9.9.9", "1.1.1.1"),
            metrics_listen="127.0.0.1:9153",
            health_listen="127.0.0.1:9154",
            ready_listen="127.0.0.1:9155",
        )
    )
    assert text.partition("\n")[2] == (
        """\
ozy.internal:53 {
    bind 10.0.0.1 127.0.0.1
    bufsize 1232
    errors
    prometheus 127.0.0.1:9153
    health 127.0.0.1:9154
    ready 127.0.0.1:9155
    cache 5 {
        serve_stale 1h verify 500ms
    }
    loadbalance
    etcd {
        path /skydns
        endpoint https://10.0.0.1:2379 https://10.0.0.2:2379
        tls /etc/ozymandias/node.crt /etc/ozymandias/node.key /etc/ozymandias/ca.crt
    }
}

.:53 {
    bind 10.0.0.1 127.0.0.1
    bufsize 1232
    errors
    prometheus 127.0.0.1:9153
    cache 30
    forward . 9.9.9.9 1.1.1.1
}
"""
    )


def test_the_least_file() -> None:
    """Without certificates, pages and forwarders there is our zone alone."""
    text = render(Corefile(endpoints=("http://127.0.0.1:2379",), forwarders=(), port=5353))
    assert "ozy.internal:5353 {" in text and "tls" not in text
    assert ".:5353" not in text and "forward" not in text
    assert "bind" not in text and "health" not in text and "prometheus" not in text


def test_etcds_certificate_is_checked_without_one_of_our_own() -> None:
    """A CA alone means TLS without a client's certificate."""
    text = render(Corefile(endpoints=ENDPOINTS, ca_file="/ca.crt"))
    assert "    tls /ca.crt\n" in text


@pytest.mark.parametrize(
    "corefile",
    [
        Corefile(endpoints=()),
        Corefile(endpoints=("http://a b",)),
        Corefile(endpoints=ENDPOINTS, domain="x {"),
        Corefile(endpoints=ENDPOINTS, cert_file="/only/the/cert"),
        Corefile(endpoints=ENDPOINTS, key_file="/only/the/key"),
        Corefile(endpoints=ENDPOINTS, forwarders=("9.9.9.9\n}",)),
        Corefile(endpoints=ENDPOINTS, port=0),
    ],
)
def test_what_would_be_another_directive_is_refused(corefile: Corefile) -> None:
    """A blank, brace or line end in a value is no way into the file."""
    with pytest.raises(ValueError, match=r"etcd|key|Corefile|port"):
        render(corefile)
