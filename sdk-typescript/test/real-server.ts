/** Starts programs for tests: a real server, examples; and says whether there is a server at all. */

import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

import { soon } from "./scripted-server.js";

export const ROOT = fileURLToPath(new URL("../../", import.meta.url));

/** Why tests with a real server are skipped; false if they are not. In CI they never are. */
export const SKIP_SERVER =
  process.env["CRONOQ_SERVER"] === undefined && process.env["CI"] !== "true"
    ? "there is no server to test against, see CRONOQ_SERVER"
    : false;

/** What a program said, and how it ended. */
export interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs a program to its end, as long as patience lasts. */
export async function runProgram(
  command: string,
  args: readonly string[],
  options: { readonly cwd?: string; readonly patience?: number } = {},
): Promise<Ended> {
  const child = spawn(command, args, {
    cwd: options.cwd ?? ROOT,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const said = { stdout: "", stderr: "" };
  child.stdout.setEncoding("utf8").on("data", (text: string) => (said.stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (said.stderr += text));
  const ended = new Promise<Ended>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => {
      resolve({ code, ...said });
    });
  });
  try {
    return await soon(ended, `the end of ${command} ${args.join(" ")}`, options.patience);
  } catch (error) {
    child.kill("SIGKILL");
    throw new Error(`${said.stdout}\n${said.stderr}`, { cause: error });
  }
}
