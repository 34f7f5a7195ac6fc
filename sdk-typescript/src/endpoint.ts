/**
 * Decides what an endpoint text means and whether it may be used at all.
 *
 * A configured endpoint is `host:port`, `http://…` or `https://…`; a redirect is a URL, nothing
 * else. Knows no sockets and resolves no names: whether a host is loopback is judged by how it is
 * written. Not read by the platform's URL class, which mends what it finds (`http:/\h`, `http://1`)
 * where a refusal is due.
 */

import { isIPv4, isIPv6 } from "node:net";

const DEFAULT_PORT = 7070;
const CONFIGURED_PORTS = { http: DEFAULT_PORT, https: DEFAULT_PORT } as const;
const REDIRECT_PORTS = { http: 80, https: 443 } as const;
const URL_PARTS = /^([^:]*):\/\/([^/]*)(\/?)$/;
const VISIBLE_ASCII = /^[!-~]+$/;
const AUTHORITY = /^(?:\[([0-9a-f:.]*)\]|([^:[\]]*))(?::([0-9]*))?$/i;
const HOST_LABEL = /^[a-z0-9_-]+$/;

type Scheme = "http" | "https";

/** The endpoint cannot be used. */
export class EndpointError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "EndpointError";
  }
}

/** Where a server listens, and whether the way there is encrypted. */
export class Endpoint {
  constructor(
    readonly scheme: Scheme,
    readonly host: string,
    readonly port: number,
  ) {}

  /** True when the connection uses TLS. */
  get isEncrypted(): boolean {
    return this.scheme === "https";
  }

  /** True when the host names this machine in a way that no resolver can change. */
  get isLoopback(): boolean {
    if (isIPv4(this.host)) {
      return this.host.startsWith("127.");
    }
    if (isIPv6(this.host)) {
      return URL.canParse(`http://[${this.host}]`)
        ? new URL(`http://[${this.host}]`).hostname === "[::1]"
        : false;
    }
    return this.host === "localhost";
  }

  /** The form that a dialer takes: `host:port`, IPv6 in brackets. */
  get target(): string {
    return this.host.includes(":") ? `[${this.host}]:${this.port}` : `${this.host}:${this.port}`;
  }

  /** Whether both are the same place. */
  equals(other: Endpoint): boolean {
    return this.toString() === other.toString();
  }

  toString(): string {
    return `${this.scheme}://${this.target}`;
  }
}

/**
 * Reads an endpoint that a user configured (RR-01): `host`, `host:port`, or with `http://` or
 * `https://` before it. Without a scheme it is `https` if `tls` is set, and the port is 7070.
 *
 * @throws {EndpointError} The text is none of these, or `http` although TLS settings were given.
 */
export function parseConfigured(text: string, tls: boolean): Endpoint {
  const url = text.includes("://") ? text : `${tls ? "https" : "http"}://${text}`;
  const endpoint = parse(url, CONFIGURED_PORTS);
  if (tls && !endpoint.isEncrypted) {
    throw new EndpointError(`endpoint ${quoted(text)} is http, but TLS settings were given`);
  }
  return endpoint;
}

/**
 * Reads an endpoint that a server named (RR-13).
 *
 * @throws {EndpointError} It is no http(s) URL of host and port, or has more to it than those.
 */
export function parseRedirect(text: string): Endpoint {
  return parse(text, REDIRECT_PORTS);
}

function parse(text: string, ports: Readonly<Record<Scheme, number>>): Endpoint {
  const parts = VISIBLE_ASCII.test(text) ? URL_PARTS.exec(text) : null;
  if (parts === null) {
    throw new EndpointError(`endpoint ${quoted(text)} is not a URL`);
  }
  const [, schemeText = "", authority = ""] = parts;
  const scheme = schemeText.toLowerCase();
  if (scheme !== "http" && scheme !== "https") {
    throw new EndpointError(`endpoint ${quoted(text)} is neither http nor https`);
  }
  if (authority.includes("@")) {
    throw new EndpointError("endpoint carries user information");
  }
  const place = AUTHORITY.exec(authority);
  const port = portOf(place?.[3], ports[scheme]);
  const host = hostOf(place);
  if (host === undefined || port === undefined) {
    throw new EndpointError(`endpoint ${quoted(text)} is not of the form scheme://host:port`);
  }
  return new Endpoint(scheme, host, port);
}

function portOf(text: string | undefined, fallback: number): number | undefined {
  if (text === undefined || text === "") {
    return fallback;
  }
  const port = Number(text);
  return port >= 1 && port <= 65_535 ? port : undefined;
}

function hostOf(place: RegExpExecArray | null): string | undefined {
  if (place === null) {
    return undefined;
  }
  const [, bracketed, plain = ""] = place;
  if (bracketed !== undefined) {
    return isIPv6(bracketed) ? bracketed.toLowerCase() : undefined;
  }
  const host = plain.toLowerCase();
  const labels = host.replace(/\.+$/, "").split(".");
  return labels.every((label) => HOST_LABEL.test(label)) ? host : undefined;
}

function quoted(text: string): string {
  return JSON.stringify(text);
}
