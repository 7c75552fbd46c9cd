// Service worker: keeps all files of the page, so that it works offline after the first visit.
"use strict";

// The build writes it: FILES, and VERSION, which changes when one of them does.
importScripts("files.js");
const PREFIX = `ananet ${registration.scope} `, NAME = PREFIX + VERSION;

// Asked again, so that no file of an older version is kept.
const fill = async () => (await caches.open(NAME)).addAll(FILES.map((file) => new Request(file, { cache: "no-cache" })));

async function clean() {
  for (const name of await caches.keys()) if (name.startsWith(PREFIX) && name !== NAME) await caches.delete(name);
  await clients.claim();
}

async function answer(request) {
  const kept = await caches.open(NAME);
  return await kept.match(request.url.endsWith("/") ? "index.html" : request, { ignoreSearch: true }) ?? fetch(request);
}

oninstall = (event) => event.waitUntil(fill().then(() => skipWaiting()));
onactivate = (event) => event.waitUntil(clean());
onfetch = (event) => event.respondWith(answer(event.request));
