"""Measures lock libraries of Python. The protocol is in ../README.md."""

import importlib.metadata
import json
import multiprocessing
import random
import sys
import threading
import time
from urllib.parse import urlsplit


class Client:
    """One client, with connections of its own."""

    def __init__(self):
        self.locks = {}

    def lock(self, name):
        """A lock of that name: what a user makes once and takes often."""
        if name not in self.locks:
            self.locks[name] = self.make(name)
        return self.locks[name]

    def acquire(self, name):
        lock = self.lock(name)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        return lock

    def release(self, lock):
        lock.release()


class RedisPy(Client):
    """redis-py's Lock, polling every tenth of a second, as it does by default."""

    distribution = "redis"

    def __init__(self, lease, servers):
        import redis

        super().__init__()
        self.lease = lease
        self.client = redis.Redis.from_url(servers[0])
        self.client.ping()

    def make(self, name):
        return self.client.lock(name, timeout=self.lease)


class PythonRedisLock(RedisPy):
    """python-redis-lock, which waits with BLPOP."""

    distribution = "python-redis-lock"

    def make(self, name):
        import redis_lock

        return redis_lock.Lock(self.client, name, expire=max(1, round(self.lease)))


class Kazoo(Client):
    """kazoo's Lock; its session is the lease. Taken again, it looks for what it may have left behind."""

    distribution = "kazoo"

    def __init__(self, lease, servers):
        from kazoo.client import KazooClient

        super().__init__()
        hosts = ",".join(urlsplit(server).netloc for server in servers)
        self.client = KazooClient(hosts=hosts, timeout=lease)
        self.client.start()

    def make(self, name):
        return self.client.Lock("/peers/" + name)


class Tooz(Client):
    """tooz, on whatever backend the URL names."""

    distribution = "tooz"

    def __init__(self, lease, servers):
        from tooz import coordination

        super().__init__()
        url, seconds = servers[0], max(1, round(lease))
        # What it calls its lease, where it has one.
        options = {"redis": f"?lock_timeout={seconds}", "zookeeper": f"?timeout={seconds}"}
        url += options.get(urlsplit(url).scheme, "")
        self.coordinator = coordination.get_coordinator(url, b"%d" % random.getrandbits(64))
        self.coordinator.start(start_heart=True)

    def make(self, name):
        return self.coordinator.get_lock(name.encode())


PEERS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock, "kazoo": Kazoo, "tooz": Tooz}


def uncontended(connect, name, pairs):
    client = connect()
    nanoseconds = []
    for _ in range(int(pairs)):
        start = time.perf_counter_ns()
        client.release(client.acquire(name))
        nanoseconds.append(time.perf_counter_ns() - start)
    return {"nanoseconds": nanoseconds}


def handover(connect, name, *waits):
    """Two threads, each with a client of its own; the holder lets go after so many milliseconds."""
    holder, waiter = connect(), connect()
    nanoseconds = []
    for milliseconds in waits:
        lock = holder.acquire(name)
        asking = threading.Event()
        got = []

        def wait():
            asking.set()
            waiting = waiter.acquire(name)
            got.append(time.perf_counter_ns())
            waiter.release(waiting)

        thread = threading.Thread(target=wait)
        thread.start()
        asking.wait()
        time.sleep(int(milliseconds) / 1e3)
        start = time.perf_counter_ns()
        holder.release(lock)
        thread.join()
        nanoseconds.append(got[0] - start)
    return {"nanoseconds": nanoseconds}


def contend(connect, name, section, seconds, barrier, alone, answers, index):
    client = connect()
    client.release(client.acquire(f"{name}-{index}"))
    client.lock(name)
    waits = []
    barrier.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter_ns()
        lock = client.acquire(name)
        waits.append(time.perf_counter_ns() - start)
        if section:
            if not alone.acquire(block=False):
                answers.put((index, None))
                return
            time.sleep(section)
            alone.release()
        client.release(lock)
    answers.put((index, waits))


def contended(connect, name, clients, section, milliseconds):
    """A process for each client: Python runs one thread at a time."""
    clients, section, seconds = int(clients), int(section) / 1e6, int(milliseconds) / 1e3
    barrier, answers = multiprocessing.Barrier(clients), multiprocessing.Queue()
    alone = multiprocessing.Semaphore(1)
    processes = [
        multiprocessing.Process(
            target=contend,
            args=(connect, name, section, seconds, barrier, alone, answers, index),
            daemon=True,
        )
        for index in range(clients)
    ]
    for process in processes:
        process.start()
    # One that starves for so long is as good as stuck.
    waits = {}
    for _ in processes:
        index, waits[index] = answers.get(timeout=seconds + 60)
        if waits[index] is None:
            raise RuntimeError("two of its clients held the same lock")
    for process in processes:
        process.join()
    return {"clients": [waits[index] for index in range(clients)], "seconds": seconds}


def hold(connect, name, keep=[]):
    client = connect()
    keep.append((client, client.acquire(name)))
    return {"held": True}


def main():
    multiprocessing.set_start_method("fork")
    _, peer, lease, *servers = sys.argv

    def connect():
        return PEERS[peer](int(lease) / 1e3, servers)

    def answer(what):
        print(json.dumps(what), flush=True)

    try:
        connect()
        version = importlib.metadata.version(PEERS[peer].distribution)
        answer({"peer": peer, "version": version})
    except Exception as error:
        answer({"cannot": f"{type(error).__name__}: {error}"})
        return
    workloads = {"uncontended": uncontended, "handover": handover, "contended": contended, "hold": hold}
    for line in sys.stdin:
        workload, *arguments = line.split()
        try:
            answer(workloads[workload](connect, *arguments))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
