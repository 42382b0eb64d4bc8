# SPDX-License-Identifier: Apache-2.0
"""Circles in graphs, which are dicts from a node to the set of nodes that it sees."""


def reachable(graph, start):
    """All nodes that `start` sees, directly or through others."""
    found, waiting = set(), list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += graph[node]
    return found


def circles(graph):
    """The groups of nodes that see each other, each sorted."""
    seen = {node: reachable(graph, node) for node in graph}
    return sorted(
        {
            tuple(sorted(other for other in seen[node] if node in seen[other]))
            for node in graph
            if node in seen[node]
        }
    )


def grouped(graph, group_of):
    """The graph of groups of nodes, without what lies inside a group."""
    groups = {group_of(node): set() for node in graph}
    for node, targets in graph.items():
        groups[group_of(node)] |= {group_of(target) for target in targets} - {group_of(node)}
    return groups
