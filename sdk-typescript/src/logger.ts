/** Decides who hears what the SDK has to say: a logger of the program's, or the console. */

/** The part of a logger that is used; `console` and the common libraries have it. */
export interface Logger {
  debug(message: string): void;
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

function ignore(): void {
  // Not worth a line on a console that nobody asked for.
}

/** Warnings and errors on the console's standard error, nothing else. */
export const CONSOLE: Logger = {
  debug: ignore,
  info: ignore,
  warn: (message) => {
    console.warn(`cronoq: ${message}`);
  },
  error: (message) => {
    console.error(`cronoq: ${message}`);
  },
};
