// docs: thread
// crunch.ts
import { serveThread } from "cronoq/thread";
import { z } from "zod";

serveThread(
  (limit, attempt) => {
    let sum = 0;
    for (let n = 0; n < limit && !attempt.isCancelled; n += 1) {
      sum += n;
    }
    return sum;
  },
  { payload: z.number() },
);
// docs: end
