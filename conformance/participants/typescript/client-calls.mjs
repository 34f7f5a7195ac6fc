// Decides which call of the client each command of the participant protocol makes.

import { Client, TaskHandle } from "../../../sdk-typescript/dist/esm/index.js";
import { ms, sized, told, toldError, toOptions, toSchedule, toSpec, toTarget } from "./values.mjs";

const bounds = (fields) => ({ callDeadlineMs: ms(fields.call_deadline) });
const patience = (fields) => ({ timeoutMs: ms(fields.timeout) });
const outcome = (handle) =>
    handle instanceof TaskHandle
        ? { task_id: String(handle.id), duplicate: handle.duplicate }
        : toldError(handle);

function copies(task, count) {
    return Array.from({ length: count }, (_, n) =>
        task.key === undefined ? task : { ...task, key: `${task.key}-${n + 1}` },
    );
}

/** The commands for clients, by name. */
export function clientCommands(emit) {
    let client;
    let watching = new AbortController();
    return {
        start_client: ({ options }) => {
            client = new Client(toOptions(options));
        },
        close_client: () => client.close(),
        submit: async (fields) => outcome(await client.submit(toSpec(fields.task), bounds(fields))),
        submit_together: async (fields) => {
            const tasks = fields.tasks ?? copies(fields.task, fields.count);
            const calls = tasks.map((task) => client.submit(toSpec(task), bounds(fields)));
            const ends = await Promise.allSettled(calls);
            return { outcomes: ends.map((end) => outcome(end.value ?? end.reason)) };
        },
        submit_many: async (fields) => {
            const ends = await client.submitMany(fields.tasks.map(toSpec), bounds(fields));
            return { outcomes: ends.map(outcome) };
        },
        submit_batch: async (fields) => {
            const ends = await client.submitBatch(fields.tasks.map(toSpec), bounds(fields));
            return { outcomes: ends.map(outcome) };
        },
        get: async (f) => ({ task: told(await client.get(toTarget(f.target), bounds(f))) }),
        detail: async (f) => told(await client.detail(toTarget(f.target), bounds(f))),
        wait: async (f) => ({ result: told(await client.wait(toTarget(f.target), patience(f))) }),
        wait_many: async (f) => ({
            results: told(await client.waitMany(f.targets.map(BigInt), patience(f))),
        }),
        result: async (f) => {
            const value = await client.result(toTarget(f.target), patience(f));
            return value instanceof Uint8Array ? sized("output", value) : { output: value };
        },
        cancel: async (f) => ({ changed: await client.cancel(toTarget(f.target), bounds(f)) }),
        retry: async (f) => ({ changed: await client.retry(toTarget(f.target), bounds(f)) }),
        delete: async (f) => ({ changed: await client.delete(toTarget(f.target), bounds(f)) }),
        bulk: async ({ action, dry_run: dryRun, filter, limit }) => {
            const found = await client.bulk(action, filter, { limit, dryRun });
            return {
                matched: found.matched,
                changed: found.changed,
                next_after: told(found.nextAfter),
            };
        },
        list: async ({ filter, newest_first: newestFirst, page_size: pageSize }) => {
            const pages = client.list(filter, { pageSize, newestFirst });
            const tasks = [];
            for await (const task of pages) {
                tasks.push(told(task));
            }
            return { tasks, unavailable_shards: [...pages.unavailableShards].sort() };
        },
        watch: async ({ all_transitions: allTransitions, ids = [], keys, pools }) => {
            watching = new AbortController();
            const { signal } = watching;
            const wanted = { pools, keys, ids: ids.map(BigInt), allTransitions, signal };
            try {
                for await (const event of client.watch(wanted)) {
                    emit("event", told(event));
                }
            } catch (error) {
                if (!signal.aborted) {
                    throw error;
                }
            }
        },
        stop_watch: () => watching.abort(),
        put_schedule: async ({ schedule }) => await client.putSchedule(toSchedule(schedule)),
        get_schedule: async ({ name }) => ({
            schedule: told((await client.schedule(name)).schedule),
        }),
        remove_schedule: async ({ name }) => ({ changed: await client.removeSchedule(name) }),
    };
}
