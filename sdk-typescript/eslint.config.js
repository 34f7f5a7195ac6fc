// The strictest set of typescript-eslint's rules that needs types, and what differs from it.

import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["build/", "dist/", "node_modules/", "src/gen/"] },
  {
    files: ["src/**/*.ts", "test/**/*.ts", "examples/**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: {
      parserOptions: { project: "./tsconfig.test.json", tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      "@typescript-eslint/explicit-module-boundary-types": "error",
      "@typescript-eslint/no-import-type-side-effects": "error",
      // Ids, counts and flags are what messages are made of.
      "@typescript-eslint/restrict-template-expressions": [
        "error",
        { allowNumber: true, allowBoolean: true },
      ],
      // An index that a rule of the compiler makes one look at.
      "@typescript-eslint/dot-notation": "off",
      "@typescript-eslint/switch-exhaustiveness-check": "error",
      eqeqeq: "error",
      "no-console": "off",
    },
  },
  {
    files: ["test/**/*.ts"],
    rules: {
      // node:test's own functions return promises that it awaits itself.
      "@typescript-eslint/no-floating-promises": [
        "error",
        {
          allowForKnownSafeCalls: [
            { from: "package", name: ["describe", "it", "test", "suite"], package: "node:test" },
          ],
        },
      ],
    },
  },
);
