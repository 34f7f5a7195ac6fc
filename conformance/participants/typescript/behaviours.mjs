// Decides what handlers of the participant do: behaviours of the participant protocol.

import { Cancel, Permanent, Reject, Retryable } from "../../../sdk-typescript/dist/esm/index.js";
import { threadHandler } from "../../../sdk-typescript/dist/esm/thread.js";
import { b64, sized, told, toValue } from "./values.mjs";

/** Where handlers wait until they are told how to end, by task. */
class Gates {
    #waiting = new Map();
    #early = new Map();

    /** The next ending that is told for this task. */
    wait(taskId) {
        const early = this.#early.get(taskId)?.shift();
        let leave = () => undefined;
        const ending = new Promise((resolve) => {
            if (early !== undefined) {
                resolve(early);
                return;
            }
            const waiting = this.#waiting.get(taskId) ?? new Set();
            this.#waiting.set(taskId, waiting.add(resolve));
            leave = () => waiting.delete(resolve);
        });
        return { ending, leave };
    }

    /** Tells the oldest attempt of a task that waits how to go on, or the next that will. */
    open(taskId, behaviour) {
        const waiting = this.#waiting.get(taskId) ?? new Set();
        for (const resolve of waiting) {
            waiting.delete(resolve);
            resolve(behaviour);
            return;
        }
        this.#early.set(taskId, [...(this.#early.get(taskId) ?? []), behaviour]);
    }
}

/** Makes handlers that do what a behaviour says. */
export class Behaviours {
    gates = new Gates();
    #emit;
    #threads = new Map();

    constructor(emit) {
        this.#emit = emit;
    }

    handler(behaviour) {
        if (behaviour.quiet) {
            return (payload, attempt) => this.#act(behaviour, payload, attempt);
        }
        return async (payload, attempt) => {
            this.#began(attempt);
            try {
                return await this.#act(behaviour, payload, attempt);
            } finally {
                this.#emit("attempt_ended", {
                    task_id: String(attempt.taskId),
                    attempt: attempt.number,
                });
            }
        };
    }

    async #act(behaviour, payload, attempt) {
        const following = behaviour.then ?? { act: "complete" };
        switch (behaviour.act) {
            case "block":
                return await this.#act(await this.#block(behaviour, attempt), payload, attempt);
            case "busy":
                await this.#busy(behaviour, payload, attempt);
                return await this.#act(following, payload, attempt);
            case "progress":
                for (const step of behaviour.steps) {
                    attempt.progress(toValue(step, "data"), step.fraction);
                }
                return await this.#act(following, payload, attempt);
            case "by_attempt": {
                const { attempts } = behaviour;
                return await this.#act(
                    attempts[Math.min(attempt.number, attempts.length) - 1],
                    payload,
                    attempt,
                );
            }
            case "parent_outputs": {
                const outputs = [];
                for (const parent of attempt.parents) {
                    outputs.push(await attempt.output(parent));
                }
                return outputs;
            }
            default:
                return end(behaviour, payload);
        }
    }

    async #block(behaviour, attempt) {
        const { ending, leave } = this.gates.wait(String(attempt.taskId));
        if (behaviour.ignore_stop) {
            return await ending;
        }
        const { signal } = attempt;
        const stopped = new Promise((_, reject) => {
            const onStop = () => reject(signal.reason);
            signal.addEventListener("abort", onStop, { once: true });
            if (signal.aborted) {
                onStop();
            }
        });
        try {
            return await Promise.race([ending, stopped]);
        } finally {
            leave();
        }
    }

    async #busy({ on_loop: onLoop, seconds }, payload, attempt) {
        if (onLoop) {
            const until = performance.now() + seconds * 1000;
            while (performance.now() < until);
            return;
        }
        if (!this.#threads.has(seconds)) {
            const file = new URL("./busy.mjs", import.meta.url);
            this.#threads.set(seconds, threadHandler(file, { workerData: seconds }));
        }
        await this.#threads.get(seconds)(payload, attempt);
    }

    #began(attempt) {
        const { lastProgress: progress } = attempt;
        this.#emit("attempt_started", {
            task_id: String(attempt.taskId),
            attempt: attempt.number,
            kind: attempt.kind,
            key: attempt.key,
            pool: attempt.pool,
            priority: attempt.priority,
            ...sized("payload", attempt.payload),
            content_type: attempt.contentType,
            tags: attempt.tags,
            deadline: told(attempt.deadline),
            timeout: attempt.timeoutMs === undefined ? undefined : attempt.timeoutMs / 1000,
            trace_context: attempt.traceContext,
            parents: told(attempt.parents),
            last_progress: progress && {
                data_b64: b64(progress.data),
                fraction: progress.fraction,
            },
        });
    }
}

/** Ends an attempt as a behaviour says. */
function end(behaviour, payload) {
    const { message = "", retry_after: wait } = behaviour;
    switch (behaviour.act) {
        case "complete":
            return toValue(behaviour, "output") ?? null;
        case "echo":
            return payload;
        case "fail":
            throw new Retryable(message, {
                retryAfterMs: wait === undefined ? undefined : wait * 1000,
            });
        case "permanent":
            throw new Permanent(message);
        case "cancel":
            throw new Cancel(message);
        case "reject":
            throw new Reject(message);
        case "throw":
            throw new TypeError(message);
        case "unencodable":
            return { id: 1n };
        default:
            throw new RangeError(`no such behaviour: ${behaviour.act}`);
    }
}
