// What the page asks, answered by the service. The page without a server has a file of the same name.
"use strict";

const backend = {
  // Poses, geometries, motions.
  geometry: true,
  links: { API: "docs" },

  choices: () => ask("v1/pruners"),
  examples: () => ask("examples"),

  async match(files, { cameras, ...settings }, report) {
    report("Looking for matches …");
    const form = new FormData();
    files.forEach((file, i) => form.append(`photo${i}`, file, file.name));
    for (const [name, value] of Object.entries(settings)) if (value) form.append(name, value);
    if (cameras && !settings.focal) cameras.forEach((camera, i) => form.append(`K${i}`, camera));
    return ask("v1/match", { method: "POST", body: form });
  },
};

async function ask(path, options = {}) {
  const token = $("token").value;
  let response;
  try {
    response = await fetch(path, { ...options, headers: token ? { Authorization: `Bearer ${token}` } : {} });
  } catch {
    throw new Error("The service does not answer.");
  }
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) {
    $("token-field").hidden = false;
    throw new Error(token ? "This is not the token of the service." : "Enter the token of the service.");
  }
  if (!response.ok) throw new Error(body.error || `The service answered ${response.status}.`);
  return body;
}
