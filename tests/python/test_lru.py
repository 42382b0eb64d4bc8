# SPDX-License-Identifier: Apache-2.0
"""The one class of caches."""

import threading

from magi_attention.common._lru import LruCache


def test_the_key_used_longest_ago_is_forgotten():
    cache = LruCache(3)
    for key in "abc":
        cache[key] = key.upper()
    assert cache.get("a") == "A" and cache.get("x") is None and cache.get("x", 1) == 1
    cache["d"] = "D"
    assert list(cache) == ["c", "a", "d"]
    cache["c"] = None  # a value like any other, and a use
    cache["e"] = "E"
    assert list(cache) == ["d", "c", "e"] and cache.get("c", 1) is None


def test_a_smaller_size_holds_from_the_next_key_on():
    cache = LruCache(4, {key: key for key in "abcd"})
    cache.max_size = 2
    cache["e"] = "e"
    assert list(cache) == ["d", "e"]


def test_threads_that_share_a_cache():
    cache, failures = LruCache(8), []

    def use(offset: int) -> None:
        try:
            for i in range(3000):
                key = (i * offset) % 20
                if cache.get(key, key) != key:
                    failures.append(key)
                cache[key] = key
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(offset,)) for offset in (1, 3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(cache) <= 8
