// pg-boss with LISTEN/NOTIFY and batches, fetching on while a batch comes back full; a batch is completed as one.
// "groups": a group a company, of which 4 of 5 workers may work at once.
import { need, orders, produce, role, run } from "./conversation.mjs";

const { PgBoss } = need("pg-boss");
const { Pool } = need("pg");
const hasGroups = orders.variant === "groups";
const boss = new PgBoss({
  connectionString: orders.postgres,
  max: role === "work" ? 10 : 1,
  useListenNotify: role === "work",
  supervise: role === "work",
  schedule: false,
});
boss.on("error", (error) => console.error(error));
await boss.start();

const options = (task) => (hasGroups ? { group: { id: task.company } } : {});
if (role === "install") {
  await boss.createQueue("mail", { notify: true });
  process.exit(0);
} else if (role === "produce") {
  const pool = new Pool({ connectionString: orders.postgres, max: 1 });
  pool.on("error", () => {});
  await produce({
    batch: 50000,
    send: (task) => boss.send("mail", task, options(task)),
    sendMany: (tasks) => boss.insert("mail", tasks.map((task) => ({ data: task, ...options(task) }))),
    left: async () => {
      const { rows } = await pool.query(
        "select count(*)::int as left from pgboss.job where name = 'mail' and state < 'completed'",
      );
      return rows[0].left;
    },
  });
} else {
  const half = Math.max(1, Math.floor(orders.concurrency / 2));
  const batches = hasGroups
    ? { batchSize: 2, localConcurrency: half, localGroupConcurrency: Math.max(1, half - 1) }
    : { batchSize: orders.concurrency };
  await boss.work("mail", { ...batches, burstWhenBatchFull: true }, (jobs) =>
    Promise.all(jobs.map((job) => run(job.data))),
  );
}
