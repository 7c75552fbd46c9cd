// The other end of `connect` in backend.js: a worker's tasks by name.
"use strict";

self.answering = (tasks) => {
  self.onmessage = async ({ data: { number, task, given } }) => {
    try {
      self.postMessage({ number, result: await tasks[task](...given) });
    } catch (error) {
      self.postMessage({ number, error: error.message ?? String(error) });
    }
  };
};
