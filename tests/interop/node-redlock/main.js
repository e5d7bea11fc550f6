// node-redlock 4 or 5 behind the lines that tests/interop/programs.py describes. Its tries are 100 to 300 ms apart, as
// by default.
"use strict";

const readline = require("node:readline");
const Redis = require("ioredis");

const [version, ...urls] = process.argv.slice(2);
const RETRIES = 25; // for 5 s on average, where the default is 10

const clients = urls.map(
  // With the defaults of ioredis a dead node hangs node-redlock.
  (url) => new Redis(url, { maxRetriesPerRequest: 0, enableOfflineQueue: false, commandTimeout: 5000 })
);

/** Version 4 throws `LockError` where others hold the lock. */
function version4() {
  const Redlock = require("redlock4");
  const locks = new Redlock(clients, { retryCount: RETRIES });
  return {
    acquire: (name, lease) => locks.lock(name, lease),
    release: (lock) => lock.unlock(),
    taken: (error) => error instanceof Redlock.LockError,
  };
}

/** Version 5 throws `ExecutionError` where others hold the lock; the retries are given to each acquire. */
function version5() {
  const { default: Redlock, ExecutionError } = require("redlock5");
  const locks = new Redlock(clients, { retryCount: 0 });
  return {
    acquire: (name, lease) => locks.acquire([name], lease, { retryCount: RETRIES }),
    release: (lock) => lock.release(),
    taken: (error) => error instanceof ExecutionError,
  };
}

const library = version === "4" ? version4() : version5();
const held = new Map();

async function execute(verb, worker, name, lease) {
  try {
    if (verb === "acquire") {
      held.set(worker, await library.acquire(name, Number(lease)));
      return "won";
    }
    await library.release(held.get(worker));
    return "released";
  } catch (error) {
    return verb === "acquire" && library.taken(error) ? "lost" : `failed ${error.message}`;
  }
}

async function main() {
  await Promise.all(clients.map((client) => new Promise((ready) => client.once("ready", ready))));
  console.log("ready");
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", async (line) => {
    const words = line.split(" ");
    const reply = await execute(...words);
    console.log(`${words[1]} ${reply.replaceAll("\n", " ")}`);
  });
  lines.on("close", () => process.exit());
}

main();
