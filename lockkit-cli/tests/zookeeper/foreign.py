# Increments a counter under a lock of Kazoo: HOSTS PATH ROUNDS, in the folder of the counter.
import os
import sys
import time

from kazoo.client import KazooClient

hosts, path, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = KazooClient(hosts=hosts)
client.start()
for _ in range(rounds):
    with client.Lock(path, "kazoo"):
        open("probe", "x").close()
        with open("counter") as counter:
            number = int(counter.read())
        time.sleep(0.001)
        with open("counter", "w") as counter:
            counter.write(str(number + 1))
        os.remove("probe")
client.stop()
