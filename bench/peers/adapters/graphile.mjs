// graphile-worker. "local": what its documentation names for high throughput, a local queue and completions in batches.
// "queues": a named queue a company, whose tasks it runs one at a time.
import { need, orders, produce, role, run } from "./conversation.mjs";

const { Pool } = need("pg");
const { Logger, makeWorkerUtils, run: work, runMigrations } = need("graphile-worker");
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});

if (role === "install") {
  await runMigrations({ connectionString: orders.postgres, logger });
} else if (role === "produce") {
  const pgPool = new Pool({ connectionString: orders.postgres, max: 1 });
  pgPool.on("error", () => {});
  const utils = await makeWorkerUtils({ pgPool, logger });
  const spec = (task) => (orders.variant === "queues" ? { queueName: task.company } : {});
  await produce({
    batch: 50000,
    send: (task) => utils.addJob("mail", task, spec(task)),
    sendMany: (tasks) =>
      utils.addJobs(tasks.map((task) => ({ identifier: "mail", payload: task, ...spec(task) }))),
    left: async () => {
      const { rows } = await pgPool.query("select count(*)::int as left from graphile_worker._private_jobs");
      return rows[0].left;
    },
  });
} else {
  const local = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  const worker = {
    connectionString: orders.postgres,
    concurrentJobs: orders.concurrency,
    maxPoolSize: orders.concurrency + 1,
    logger,
    ...(orders.variant === "local" ? local : {}),
  };
  const runner = await work({ preset: { worker }, taskList: { mail: run } });
  await runner.promise;
}
