// Decides nothing: runs a worker and a client of the SDK as commands say, and tells facts. Knows no
// scenario. The protocol is in conformance/PROTOCOL.md.

import { createInterface } from "node:readline";

import {
    CronoqError,
    EndpointError,
    GaveUpError,
    VERSION,
    Worker,
} from "../../../sdk-typescript/dist/esm/index.js";
import { Behaviours } from "./behaviours.mjs";
import { clientCommands } from "./client-calls.mjs";
import { ms, toldError, toOptions } from "./values.mjs";

const emit = (fact, fields = {}) => {
    process.stdout.write(`${JSON.stringify({ fact, ...fields })}\n`);
};
const logger = Object.fromEntries(
    ["debug", "info", "warn", "error"].map((level) => [
        level,
        (text) => console.error(level, text),
    ]),
);
const behaviours = new Behaviours(emit);
let worker;

function startWorker({
    default_handler: fallback,
    handlers = {},
    options,
    until_signal: untilSignal,
}) {
    worker = new Worker({
        ...toOptions(options),
        logger,
        onConnect: (endpoint) => emit("connected", { endpoint }),
        onDisconnect: (endpoint, reason) => emit("disconnected", { endpoint, reason }),
        onRedirect: (endpoint, refused) => emit("redirected", { endpoint, refused }),
        onAbort: ({ number, taskId }, reason) =>
            emit("told_to_stop", { task_id: String(taskId), attempt: number, reason }),
    });
    for (const [kind, behaviour] of Object.entries(handlers)) {
        worker.handler(kind, behaviours.handler(behaviour));
    }
    if (fallback !== undefined) {
        worker.defaultHandler(behaviours.handler(fallback));
    }
    void follow(untilSignal ? worker.runForever() : worker.run(), untilSignal);
}

async function follow(running, untilSignal) {
    try {
        await running;
    } catch (error) {
        if (!(error instanceof GaveUpError)) {
            throw error;
        }
        emit("gave_up", { code: error.details.code, message: error.message });
    }
    if (untilSignal) {
        emit("stopped");
        process.exit(0);
    }
}

const commands = {
    ...clientCommands(emit),
    start_worker: startWorker,
    stop_worker: async (fields) => await worker.stop({ drainTimeoutMs: ms(fields.drain_timeout) }),
    is_ready: () => ({ ready: worker?.isReady ?? false }),
    finish_attempt: ({ behaviour, task_id: taskId }) => behaviours.gates.open(taskId, behaviour),
    exit: () => process.exit(0),
};

async function answer({ do: name, id, ...fields }) {
    const command = commands[name];
    if (command === undefined) {
        emit("failed", { id, type: "protocol", family: "protocol", message: name });
        return;
    }
    try {
        emit("done", { ...((await command(fields)) ?? {}), id });
    } catch (error) {
        const kinds = [CronoqError, EndpointError, RangeError, TypeError];
        if (!kinds.some((kind) => error instanceof kind)) {
            throw error;
        }
        emit("failed", { ...toldError(error), id });
    }
}

emit("hello", { language: "typescript", sdk: VERSION });
createInterface({ input: process.stdin })
    .on("line", (line) => void answer(JSON.parse(line)))
    .on("close", () => process.exit(0));
