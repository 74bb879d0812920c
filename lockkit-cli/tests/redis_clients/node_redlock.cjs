// Increments a counter under a lock of node-redlock: PORT NAME ROUNDS, in the folder of the counter.
const fs = require("node:fs");
const { setTimeout: pause } = require("node:timers/promises");

const { Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

async function main([port, name, rounds]) {
  const client = new Redis(Number(port), "127.0.0.1");
  const redlock = new Redlock([client], { retryCount: -1, retryDelay: 10, retryJitter: 10 });
  for (let round = 0; round < Number(rounds); round += 1) {
    const lock = await redlock.acquire([name], 30_000);
    fs.closeSync(fs.openSync("probe", "wx"));
    const number = Number(fs.readFileSync("counter", "utf8"));
    await pause(1);
    fs.writeFileSync("counter", `${number + 1}`);
    fs.unlinkSync("probe");
    await lock.release();
  }
  await client.quit();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
