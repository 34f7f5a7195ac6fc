/** Decides which version this package says it is; a test holds it equal to package.json. */

export const VERSION = "0.3.0";
