// Decides how JSON values of the participant protocol become values of the SDK, and back.

import { CronoqError, TaskFailedError } from "../../../sdk-typescript/dist/esm/index.js";

const BYTES_SHOWN_MAX = 64 * 1024;
const DURATIONS = new Set(
    "deadline_in start_in tolerance duration_hint timeout delay expires_in initial_backoff max_backoff".split(
        " ",
    ),
);
const INSTANTS = new Set(["deadline_at", "start_at", "not_before"]);
// Their keys are the user's, not names of fields.
const PAIRS = new Set(["tags", "labels", "resources", "trace_context"]);

const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
export const snake = (name) => name.replace(/(?<!^)(?=[A-Z])/g, "_").toLowerCase();
export const ms = (seconds) =>
    seconds === undefined ? undefined : Math.round(seconds * 1e6) / 1e3;
export const b64 = (bytes) => Buffer.from(bytes).toString("base64");

/** Bytes with their size, and without themselves when they are many. */
export function sized(name, bytes) {
    const told = { [`${name}_size`]: bytes.length };
    return bytes.length <= BYTES_SHOWN_MAX ? { ...told, [`${name}_b64`]: b64(bytes) } : told;
}

/** Which task is meant. */
export const toTarget = (value) => value.key ?? BigInt(value.id);

/** A payload or output, which may be a JSON value, bytes, or so many zero bytes. */
export function toValue(fields, name) {
    if (fields[`${name}_b64`] !== undefined) {
        return Buffer.from(fields[`${name}_b64`], "base64");
    }
    return fields[`${name}_bytes`] === undefined
        ? fields[name]
        : Buffer.alloc(fields[`${name}_bytes`]);
}

/** A task, or the part of it that is a retry policy. */
export function toSpec(fields) {
    const said = {};
    for (const [name, value] of Object.entries(fields)) {
        if (DURATIONS.has(name)) {
            said[`${camel(name)}Ms`] = ms(value);
        } else if (INSTANTS.has(name)) {
            said[camel(name)] = BigInt(value);
        } else if (name === "retry") {
            said.retry = toSpec(value);
        } else if (name === "deps") {
            said.deps = value.map((dep) =>
                dep.cond === undefined ? toTarget(dep) : { target: toTarget(dep), cond: dep.cond },
            );
        } else if (!name.startsWith("payload")) {
            said[camel(name)] = value;
        }
    }
    const payload = toValue(fields, "payload");
    return payload === undefined ? said : { ...said, payload };
}

/** A schedule. */
export function toSchedule({ template, catch_up: catchUp, ...fields }) {
    return { ...fields, catchUp, template: toSpec(template) };
}

/** Options: those of a backoff, of keepalive and of TLS are groups in the SDK. */
export function toOptions(fields = {}) {
    const said = {};
    const groups = { backoff: {}, keepalive: {}, tls: {} };
    for (const [name, value] of Object.entries(fields)) {
        const [, group, part] = /^(backoff|keepalive|tls)_(\w+)$/.exec(name) ?? [];
        if (group === "tls") {
            groups.tls[part] = value;
        } else if (group !== undefined) {
            groups[group][`${part === "max" ? "maximum" : part}Ms`] = ms(value);
        } else if (/^(drain_timeout|session_reset|connect_timeout|deadline|max_wait)$/.test(name)) {
            said[`${camel(name)}Ms`] = ms(value);
        } else {
            said[camel(name)] = value;
        }
    }
    const given = Object.entries(groups).filter(([, group]) => Object.keys(group).length > 0);
    return { ...said, ...Object.fromEntries(given) };
}

/** A value of the SDK as JSON holds it: ids and instants as digits, durations in seconds. */
export function told(value) {
    if (typeof value === "bigint") {
        return String(value);
    }
    if (value instanceof Date) {
        return String(BigInt(value.getTime()) * 1_000_000n);
    }
    if (Array.isArray(value)) {
        return value.map(told);
    }
    return value !== null && typeof value === "object" ? toldObject(value) : value;
}

function toldObject(value) {
    const found = {};
    for (const [key, field] of Object.entries(value)) {
        const name = snake(key);
        if (name === "id") {
            found.task_id = String(field);
        } else if (name === "target") {
            Object.assign(
                found,
                typeof field === "string" ? { key: field } : { id: String(field) },
            );
        } else if (field instanceof Uint8Array) {
            const isWhole = name === "payload" || name === "output";
            Object.assign(found, isWhole ? sized(name, field) : { [`${name}_b64`]: b64(field) });
        } else if (name.endsWith("_ms")) {
            found[name.slice(0, -3)] = field === undefined ? undefined : field / 1000;
        } else {
            found[name] = PAIRS.has(name) ? field : told(field);
        }
    }
    return found;
}

/** Type, family and text of an error, read from its class. */
export function toldError(error) {
    if (!(error instanceof CronoqError)) {
        return { type: "option", family: "option", message: error.message };
    }
    const line = [];
    for (let kind = error.constructor; kind !== Error; kind = Object.getPrototypeOf(kind)) {
        line.push(snake(kind.name.replace(/Error$/, "")));
    }
    const found = { type: line[0], family: line.at(-2) ?? line[0], message: error.message };
    return error instanceof TaskFailedError
        ? { ...found, details: error.details, status: error.status, message: error.taskMessage }
        : { ...found, details: error.details };
}
