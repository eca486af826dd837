// What the files of all Node peers share, as adapter.py does for Python: the orders, the record of each run, and the
// talk with the harness, a line of JSON each way.
import fs from "node:fs";
import { createRequire } from "node:module";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

export const need = createRequire(process.env.PEER_PACKAGES + "/package.json");
export const orders = JSON.parse(process.env.PEER_ORDERS);
export const role = process.argv[2];

const now = () => Number(process.hrtime.bigint()) / 1e9;
const records = orders.records ? fs.openSync(orders.records, "a") : -1;
const record = Buffer.alloc(24);

export async function run(task) {
  const began = now();
  if (orders.sleep_seconds) await sleep(orders.sleep_seconds * 1000);
  record.writeBigInt64LE(BigInt(task.number), 0);
  record.writeDoubleLE(began, 8);
  record.writeDoubleLE(now(), 16);
  fs.writeSync(records, record);
}

function makeTasks({ first, count, company }) {
  const turn = (number) => ((Math.floor(number / 1000) % 20) + 20) % 20;
  return Array.from({ length: count }, (_, place) => ({
    to: "somebody@example.com",
    subject: "Hi",
    number: first + place,
    company: company ?? `company-${turn(first + place)}`,
  }));
}

export async function produce({ batch, send, sendMany, left }) {
  const answer = (said) => process.stdout.write(JSON.stringify(said) + "\n");
  answer({ batch });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    if (asked.do === "left") {
      answer({ left: await left() });
      continue;
    }
    const tasks = makeTasks(asked);
    if (asked.do === "spaced") {
      const sentAt = [];
      for (const [place, task] of tasks.entries()) {
        await sleep(asked.gaps[place] * 1000);
        sentAt.push(now());
        await send(task);
      }
      answer({ sent_at: sentAt });
      continue;
    }
    const began = now();
    if (asked.do === "many")
      for (let start = 0; start < tasks.length; start += batch) await sendMany(tasks.slice(start, start + batch));
    else for (const task of tasks) await send(task);
    answer({ seconds: now() - began });
  }
  process.exit(0);
}
