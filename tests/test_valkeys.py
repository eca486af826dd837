"""The Valkey servers that tests are given keep what tests rely on."""

import pytest
import redis

from tests.valkeys import ValkeyCluster, Valkeys, forget


def test_the_shared_server_writes_down_what_it_is_told(valkey_url: str, valkey_cell: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        client.set(f"{{{valkey_cell}}}:key", "value")
        assert client.execute_command("WAITAOF", 1, 0, 5_000)[0] == 1
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_what_a_cell_has_is_deleted_with_it(valkey_url: str, valkey_cell: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        client.set(f"{{{valkey_cell}}}:key", "value")
        client.set(f"{{{valkey_cell}-2}}:key", "value")
        forget(valkey_url, f"{valkey_cell}-2")
        assert list(client.scan_iter(match=f"*{valkey_cell}*")) == [f"{{{valkey_cell}}}:key".encode()]


def test_a_killed_server_comes_back_with_what_was_written(valkey: Valkeys) -> None:
    server = valkey()
    with server.client() as client:
        client.set("key", "value")
        client.execute_command("WAITAOF", 1, 0, 5_000)
    server.kill()
    assert not server.answers()

    server.start()
    assert server.execute("GET", "key") == "value"


def test_a_stopped_server_has_written_everything(valkey: Valkeys) -> None:
    server = valkey(appendfsync="no")
    server.execute("SET", "key", "value")
    server.restart()
    assert server.execute("GET", "key") == "value"


def test_a_server_has_the_settings_that_a_test_wants(valkey: Valkeys) -> None:
    server = valkey(maxmemory="1mb")
    with pytest.raises(redis.OutOfMemoryError):
        server.execute("SET", "key", "value")


def test_the_slots_of_a_cluster_are_shared_out(valkey_cluster: ValkeyCluster) -> None:
    with redis.RedisCluster.from_url(valkey_cluster.nodes[0].url) as client:
        owners = {client.get_node_from_key(str(number)).port for number in range(100)}
        for number in range(100):
            client.set(f"test-slots-{number}", number)
            assert client.getdel(f"test-slots-{number}") == str(number).encode()
    assert owners == {node.port for node in valkey_cluster.nodes}
