# Increments a counter under a lock of redis-py: PORT NAME ROUNDS, in the folder of the counter.
import os
import sys
import time

import redis

port, name, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
client = redis.Redis(host="127.0.0.1", port=port)
for _ in range(rounds):
    with client.lock(name, timeout=30, sleep=0.01):
        open("probe", "x").close()
        with open("counter") as counter:
            number = int(counter.read())
        time.sleep(0.001)
        with open("counter", "w") as counter:
            counter.write(str(number + 1))
        os.remove("probe")
