"""Every host draws its share of one sparse list of paths, alike on all hosts and in any order of the map."""

import random
from collections import Counter

from ingest.fabric.mesh_paths import Endpoint, class_of, endpoints_in, lean_list


def hall(hosts, rails, hosts_per_leaf=32):
    return [
        Endpoint(
            host=f"h{host}",
            nic=f"n{rail}",
            address=f"10.{rail}.0.{host}",
            rail=rail,
            leaf=f"leaf-{rail}-{host // hosts_per_leaf}",
        )
        for host in range(hosts)
        for rail in range(rails)
    ]


def names(paths):
    return {path.name for path in paths}


def test_hosts_draw_their_own_shares_of_the_same_list():
    endpoints = hall(64, 2)
    whole = names(lean_list(endpoints))
    shares = [names(lean_list(endpoints, f"h{host}")) for host in range(64)]
    assert sum(map(len, shares)) == len(whole)
    assert set().union(*shares) == whole


def test_the_order_of_the_map_changes_nothing():
    endpoints = hall(40, 2)
    shuffled = random.Random(1).sample(endpoints, len(endpoints))
    assert names(lean_list(endpoints)) == names(lean_list(shuffled))


def test_each_port_probes_eight_neighbours_each_pair_of_leaves_two_paths_and_each_port_one_other_rail():
    paths = lean_list(hall(128, 4))
    classes = Counter(path.path_class for path in paths)
    ports, leaves_per_rail, rails = 128 * 4, 4, 4
    assert classes == {
        "same_leaf": ports * 8,
        "same_rail": rails * leaves_per_rail * (leaves_per_rail - 1) * 2,
        "cross_rail": ports,
    }
    assert {class_of(path.source, path.target) == path.path_class for path in paths} == {True}


def test_every_port_is_probed_by_its_neighbours_as_often_as_it_probes():
    local = [path for path in lean_list(hall(64, 1)) if path.path_class == "same_leaf"]
    assert set(Counter(path.target.name for path in local).values()) == {8}


def test_no_host_probes_itself_and_no_path_is_drawn_twice():
    paths = lean_list(hall(10, 8))
    assert all(path.source.host != path.target.host for path in paths)
    assert len(names(paths)) == len(paths)


def test_a_small_leaf_is_probed_whole_and_one_port_alone_has_no_path():
    assert len(lean_list(hall(3, 1))) == 6
    assert lean_list(hall(1, 8)) == []


def test_ports_of_unknown_place_are_one_neighbourhood():
    endpoints = [Endpoint(host=f"h{n}", nic="eth0", address="x") for n in range(5)]
    paths = lean_list(endpoints)
    assert len(paths) == 20
    assert {path.path_class for path in paths} == {"other"}


def test_only_ports_with_an_address_are_taken_from_the_map():
    nic = {"kind": "nic", "asset": "h1/mlx5_0", "host": "h1", "rail": 3, "leaf": "l3"}
    assert endpoints_in([nic | {"address": "10.0.0.1"}, nic | {"address": None}, nic, {"kind": "host"}]) == [
        Endpoint(host="h1", nic="mlx5_0", address="10.0.0.1", rail=3, leaf="l3")
    ]
