// Measures node-redlock. The protocol is in ../README.md.

import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const [, , peer, leaseText, ...servers] = process.argv;
const lease = Number(leaseText);
const answer = (what) => process.stdout.write(JSON.stringify(what) + "\n");
const now = () => process.hrtime.bigint();
const since = (start) => Number(now() - start);

let Redis, Redlock;

/** A client with connections of its own: one to each server. */
async function connect() {
  const redis = servers.map((server) => new Redis(server));
  await Promise.all(redis.map((one) => one.ping()));
  // It gives up after 10 tries unless told otherwise; an acquisition here waits.
  return new Redlock(redis, { retryCount: -1 });
}

const workloads = {
  async uncontended(name, pairs) {
    const client = await connect();
    const nanoseconds = [];
    for (let pair = 0; pair < Number(pairs); pair++) {
      const start = now();
      await (await client.acquire([name], lease)).release();
      nanoseconds.push(since(start));
    }
    return { nanoseconds };
  },

  async handover(name, ...waits) {
    const [holder, waiter] = [await connect(), await connect()];
    const nanoseconds = [];
    for (const wait of waits) {
      const held = await holder.acquire([name], lease);
      const waiting = waiter.acquire([name], lease).then((lock) => [now(), lock]);
      await sleep(Number(wait));
      const start = now();
      await held.release();
      const [got, lock] = await waiting;
      nanoseconds.push(Number(got - start));
      await lock.release();
    }
    return { nanoseconds };
  },

  async contended(name, clients, section, milliseconds) {
    const connected = await Promise.all(Array.from({ length: Number(clients) }, connect));
    const use = async (client, index) => (await client.acquire([`${name}-${index}`], lease)).release();
    await Promise.all(connected.map(use));
    const end = now() + BigInt(milliseconds) * 1_000_000n;
    let isHeld = false;
    const contend = async (client) => {
      const waits = [];
      while (now() < end) {
        const start = now();
        const lock = await client.acquire([name], lease);
        waits.push(since(start));
        if (Number(section) > 0) {
          if (isHeld) throw new Error("two of its clients held the same lock");
          isHeld = true;
          await sleep(Number(section) / 1000);
          isHeld = false;
        }
        await lock.release();
      }
      return waits;
    };
    return { clients: await Promise.all(connected.map(contend)), seconds: Number(milliseconds) / 1000 };
  },

  async hold(name) {
    // Extended by the library while the promise is pending, which is for good.
    const client = await connect();
    await new Promise((resolve, reject) => {
      client.using([name], lease, () => new Promise(() => resolve())).catch(reject);
    });
    return { held: true };
  },
};

try {
  ({ default: Redis } = await import("ioredis"));
  ({ default: Redlock } = await import("redlock"));
  await connect();
  const dependencies = JSON.parse(readFileSync(new URL("package.json", import.meta.url))).dependencies;
  answer({ peer, version: dependencies.redlock });
} catch (error) {
  answer({ cannot: String(error) });
  process.exit(0);
}
for await (const line of createInterface({ input: process.stdin })) {
  const [workload, ...rest] = line.split(" ");
  try {
    answer(await workloads[workload](...rest));
  } catch (error) {
    answer({ error: String(error) });
  }
}
process.exit(0);
