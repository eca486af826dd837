// BullMQ: one Worker; of what is done, the last 1,000 are kept. Groups are in its commercial edition only.
import { need, orders, produce, role, run } from "./conversation.mjs";

const { Queue, Worker } = need("bullmq");
const { hostname: host, port } = new URL(orders.redis);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };

if (role === "produce") {
  const queue = new Queue("mail", { connection, defaultJobOptions: { removeOnComplete: { count: 1000 } } });
  await queue.waitUntilReady();
  await produce({
    batch: 1000,
    send: (task) => queue.add("mail", task),
    sendMany: (tasks) => queue.addBulk(tasks.map((data) => ({ name: "mail", data }))),
    left: async () => {
      const counts = await queue.getJobCounts("wait", "active", "delayed");
      return counts.wait + counts.active + counts.delayed;
    },
  });
} else if (role === "work") {
  new Worker("mail", (job) => run(job.data), { connection, concurrency: orders.concurrency });
}
