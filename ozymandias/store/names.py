"""DNS records as CoreDNS's etcd plugin reads them: one key per record, a small JSON value.

One spelling for all: a record is deleted only while it still has the very value that was written
for it, so a slot that has moved never loses its new home's record to its old one.
"""

from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii

from ozymandias.model.routing import DnsRecord
from ozymandias.ports import Compare, Delete, Op, Put, Txn
from ozymandias.store import keys


def value_of(record: DnsRecord) -> bytes:
    # As `json.dumps` spells it: a lost node may have had hundreds of names.
    port = f', "port": {record.port}' if record.port else ""
    host = encode_basestring_ascii(record.address)
    return f'{{"host": {host}{port}, "ttl": {record.ttl_seconds}}}'.encode()


def put_records(records: Iterable[DnsRecord], lease: int) -> Iterator[Op]:
    for record in records:
        yield Put(keys.dns(record.name), value_of(record), lease)


def delete_records(records: Iterable[DnsRecord]) -> Iterator[Op]:
    for record in records:
        key = keys.dns(record.name)
        yield Txn((Compare(key, "value", "=", value_of(record)),), (Delete(key),))
